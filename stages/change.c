/* Changes of placement: the operations of every stage come from placement_change. */
#include "stages/stage.h"

/* The axes, as bits, that change from the place `from` to one of the places in `to` (a mask of 1 << place). An axis
 * of one rank never changes, with one exception: the shard axis always counts, so that a world of one rank runs the
 * same operations. */
static uint8_t changing(struct placement a, struct placement b, const uint32_t mesh[AXES], enum place from,
                        unsigned to) {
    uint8_t axes = 0;
    for (int i = 0; i < AXES; i++) {
        if (i != AXIS_SHARD && mesh[i] == 1) continue;
        if (a.axis[i] == from && (to & 1u << b.axis[i])) axes |= (uint8_t)(1u << i);
    }
    return axes;
}

uint32_t placement_change(struct placement from, struct placement to, const uint32_t mesh[AXES],
                          struct placement_step out[4]) {
    uint32_t count = 0;
    uint8_t to_replicate = changing(from, to, mesh, PARTIAL, 1u << REPLICATE);
    uint8_t scatter = changing(from, to, mesh, PARTIAL, 1u << SHARD) | (to_replicate & AXES_SHARD);
    uint8_t gather = changing(from, to, mesh, SHARD, 1u << REPLICATE) | (to_replicate & AXES_SHARD);
    if (scatter) out[count++] = (struct placement_step){OP_REDUCE, scatter};
    if (to_replicate & AXES_REPLICATE) out[count++] = (struct placement_step){OP_REDUCE, AXES_REPLICATE};
    if (gather) out[count++] = (struct placement_step){OP_GATHER, gather};
    if (changing(from, to, mesh, REPLICATE, 1u << SHARD))
        out[count++] = (struct placement_step){OP_RELEASE, 0};
    return count;
}
