/* Which elements of a region this rank holds, and where; not for others. */
#ifndef ZERO_ENGINE_PART_H
#define ZERO_ENGINE_PART_H

#include "engine/engine_internal.h"

struct part {
    uint64_t first, count; /* elements of the region */
    uint32_t index, parts;
};

static inline struct part own_part(const zero_engine *e, uint32_t region, struct placement placement) {
    uint32_t parts = placement_parts(placement, e->policy.mesh);
    uint32_t index = placement_part(placement, e->policy.mesh, e->rank);
    uint64_t count = e->model.region[region].padded / parts;
    return (struct part){index * count, count, index, parts};
}

/* The address of the region's element `first` of this rank's part of the parameters, where they rest: never where they are
 * gathered to, which a save in the background must not look at. NULL: on a drive. */
static inline void *param_part(const zero_engine *e, uint32_t region, const struct part *part) {
    struct buffer_ref full = {BUFFER_PARAM_FULL, (uint16_t)region},
                      shard = {BUFFER_PARAM_SHARD, (uint16_t)region};
    if (plan_fixed(&e->plan, full) == NO_BUFFER) return executor_address(e->executor, shard);
    return (uint8_t *)executor_address(e->executor, full) + part->first * dtype_bytes(e->precision.compute);
}

static inline uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif
