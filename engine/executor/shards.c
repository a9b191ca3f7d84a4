/* The part of a region that a rank holds, and its address. */
#include "engine/executor/steps.h"

const struct region *policy_region(const struct executor *e, uint32_t region) {
    return &e->o.shape.policy->region[region];
}

struct precision precision_of(const struct executor_shape *o, uint32_t region) {
    return region_precision(&o->model->region[region], &o->precision);
}

struct precision moved_precision(const struct executor_shape *o, const struct operation *op) {
    bool fp32 = op->object == OBJECT_DIRECTION || op->object == OBJECT_NORM;
    return fp32 ? (struct precision){0} : precision_of(o, op->region);
}

uint64_t part_elements(const struct executor_shape *o, uint32_t region, struct placement placement) {
    return o->model->region[region].padded / placement_parts(placement, o->policy->mesh);
}

uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement) {
    return part_elements(&e->o.shape, region, placement);
}

void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype) {
    uint8_t *address = buffer_address(e, buffer);
    bool whole = ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL;
    if (!whole) return address;
    uint32_t part = placement_part(placement, e->o.shape.policy->mesh, e->o.rank);
    return address + part * shard_elements(e, ref.region, placement) * dtype_bytes(dtype);
}

struct placement grad_shard_placement(const struct region *r) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    return placement_equal(r->grad_step, whole) ? (struct placement){{SHARD, REPLICATE}} : r->grad_step;
}

float *part_of_directions(const struct executor *e, uint32_t region, uint32_t buffer,
                          struct placement placement) {
    uint32_t part = placement_part(placement, e->o.shape.policy->mesh, e->o.rank);
    return (float *)buffer_address(e, buffer) + part * shard_elements(e, region, placement);
}
