#include "engine/state/stored_state.h"

#include <string.h>
#include <time.h>

#include "engine/model/lent.h"
#include "kernels/cast.h"
#include "kernels/state_format.h"

enum { CHUNK_WAIT_NS = 20 * 1000 };

struct stored_range stored_range(const struct blueprint *b, uint32_t rank, uint32_t region, zero_kind kind) {
    const struct region *r = &b->regions[region];
    struct placement shard = {{SHARD, r->grad_step.axis[AXIS_REPLICATE]}};
    return range_of_rank(b, rank, region, kind == ZERO_GRAD ? shard : r->state);
}

static struct stored_range own_part(const struct stored_view *v, uint32_t region, zero_kind kind) {
    return stored_range(v->blueprint, v->run->ranks->data_rank, region, kind);
}

uint64_t stored_chunk_end(const struct blueprint *b, uint32_t region, uint64_t at) {
    const struct chunk_layout *layout = &b->plan.layout;
    uint32_t first = offload_staged_first(&layout->region[region]);
    if (first == layout->region[region].chunks) return UINT64_MAX;
    if (at < first * layout->chunk_elements) return first * layout->chunk_elements;
    return (at / layout->chunk_elements + 1) * layout->chunk_elements;
}

void *stored_params(const struct stored_view *v, uint32_t region, const struct stored_range *part) {
    struct buffer_ref full = {BUFFER_PARAM_FULL, (uint16_t)region},
                      shard = {BUFFER_PARAM_SHARD, (uint16_t)region};
    const struct executor *executor = v->run->executor;
    if (plan_fixed(&v->blueprint->plan, full) == NO_BUFFER) return executor_address(executor, shard);
    uint64_t begin = part->first * dtype_bytes(blueprint_precision_of(v->blueprint, region).compute);
    return (uint8_t *)executor_address(executor, full) + begin;
}

/* The arrays of a region: the optimizer's, by index, its states, of which the last may be the averaged weights, and then the masters,
 * where they are not the parameters; parameters; the reduced gradient. */
enum { STORED_PARAMS = PRECISION_ARRAYS_MAX, STORED_GRADIENT };

/* Frozen parameters have no masters. */
static bool keeps_masters(const struct stored_view *v, uint32_t region) {
    struct precision precision = blueprint_precision_of(v->blueprint, region);
    return precision_keeps_masters(&precision) && !v->blueprint->regions[region].frozen;
}

static uint32_t array_of(const struct stored_view *v, uint32_t region, zero_kind kind) {
    if (kind == ZERO_GRAD) return STORED_GRADIENT;
    if (kind == ZERO_EMA) return v->blueprint->o.state_count - 1;
    if (kind != ZERO_PARAM) return (uint32_t)(kind - ZERO_STATE0);
    return keeps_masters(v, region) ? v->blueprint->o.state_count : STORED_PARAMS;
}

/* The lower halves of split masters are moved as bf16 would be, and never cast. */
static enum dtype array_dtype(const struct stored_view *v, uint32_t region, uint32_t array) {
    struct precision precision = blueprint_precision_of(v->blueprint, region);
    if (array == STORED_PARAMS) return precision.compute;
    if (array == STORED_GRADIENT) return precision.reduced;
    uint32_t states = v->blueprint->o.state_count;
    if (array < states) return precision_state(&precision, array, states);
    return precision.split ? DTYPE_BF16 : DTYPE_F32;
}

/* Consecutive elements in one place: in memory, or in the slot that holds this part of their chunk. */
struct piece {
    void *at;
    enum dtype dtype;
    uint64_t count;
    uint8_t part; /* 0: in memory */
};

static struct piece piece_at(void *data, enum dtype dtype, uint64_t first, uint64_t count, uint8_t part) {
    return (struct piece){(uint8_t *)data + first * dtype_bytes(dtype), dtype, count, part};
}

