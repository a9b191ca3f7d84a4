#include "engine/held.h"

#include <string.h>
#include <time.h>

#include "engine/saver.h"
#include "kernels/cast.h"
#include "kernels/state_format.h"

enum { CHUNK_WAIT_NS = 20 * 1000 };

struct part held_part(const zero_engine *e, uint32_t region, zero_kind kind) {
    const struct region *r = &e->regions[region];
    struct placement shard = {{SHARD, r->grad_step.axis[AXIS_REPLICATE]}};
    return own_part(e, region, kind == ZERO_GRAD ? shard : r->state);
}

/* What there is of a region: the optimizer's arrays, by index, its states and then the masters, where they are not
 * the parameters; parameters; the reduced gradient. */
enum { HELD_PARAMS = OPTIMIZER_STATES_MAX + 1, HELD_GRADIENT };

/* Frozen parameters have no masters. */
static bool keeps_masters(const zero_engine *e, uint32_t region) {
    return precision_keeps_masters(&e->precision) && !e->regions[region].frozen;
}

static uint32_t array_of(const zero_engine *e, uint32_t region, zero_kind kind) {
    if (kind == ZERO_GRAD) return HELD_GRADIENT;
    if (kind != ZERO_PARAM) return (uint32_t)(kind - ZERO_STATE0);
    return keeps_masters(e, region) ? e->state_count : HELD_PARAMS;
}

/* The lower halves of split masters are moved as bf16 would be, and never cast. */
static enum dtype array_dtype(const zero_engine *e, uint32_t array) {
    if (array == HELD_PARAMS) return e->precision.compute;
    if (array == HELD_GRADIENT) return e->precision.reduced;
    if (array < e->state_count) return e->precision.state;
    return e->precision.split ? DTYPE_BF16 : DTYPE_F32;
}

/* Elements from one place: in memory, or in the slot that holds their chunk. */
struct piece {
    void *at;
    enum dtype dtype;
    uint64_t count;
    bool chunk;
};

static struct piece piece_at(void *data, enum dtype dtype, uint64_t first, uint64_t count, bool chunk) {
    return (struct piece){(uint8_t *)data + first * dtype_bytes(dtype), dtype, count, chunk};
}

static void *address(const zero_engine *e, uint32_t region, uint32_t array) {
    struct part part = held_part(e, region, ZERO_PARAM);
    if (array == HELD_PARAMS) return param_part(e, region, &part);
    if (array == HELD_GRADIENT) return executor_grad_shard(e->executor, region);
    if (array == e->state_count) return executor_master(e->executor, region);
    return executor_state(e->executor, region, array);
}

/* How many of the shard's elements of this array are in memory: a prefix. */
static uint64_t in_memory(const zero_engine *e, uint32_t region, uint32_t array) {
    const struct swap *swap = &e->plan.swap;
    if (array == HELD_PARAMS) return swap->region[region].params ? 0 : UINT64_MAX;
    return array == HELD_GRADIENT ? UINT64_MAX : swap_resident_elements(swap, region);
}

/* Without the lock while it waits: others may be moving, where a save in the background reads. Its failure is the
 * executor's, which all others meet at their next call. */
static zero_status load_chunk(zero_engine *e, uint32_t region, uint32_t index, uint8_t **out) {
    for (bool there = false;;) {
        struct zero_error error;
        turn_take(&e->lock);
        zero_status status = executor_chunk_poll(e->executor, region, index, out, &there);
        error = *executor_error(e->executor);
        turn_give(&e->lock);
        if (status) return saver_is_me(e) ? refuse(status, "%s", error.message) : engine_fail(e, &error);
        if (there) return ZERO_OK;
        nanosleep(&(struct timespec){.tv_nsec = CHUNK_WAIT_NS}, NULL);
    }
}

