/* What the executor knows of a region: its policy, types, optimizer and unit, and the sizes of its parts. */
#include "engine/executor/executor_internal.h"

const struct region *policy_region(const struct executor *e, uint32_t region) {
    return &e->o.shape.policy->region[region];
}

const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref) {
    const struct region *r =
        ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL ? policy_region(e, ref.region) : NULL;
    bool lent = r && (ref.kind == BUFFER_PARAM_FULL ? r->lent : r->grad_lent);
    return lent ? &e->o.shape.model->region[ref.region] : NULL;
}

struct precision precision_of(const struct executor_shape *o, uint32_t region) {
    return region_precision(&o->model->region[region], &o->terms->precision);
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

struct placement grad_shard_placement(const struct region *r) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    return placement_equal(r->grad_step, whole) ? (struct placement){{SHARD, REPLICATE}} : r->grad_step;
}

const struct optimizer *region_optimizer(const struct executor *e, uint32_t region) {
    return e->o.optimizer[region_other(&e->o.shape.model->region[region])];
}

const char *unit_name(const struct executor *e, uint32_t region) {
    return e->o.shape.model->unit[e->o.shape.model->region[region].unit]->name;
}