/* The address of the shard's element `at`, which is in memory. */
static void *address(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at) {
    struct stored_range part = own_part(v, region, ZERO_PARAM);
    if (array == v->blueprint->o.state_count) return executor_master(v->run->executor, region, at);
    if (array < v->blueprint->o.state_count) return executor_state(v->run->executor, region, array, at);
    uint8_t *begin = array == STORED_PARAMS ? stored_params(v, region, &part)
                                            : executor_grad_shard(v->run->executor, region);
    return begin + at * dtype_bytes(array_dtype(v, region, array));
}

/* The end of the run of elements that are in the same memory as element `at`. If the end is not above `at`, that
 * element is on the drive. */
static uint64_t in_memory(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at) {
    const struct chunk_layout *layout = &v->blueprint->plan.layout;
    uint64_t device = chunk_layout_device(layout, region);
    if (array == STORED_PARAMS) return layout->region[region].params ? 0 : UINT64_MAX;
    if (array == STORED_GRADIENT) return layout->region[region].grads ? 0 : UINT64_MAX;
    return at < device ? device : chunk_layout_resident(layout, region);
}

/* Waits without the lock: a save in the background may wait while the host and its progress thread work. A failure is also
 * the executor's: other threads get it at their next call. */
static zero_status load_chunk(const struct stored_view *v, uint32_t region, uint32_t index, uint8_t parts,
                              uint8_t **out, struct zero_error *error) {
    for (bool there = false;;) {
        fair_lock_take(&v->run->ranks->lock);
        zero_status status = parts == CHUNK_GRADS
                                 ? executor_gradient_poll(v->run->executor, region, index, out, &there)
                                 : executor_chunk_poll(v->run->executor, region, index, parts, out, &there);
        if (status) *error = *executor_error(v->run->executor);
        fair_lock_give(&v->run->ranks->lock);
        if (status || there) return status;
        nanosleep(&(struct timespec){.tv_nsec = CHUNK_WAIT_NS}, NULL);
    }
}

/* A piece in the host program's memory. A gap has no address, and reads as zero. */
static struct piece lent_piece(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at,
                               uint64_t count) {
    bool gradient = array == STORED_GRADIENT;
    enum dtype dtype = array_dtype(v, region, array);
    uint64_t first = own_part(v, region, gradient ? ZERO_GRAD : ZERO_PARAM).first, there;
    void *address = lent_at(&v->blueprint->o.model->region[region], gradient ? LENT_GRADS : LENT_PARAMS,
                            dtype_bytes(dtype), first + at, &there);
    return (struct piece){address, dtype, min64(count, there), 0};
}

static bool is_lent(const struct stored_view *v, uint32_t region, uint32_t array) {
    const struct region *r = &v->blueprint->regions[region];
    return array == STORED_PARAMS ? r->lent : array == STORED_GRADIENT && r->grad_lent && r->grad_in_place;
}

/* True for a state that only the run's other optimizer keeps. It has no place in this region, and reads as zero. */
static bool is_others(const struct stored_view *v, uint32_t region, uint32_t array) {
    uint32_t states = v->blueprint->o.state_count - v->blueprint->terms.precision.average;
    return array < states && array >= blueprint_optimizer(v->blueprint, region)->state_count;
}

/* Its index in a record, which has no place for states that only the other optimizer keeps: averages and masters are its last arrays. */
static uint32_t record_array(const struct stored_view *v, uint32_t array, uint32_t states) {
    uint32_t all = v->blueprint->o.state_count;
    if (array == all) return states;
    return precision_averages(&v->blueprint->terms.precision, array, all) ? states - 1 : array;
}