/* Finds the element `at` of the shard, and what follows it in the same place. */
static zero_status find(zero_engine *e, uint32_t region, uint32_t array, uint64_t at, uint64_t count,
                        struct piece *out) {
    const struct swap *swap = &e->plan.swap;
    enum dtype dtype = array_dtype(e, array);
    uint64_t resident = in_memory(e, region, array);
    if (at < resident) {
        *out = piece_at(address(e, region, array), dtype, at, min64(count, resident - at), false);
        return ZERO_OK;
    }
    uint32_t index = (uint32_t)(at / swap->chunk_elements);
    struct chunk c = swap_chunk(swap, region, index);
    uint8_t *slot;
    zero_status status = load_chunk(e, region, index, &slot);
    if (status) return status;
    slot += array == HELD_PARAMS ? swap->slot_param : c.array[array];
    *out = piece_at(slot, dtype, at - c.first, min64(count, c.first + c.count - at), true);
    return ZERO_OK;
}

/* ---- what is the device's passes through memory of the plan, step by step ---- */

enum { STEP_ELEMENTS = PIECE_BYTES / (2 * sizeof(float)) }; /* of two pieces at once */

/* `half`: of the bounce. */
static void *bounce(const zero_engine *e, int half) {
    return e->bounce[saver_is_me(e)] + half * (PIECE_BYTES / 2);
}

static struct piece part_of(const struct piece *p, uint64_t first, uint64_t count) {
    return piece_at(p->at, p->dtype, first, count, p->chunk);
}

/* Where the host finds a step's elements: in place, or in the bounce. */
static void *host_place(const zero_engine *e, const struct piece *step, int half) {
    return reach_is_device(e, step->at) ? bounce(e, half) : step->at;
}

static zero_status bring(zero_engine *e, const struct piece *step, void *place) {
    if (place == step->at) return ZERO_OK;
    return reach_copy(e, place, step->at, step->count * dtype_bytes(step->dtype));
}

static zero_status take_back(zero_engine *e, const struct piece *step, const void *place) {
    if (place == step->at) return ZERO_OK;
    return reach_copy(e, step->at, place, step->count * dtype_bytes(step->dtype));
}

static zero_status read_piece(zero_engine *e, const struct piece *p, float *out) {
    zero_status status = ZERO_OK;
    for (uint64_t i = 0, n; i < p->count && !status; i += n) {
        n = reach_is_device(e, p->at) ? min64(p->count - i, STEP_ELEMENTS) : p->count;
        struct piece step = part_of(p, i, n);
        void *place = host_place(e, &step, 0);
        status = bring(e, &step, place);
        if (!status) cast(out + i, DTYPE_F32, place, p->dtype, n);
    }
    return status;
}

static zero_status write_piece(zero_engine *e, const struct piece *p, const float *in) {
    zero_status status = ZERO_OK;
    for (uint64_t i = 0, n; i < p->count && !status; i += n) {
        n = reach_is_device(e, p->at) ? min64(p->count - i, STEP_ELEMENTS) : p->count;
        struct piece step = part_of(p, i, n);
        void *place = host_place(e, &step, 0);
        cast(place, p->dtype, in + i, DTYPE_F32, n);
        status = take_back(e, &step, place);
    }
    return status;
}

/* Masters and their parameters, a step of one chunk at a time, so that both pieces stay where they were found. */
struct pair {
    struct piece master, param;
    void *master_place, *param_place;
};

static zero_status find_pair(zero_engine *e, uint32_t region, uint64_t at, uint64_t count, struct pair *out) {
    count = min64(count, e->plan.swap.chunk_elements - at % e->plan.swap.chunk_elements);
    if (e->separate) count = min64(count, STEP_ELEMENTS);
    zero_status status = find(e, region, e->state_count, at, count, &out->master);
    if (!status) status = find(e, region, HELD_PARAMS, at, out->master.count, &out->param);
    if (status) return status;
    out->master_place = host_place(e, &out->master, 0);
    out->param_place = host_place(e, &out->param, 1);
    return ZERO_OK;
}

static zero_status read_masters(zero_engine *e, uint32_t region, uint64_t at, uint64_t count, float *out) {
    for (struct pair pair = {0}; count; at += pair.master.count, count -= pair.master.count) {
        zero_status status = find_pair(e, region, at, count, &pair);
        if (!status) status = bring(e, &pair.master, pair.master_place);
        if (!status) status = bring(e, &pair.param, pair.param_place);
        if (status) return status;
        master_join(out, pair.param_place, pair.master_place, pair.master.count);
        out += pair.master.count;
    }
    return ZERO_OK;
}

