#include "engine/held.h"

#include <string.h>

struct part held_part(const zero_engine *e, uint32_t region, zero_kind kind) {
    const struct region *r = &e->regions[region];
    struct placement shard = {{SHARD, r->grad_step.axis[AXIS_REPLICATE]}};
    return own_part(e, region, kind == ZERO_GRAD ? shard : r->state);
}

static float *address(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first) {
    struct part part = held_part(e, region, kind);
    float *at = kind == ZERO_PARAM  ? param_part(e, region, &part)
                : kind == ZERO_GRAD ? executor_grad_shard(e->executor, region)
                                    : executor_state(e->executor, region, (uint32_t)(kind - ZERO_STATE0));
    return at + (first - part.first);
}

zero_status held_read(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                      float *out) {
    memcpy(out, address(e, region, kind, first), count * sizeof *out);
    return ZERO_OK;
}

zero_status held_write(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       const float *in) {
    memcpy(address(e, region, kind, first), in, count * sizeof *in);
    return ZERO_OK;
}