/* Finds the element `at` of the shard, and what follows it in the same place. */
static zero_status find(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at,
                        uint64_t count, struct piece *out, struct zero_error *error) {
    const struct chunk_layout *layout = &v->blueprint->plan.layout;
    enum dtype dtype = array_dtype(v, region, array);
    uint64_t end = in_memory(v, region, array, at);
    if (is_lent(v, region, array)) return *out = lent_piece(v, region, array, at, count), ZERO_OK;
    if (is_others(v, region, array)) return *out = (struct piece){NULL, dtype, count, 0}, ZERO_OK;
    if (at < end) {
        *out = (struct piece){address(v, region, array, at), dtype, min64(count, end - at), 0};
        return ZERO_OK;
    }
    uint32_t index = (uint32_t)(at / layout->chunk_elements);
    struct chunk c = chunk_layout_at(layout, region, index);
    uint8_t *slot, part = array == STORED_PARAMS     ? CHUNK_PARAMS
                          : array == STORED_GRADIENT ? CHUNK_GRADS
                                                     : CHUNK_STATE;
    bool split = array == v->blueprint->o.state_count && blueprint_precision_of(v->blueprint, region).split;
    TRY(load_chunk(v, region, index, split ? CHUNK_ALL : part, &slot, error));
    if (part == CHUNK_STATE)
        slot += c.array[record_array(v, array, c.states)];
    else
        slot += part == CHUNK_PARAMS ? c.slot_param : c.slot_grad;
    *out = piece_at(slot, dtype, at - c.first, min64(count, c.first + c.count - at), part);
    return ZERO_OK;
}

/* ---- what a discrete device holds passes through the bounce buffer, step by step ---- */

enum { STEP_ELEMENTS = PIECE_BYTES / (2 * sizeof(float)) }; /* of two pieces at once */

static void *bounce(const struct stored_view *v, int half) { return v->bounce + half * (PIECE_BYTES / 2); }

static struct piece part_of(const struct piece *p, uint64_t first, uint64_t count) {
    return piece_at(p->at, p->dtype, first, count, p->part);
}

/* The address of a step's elements for the host: in place, or in the bounce buffer. */
static void *host_place(const struct stored_view *v, const struct piece *step, int half) {
    return device_has(v->run, step->at) ? bounce(v, half) : step->at;
}

static zero_status bring(const struct stored_view *v, const struct piece *step, void *place,
                         struct zero_error *error) {
    if (place == step->at) return ZERO_OK;
    return device_copy(v->run, place, step->at, step->count * dtype_bytes(step->dtype), error);
}

static zero_status take_back(const struct stored_view *v, const struct piece *step, const void *place,
                             struct zero_error *error) {
    if (place == step->at) return ZERO_OK;
    return device_copy(v->run, step->at, place, step->count * dtype_bytes(step->dtype), error);
}

static zero_status read_piece(const struct stored_view *v, const struct piece *p, float *out,
                              struct zero_error *error) {
    for (uint64_t i = 0, n; i < p->count; i += n) {
        n = device_has(v->run, p->at) ? min64(p->count - i, STEP_ELEMENTS) : p->count;
        struct piece step = part_of(p, i, n);
        void *place = host_place(v, &step, 0);
        if (!place) memset(out + i, 0, n * sizeof *out);
        if (!place) continue;
        TRY(bring(v, &step, place, error));
        cast(out + i, DTYPE_F32, place, p->dtype, n);
    }
    return ZERO_OK;
}

static zero_status write_piece(const struct stored_view *v, const struct piece *p, const float *in,
                               struct zero_error *error) {
    for (uint64_t i = 0, n; i < p->count; i += n) {
        n = device_has(v->run, p->at) ? min64(p->count - i, STEP_ELEMENTS) : p->count;
        struct piece step = part_of(p, i, n);
        void *place = host_place(v, &step, 0);
        if (!place) continue;
        cast(place, p->dtype, in + i, DTYPE_F32, n);
        TRY(take_back(v, &step, place, error));
    }
    return ZERO_OK;
}

/* Masters and their parameters, a step of one chunk at a time, so that both pieces stay where they were found. A gap in the host
 * program's memory has no param_place: it reads as zero, and writes to it are dropped. */