static zero_status write_masters(zero_engine *e, uint32_t region, uint64_t at, uint64_t count,
                                 const float *in) {
    for (struct pair pair = {0}; count; at += pair.master.count, count -= pair.master.count) {
        zero_status status = find_pair(e, region, at, count, &pair);
        if (status) return status;
        uint64_t n = pair.master.count;
        if (e->precision.split) {
            master_split(pair.param_place, pair.master_place, in, n);
        } else {
            memcpy(pair.master_place, in, n * sizeof *in);
            cast(pair.param_place, pair.param.dtype, in, DTYPE_F32, n);
        }
        status = take_back(e, &pair.master, pair.master_place);
        if (!status) status = take_back(e, &pair.param, pair.param_place);
        if (status) return status;
        if (pair.master.chunk || pair.param.chunk) executor_chunk_written(e->executor);
        in += n;
    }
    return ZERO_OK;
}

static zero_status write_array(zero_engine *e, uint32_t region, uint32_t array, uint64_t at, uint64_t count,
                               const float *in) {
    for (struct piece piece = {0}; count; at += piece.count, in += piece.count, count -= piece.count) {
        zero_status status = find(e, region, array, at, count, &piece);
        if (!status) status = write_piece(e, &piece, in);
        if (status) return status;
        if (piece.chunk) executor_chunk_written(e->executor);
    }
    return ZERO_OK;
}

zero_status held_read(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                      float *out) {
    uint64_t at = first - held_part(e, region, kind).first;
    uint32_t array = array_of(e, region, kind);
    if (array == e->state_count && e->precision.split) return read_masters(e, region, at, count, out);
    for (struct piece piece = {0}; count; at += piece.count, out += piece.count, count -= piece.count) {
        zero_status status = find(e, region, array, at, count, &piece);
        if (!status) status = read_piece(e, &piece, out);
        if (status) return status;
    }
    return ZERO_OK;
}

zero_status held_write(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       const float *in) {
    turn_take(&e->lock);
    executor_refetch(e->executor);
    turn_give(&e->lock);
    uint64_t at = first - held_part(e, region, kind).first;
    uint32_t array = array_of(e, region, kind);
    if (keeps_masters(e, region) && kind == ZERO_PARAM) return write_masters(e, region, at, count, in);
    zero_status status = write_array(e, region, array, at, count, in);
    bool copy = kind == ZERO_PARAM && precision_copies_masters(&e->precision) && !e->regions[region].frozen;
    return copy && !status ? write_array(e, region, e->state_count, at, count, in) : status;
}

/* Parameters from the masters in a record. */
zero_status held_restore(zero_engine *e, uint32_t region) {
    const struct swap *swap = &e->plan.swap;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < swap->region[region].chunks && !status; i++) {
        struct chunk c = swap_chunk(swap, region, i);
        for (uint64_t at = c.first, count; at < c.first + c.count && !status; at += count) {
            struct piece master;
            count = min64(c.first + c.count - at, PIECE_BYTES / sizeof(float));
            status = find(e, region, e->state_count, at, count, &master);
            if (status) break;
            memcpy(e->piece, master.at, count * sizeof(float));
            status = write_array(e, region, HELD_PARAMS, at, count, (const float *)(const void *)e->piece);
        }
    }
    return status;
}

zero_status held_clear_state(zero_engine *e) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < e->model.regions; i++)
        for (uint32_t k = 0; k < e->state_count && !e->regions[i].frozen && !status; k++)
            status = reach_clear(e, executor_state(e->executor, i, k),
                                 swap_resident_elements(&e->plan.swap, i) * dtype_bytes(e->precision.state));
    if (status) return status;
    turn_take(&e->lock);
    status = executor_clear_state(e->executor);
    turn_give(&e->lock);
    return status ? engine_fail(e, executor_error(e->executor)) : ZERO_OK;
}
