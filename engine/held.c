#include "engine/held.h"

#include <string.h>

struct part held_part(const zero_engine *e, uint32_t region, zero_kind kind) {
    const struct region *r = &e->regions[region];
    struct placement shard = {{SHARD, r->grad_step.axis[AXIS_REPLICATE]}};
    return own_part(e, region, kind == ZERO_GRAD ? shard : r->state);
}

/* Elements from one place: in memory, or in the slot that holds their chunk. */
struct piece {
    float *at;
    uint64_t count;
    bool chunk;
};

static float *address(const zero_engine *e, uint32_t region, zero_kind kind, const struct part *part) {
    switch (kind) {
    case ZERO_PARAM:
        return param_part(e, region, part);
    case ZERO_GRAD:
        return executor_grad_shard(e->executor, region);
    case ZERO_STATE0:
    case ZERO_STATE1:
        return executor_state(e->executor, region, (uint32_t)(kind - ZERO_STATE0));
    }
    return NULL;
}

/* How many of the shard's elements of this kind are in memory: a prefix. */
static uint64_t in_memory(const zero_engine *e, uint32_t region, zero_kind kind) {
    const struct swap *swap = &e->plan.swap;
    if (kind == ZERO_PARAM) return swap->region[region].params ? 0 : UINT64_MAX;
    return kind == ZERO_GRAD ? UINT64_MAX : swap_resident_elements(swap, region);
}

/* Finds the element `at` of the shard, and what follows it in the same place. */
static zero_status find(zero_engine *e, uint32_t region, zero_kind kind, uint64_t at, uint64_t count,
                        struct piece *out) {
    const struct swap *swap = &e->plan.swap;
    struct part part = held_part(e, region, kind);
    uint64_t resident = in_memory(e, region, kind);
    if (at < resident) {
        *out = (struct piece){address(e, region, kind, &part) + at, min64(count, resident - at), false};
        return ZERO_OK;
    }
    uint32_t index = (uint32_t)(at / swap->chunk_elements);
    struct chunk c = swap_chunk(swap, region, index);
    uint8_t *slot;
    turn_take(&e->lock);
    zero_status status = executor_chunk(e->executor, region, index, &slot);
    turn_give(&e->lock);
    if (status) return engine_fail(e, executor_error(e->executor));
    uint64_t offset = kind == ZERO_PARAM ? swap->slot_param : (uint64_t)(kind - ZERO_STATE0) * c.state_stride;
    float *first = (float *)(void *)(slot + offset);
    *out = (struct piece){first + (at - c.first), min64(count, c.first + c.count - at), true};
    return ZERO_OK;
}

zero_status held_read(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                      float *out) {
    uint64_t at = first - held_part(e, region, kind).first;
    for (struct piece piece = {0}; count; at += piece.count, out += piece.count, count -= piece.count) {
        zero_status status = find(e, region, kind, at, count, &piece);
        if (status) return status;
        memcpy(out, piece.at, piece.count * sizeof *out);
    }
    return ZERO_OK;
}

zero_status held_write(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       const float *in) {
    uint64_t at = first - held_part(e, region, kind).first;
    for (struct piece piece = {0}; count; at += piece.count, in += piece.count, count -= piece.count) {
        zero_status status = find(e, region, kind, at, count, &piece);
        if (status) return status;
        memcpy(piece.at, in, piece.count * sizeof *in);
        if (piece.chunk) executor_chunk_written(e->executor);
    }
    return ZERO_OK;
}

zero_status held_clear_state(zero_engine *e) {
    for (uint32_t i = 0; i < e->model.regions; i++)
        for (uint32_t k = 0; k < e->state_count && !e->regions[i].frozen; k++)
            memset(executor_state(e->executor, i, k), 0,
                   swap_resident_elements(&e->plan.swap, i) * sizeof(float));
    turn_take(&e->lock);
    zero_status status = executor_clear_state(e->executor);
    turn_give(&e->lock);
    return status ? engine_fail(e, executor_error(e->executor)) : ZERO_OK;
}