struct pair {
    struct piece master, param;
    void *master_place, *param_place;
};

static zero_status find_pair(const struct stored_view *v, uint32_t region, uint64_t at, uint64_t count,
                             struct pair *out, struct zero_error *error) {
    count = min64(count, stored_chunk_end(v->blueprint, region, at) - at);
    if (v->run->discrete) count = min64(count, STEP_ELEMENTS);
    TRY(find(v, region, v->blueprint->o.state_count, at, count, &out->master, error));
    TRY(find(v, region, STORED_PARAMS, at, out->master.count, &out->param, error));
    if (out->param.count < out->master.count) out->master.count = out->param.count;
    out->master_place = host_place(v, &out->master, 0);
    out->param_place = host_place(v, &out->param, 1);
    return ZERO_OK;
}

static zero_status read_masters(const struct stored_view *v, uint32_t region, uint64_t at, uint64_t count,
                                float *out, struct zero_error *error) {
    for (struct pair pair = {0}; count; at += pair.master.count, count -= pair.master.count) {
        TRY(find_pair(v, region, at, count, &pair, error));
        TRY(bring(v, &pair.master, pair.master_place, error));
        TRY(bring(v, &pair.param, pair.param_place, error));
        if (pair.param_place)
            master_join(out, pair.param_place, pair.master_place, pair.master.count);
        else
            memset(out, 0, pair.master.count * sizeof *out);
        out += pair.master.count;
    }
    return ZERO_OK;
}

static void written(const struct stored_view *v, uint8_t parts) {
    if (parts) executor_chunk_written(v->run->executor, parts);
}

/* `exact`: split masters may be any numbers (master_divide). */
static zero_status write_masters(const struct stored_view *v, uint32_t region, uint64_t at, uint64_t count,
                                 const float *in, bool exact, struct zero_error *error) {
    uint64_t n = 0;
    for (struct pair pair = {0}; count; at += n, in += n, count -= n) {
        TRY(find_pair(v, region, at, count, &pair, error));
        n = pair.master.count;
        if (!pair.param_place) continue;
        if (blueprint_precision_of(v->blueprint, region).split) {
            (exact ? master_divide : master_split)(pair.param_place, pair.master_place, in, n);
        } else {
            memcpy(pair.master_place, in, n * sizeof *in);
            if (pair.param.dtype == DTYPE_BF16) master_keep(pair.master_place, n);
            cast(pair.param_place, pair.param.dtype, pair.master_place, DTYPE_F32, n);
        }
        TRY(take_back(v, &pair.master, pair.master_place, error));
        TRY(take_back(v, &pair.param, pair.param_place, error));
        written(v, pair.master.part | pair.param.part);
    }
    return ZERO_OK;
}

static zero_status write_array(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at,
                               uint64_t count, const float *in, struct zero_error *error) {
    for (struct piece piece = {0}; count; at += piece.count, in += piece.count, count -= piece.count) {
        TRY(find(v, region, array, at, count, &piece, error));
        TRY(write_piece(v, &piece, in, error));
        written(v, piece.part);
    }
    return ZERO_OK;
}

static zero_status read_array(const struct stored_view *v, uint32_t region, uint32_t array, uint64_t at,
                              uint64_t count, float *out, struct zero_error *error) {
    if (array == v->blueprint->o.state_count && blueprint_precision_of(v->blueprint, region).split)
        return read_masters(v, region, at, count, out, error);
    for (struct piece piece = {0}; count; at += piece.count, out += piece.count, count -= piece.count) {
        TRY(find(v, region, array, at, count, &piece, error));
        TRY(read_piece(v, &piece, out, error));
    }
    return ZERO_OK;
}

zero_status stored_read(const struct stored_view *v, uint32_t region, zero_kind kind, uint64_t first,
                        uint64_t count, float *out, struct zero_error *error) {
    uint64_t at = first - own_part(v, region, kind).first;
    return read_array(v, region, array_of(v, region, kind), at, count, out, error);
}

