/* A range of a region's elements: the part that one rank has of it. */
#ifndef ZERO_ENGINE_STATE_PART_H
#define ZERO_ENGINE_STATE_PART_H

#include "engine/base/placement.h"
#include "engine/blueprint/blueprint.h"

struct part {
    uint64_t first, count; /* elements of the region */
    uint32_t index, parts;
};

static inline struct part part_of_rank(const struct blueprint *b, uint32_t rank, uint32_t region,
                                       struct placement placement) {
    uint32_t parts = placement_parts(placement, b->policy.mesh);
    uint32_t index = placement_part(placement, b->policy.mesh, rank);
    uint64_t count = b->o.model->region[region].padded / parts;
    return (struct part){index * count, count, index, parts};
}

static inline uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif
