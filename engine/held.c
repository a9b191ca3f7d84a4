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

/* Masters and their parameters, in one chunk at a time, so that both pieces stay where they were found. */
struct pair {
    struct piece master, param;
};

static zero_status find_pair(zero_engine *e, uint32_t region, uint64_t at, uint64_t count, struct pair *out) {
    count = min64(count, e->plan.swap.chunk_elements - at % e->plan.swap.chunk_elements);
    zero_status status = find(e, region, e->state_count, at, count, &out->master);
    if (!status) status = find(e, region, HELD_PARAMS, at, out->master.count, &out->param);
    return status;
}

static zero_status read_masters(zero_engine *e, uint32_t region, uint64_t at, uint64_t count, float *out) {
    for (struct pair pair = {0}; count; at += pair.master.count, count -= pair.master.count) {
        zero_status status = find_pair(e, region, at, count, &pair);
        if (status) return status;
        master_join(out, pair.param.at, pair.master.at, pair.master.count);
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
            master_split(pair.param.at, pair.master.at, in, n);
        } else {
            memcpy(pair.master.at, in, n * sizeof *in);
            cast(pair.param.at, pair.param.dtype, in, DTYPE_F32, n);
        }
        if (pair.master.chunk || pair.param.chunk) executor_chunk_written(e->executor);
        in += n;
    }
    return ZERO_OK;
}

static zero_status write_array(zero_engine *e, uint32_t region, uint32_t array, uint64_t at, uint64_t count,
                               const float *in) {
    for (struct piece piece = {0}; count; at += piece.count, in += piece.count, count -= piece.count) {
        zero_status status = find(e, region, array, at, count, &piece);
        if (status) return status;
        cast(piece.at, piece.dtype, in, DTYPE_F32, piece.count);
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
        if (status) return status;
        cast(out, DTYPE_F32, piece.at, piece.dtype, piece.count);
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
    for (uint32_t i = 0; i < e->model.regions; i++)
        for (uint32_t k = 0; k < e->state_count && !e->regions[i].frozen; k++)
            memset(executor_state(e->executor, i, k), 0,
                   swap_resident_elements(&e->plan.swap, i) * dtype_bytes(e->precision.state));
    turn_take(&e->lock);
    zero_status status = executor_clear_state(e->executor);
    turn_give(&e->lock);
    return status ? engine_fail(e, executor_error(e->executor)) : ZERO_OK;
}