/* Stays within one chunk, so that the chunk leaves its slot once, however many of its arrays are written. */
static zero_status write_in_chunk(const struct stored_view *v, uint32_t region, zero_kind kind, uint64_t at,
                                  uint64_t count, const float *in, struct zero_error *error) {
    if (keeps_masters(v, region) && kind == ZERO_PARAM)
        return write_masters(v, region, at, count, in, false, error);
    zero_status status = write_array(v, region, array_of(v, region, kind), at, count, in, error);
    struct precision precision = blueprint_precision_of(v->blueprint, region);
    bool copy =
        kind == ZERO_PARAM && precision_copies_masters(&precision) && !v->blueprint->regions[region].frozen;
    return copy && !status ? write_array(v, region, v->blueprint->o.state_count, at, count, in, error)
                           : status;
}

zero_status stored_write(const struct stored_view *v, uint32_t region, zero_kind kind, uint64_t first,
                         uint64_t count, const float *in, struct zero_error *error) {
    fair_lock_take(&v->run->ranks->lock);
    executor_refetch(v->run->executor);
    fair_lock_give(&v->run->ranks->lock);
    uint64_t at = first - own_part(v, region, kind).first, end = at + count;
    for (uint64_t some; at < end; at += some, in += some) {
        some = min64(end, stored_chunk_end(v->blueprint, region, at)) - at;
        TRY(write_in_chunk(v, region, kind, at, some, in, error));
    }
    return ZERO_OK;
}

/* Parameters from the masters in a record. */
static zero_status restore_chunk(const struct stored_view *v, uint32_t region, const struct chunk *c,
                                 struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint64_t at = c->first, count; at < c->first + c->count && !status; at += count) {
        struct piece master;
        count = min64(c->first + c->count - at, PIECE_BYTES / sizeof(float));
        status = find(v, region, v->blueprint->o.state_count, at, count, &master, error);
        if (status) break;
        memcpy(v->piece, master.at, count * sizeof(float));
        status =
            write_array(v, region, STORED_PARAMS, at, count, (const float *)(const void *)v->piece, error);
    }
    return status;
}

zero_status stored_restore(const struct stored_view *v, struct zero_error *error) {
    const struct policy *policy = &v->blueprint->policy;
    const struct chunk_layout *layout = &v->blueprint->plan.layout;
    stored_sweep(v, policy->refresh, policy->refreshes, CHUNK_STATE);
    zero_status status = ZERO_OK;
    for (uint32_t k = 0; k < policy->refreshes; k++)
        for (uint32_t i = 0; i < layout->region[policy->refresh[k]].chunks && !status; i++) {
            struct chunk c = chunk_layout_at(layout, policy->refresh[k], i);
            status = restore_chunk(v, policy->refresh[k], &c, error);
        }
    return stored_end_sweep(v, status, error);
}

/* ---- averages in the place of weights ---- */

/* The averages become the parameters. Values that would be lost take the place of the averages: parameters that are the masters, or
 * masters that are split. Masters in fp32 stay where they are, and become the parameters again later. The same exchange works in
 * both directions. The first half of the view's piece holds averages, the second half weights. */
static zero_status exchange_some(const struct stored_view *v, uint32_t region, uint64_t at, uint64_t count,
                                 bool averages, struct zero_error *error) {
    const struct precision p = blueprint_precision_of(v->blueprint, region);
    uint32_t masters = v->blueprint->o.state_count, weights = p.split ? masters : STORED_PARAMS;
    float *in = (float *)(void *)v->piece, *out = in + STEP_ELEMENTS;
    bool lost = p.split || !precision_keeps_masters(&p);
    zero_status status =
        read_array(v, region, lost || averages ? masters - 1 : masters, at, count, in, error);
    if (!status && lost) status = read_array(v, region, weights, at, count, out, error);
    if (!status && lost) status = write_array(v, region, masters - 1, at, count, out, error);
    if (!status && p.split) return write_masters(v, region, at, count, in, true, error);
    uint16_t *narrow = (uint16_t *)(void *)out;
    bool rounds = !status && averages && p.compute == DTYPE_BF16; /* as split masters do */
    if (rounds) master_divide(narrow, NULL, in, count);
    if (rounds) cast(in, DTYPE_F32, narrow, DTYPE_BF16, count);
    return status ? status : write_array(v, region, STORED_PARAMS, at, count, in, error);
}

