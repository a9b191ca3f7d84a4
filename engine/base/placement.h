/* The placement of a unit's parameters, gradients or optimizer state on each axis of the rank mesh.
 * (The words come from PyTorch's DTensor, the axes from HSDP.) */
#pragma once

#include <stdint.h>

enum place {
    REPLICATE, /* every rank of the axis holds all of it */
    SHARD,     /* every rank holds its own 1/N */
    PARTIAL    /* every rank holds a summand of all of it */
};

enum axis { AXIS_SHARD, AXIS_REPLICATE, AXES };
enum {
    AXES_SHARD = 1 << AXIS_SHARD,
    AXES_REPLICATE = 1 << AXIS_REPLICATE,
    AXES_BOTH = AXES_SHARD | AXES_REPLICATE
};

struct placement {
    uint8_t axis[AXES]; /* enum place: on the shard axis, on the replicate axis */
};

static inline int placement_is(struct placement p, enum place shard, enum place replicate) {
    return p.axis[AXIS_SHARD] == shard && p.axis[AXIS_REPLICATE] == replicate;
}

static inline int placement_equal(struct placement a, struct placement b) {
    return placement_is(a, (enum place)b.axis[AXIS_SHARD], (enum place)b.axis[AXIS_REPLICATE]);
}

/* placement_parts: the number of equal parts into which a buffer with this placement is cut. placement_part: the part
 * that rank `rank` of the mesh holds. Ranks are numbered along the shard axis first. */
static inline uint32_t placement_parts(struct placement p, const uint32_t mesh[AXES]) {
    uint32_t parts = p.axis[AXIS_SHARD] == SHARD ? mesh[AXIS_SHARD] : 1;
    return p.axis[AXIS_REPLICATE] == SHARD ? parts * mesh[AXIS_REPLICATE] : parts;
}

static inline uint32_t placement_part(struct placement p, const uint32_t mesh[AXES], uint32_t rank) {
    if (p.axis[AXIS_REPLICATE] == SHARD) return rank;
    return p.axis[AXIS_SHARD] == SHARD ? rank % mesh[AXIS_SHARD] : 0;
}