static zero_status exchange_region(const struct stored_view *v, uint32_t region, bool averages,
                                   struct zero_error *error) {
    uint64_t end = own_part(v, region, ZERO_PARAM).count;
    for (uint64_t at = 0, some; at < end; at += some) {
        some = min64(min64(end, stored_chunk_end(v->blueprint, region, at)) - at, STEP_ELEMENTS);
        TRY(exchange_some(v, region, at, some, averages, error));
    }
    return ZERO_OK;
}

zero_status stored_exchange_averages(const struct stored_view *v, bool averages, struct zero_error *error) {
    const struct policy *policy = &v->blueprint->policy;
    fair_lock_take(&v->run->ranks->lock);
    executor_refetch(v->run->executor);
    fair_lock_give(&v->run->ranks->lock);
    stored_sweep(v, policy->refresh, policy->refreshes, CHUNK_ALL);
    zero_status status = ZERO_OK;
    for (uint32_t k = 0; k < policy->refreshes && !status; k++)
        status = exchange_region(v, policy->refresh[k], averages, error);
    return stored_end_sweep(v, status, error);
}

/* ---- all of it ---- */

void stored_sweep(const struct stored_view *v, const uint16_t *order, uint32_t regions, uint8_t parts) {
    fair_lock_take(&v->run->ranks->lock);
    executor_sweep(v->run->executor, order, regions, parts);
    fair_lock_give(&v->run->ranks->lock);
}

zero_status stored_end_sweep(const struct stored_view *v, zero_status status, struct zero_error *error) {
    if (status) return status;
    fair_lock_take(&v->run->ranks->lock);
    status = executor_end_sweep(v->run->executor);
    fair_lock_give(&v->run->ranks->lock);
    if (status) *error = *executor_error(v->run->executor);
    return status;
}

/* State k of a region from an element on, in one memory. Does nothing where there is no such state. */
static zero_status clear_run(const struct stored_view *v, uint32_t region, uint32_t k, uint64_t first,
                             uint64_t end, struct zero_error *error) {
    bool there = first < end && !is_others(v, region, k);
    void *at = there ? executor_state(v->run->executor, region, k, first) : NULL;
    uint64_t bytes = (end - first) * dtype_bytes(array_dtype(v, region, k));
    return at ? device_clear(v->run, at, bytes, error) : ZERO_OK;
}

/* Clears the state that is in memory. */
static zero_status clear_state(const struct stored_view *v, uint32_t region, uint32_t k,
                               struct zero_error *error) {
    const struct chunk_layout *layout = &v->blueprint->plan.layout;
    uint64_t device = chunk_layout_device(layout, region), end = chunk_layout_resident(layout, region);
    zero_status status = clear_run(v, region, k, 0, device, error);
    return status ? status : clear_run(v, region, k, device, end, error);
}

zero_status stored_clear(const struct stored_view *v, struct zero_error *error) {
    for (uint32_t i = 0; i < v->blueprint->o.model->regions; i++)
        for (uint32_t k = 0; k < v->blueprint->o.state_count && !v->blueprint->regions[i].frozen; k++)
            TRY(clear_state(v, i, k, error));
    fair_lock_take(&v->run->ranks->lock);
    zero_status status = executor_clear_chunks(v->run->executor);
    fair_lock_give(&v->run->ranks->lock);
    if (status) *error = *executor_error(v->run->executor);
    return status;
}
