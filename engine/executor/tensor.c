/* The norms of whole tensors, where an optimizer needs them. The buffer of a region has those of each part that a reduction cuts the
 * region into, part by part: of each tensor, also of one that is elsewhere, which then has none there. So a sum over the parts adds the
 * same numbers in the same order at every stage. */
#include <string.h>

#include "engine/executor/steps.h"
#include "kernels/tensor_norms.h"

static uint64_t share(const struct executor_shape *o, uint32_t region) {
    return part_elements(o, region, grad_shard_placement(&o->policy->region[region]));
}

static uint32_t parts(const struct executor_shape *o, uint32_t region) {
    return placement_parts(grad_shard_placement(&o->policy->region[region]), o->policy->mesh);
}

uint64_t tensor_words(const struct executor_shape *o, uint32_t region) {
    return (uint64_t)parts(o, region) * o->model->region[region].params *
           (sizeof(struct tensor_norms) / sizeof(float));
}

void tensor_begin(struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms) {
    uint64_t params = e->o.shape.model->region[region].params, part = share(&e->o.shape, region),
             elements = e->o.plan->layout.elements[region];
    memset(norms + first / part * params, 0, elements / part * params * sizeof *norms);
    e->cut->count = 0;
}

uint64_t tensor_part_end(const struct executor *e, uint32_t region, uint64_t first) {
    uint64_t part = share(&e->o.shape, region);
    return (first / part + 1) * part;
}

/* Where a tensor ends in its region; gaps belong to the tensor before. */
static uint64_t tensor_end(const struct executor *e, uint32_t region, uint32_t param) {
    const struct model_region *r = &e->o.shape.model->region[region];
    return param + 1 < r->params ? e->o.shape.model->param[r->param[param + 1]].offset : r->padded;
}

void tensor_measure_run(struct executor *e, uint32_t region, uint32_t param, uint64_t first,
                        const struct optimizer_args *args, struct tensor_norms *norms) {
    uint64_t params = e->o.shape.model->region[region].params, part = share(&e->o.shape, region),
             end = first + args->count;
    bool ends = end % part == 0 || end == tensor_end(e, region, param);
    tensor_norms_measure(region_optimizer(e, region), args, first % part, ends, e->cut,
                         norms + first / part * params + param);
}

void tensor_trust(const struct executor *e, uint32_t region, uint32_t param, const struct tensor_norms *norms,
                  struct optimizer_scalars *scalars) {
    uint32_t params = e->o.shape.model->region[region].params;
    struct tensor_norms all = tensor_norms_total(norms + param, parts(&e->o.shape, region), params);
    optimizer_trust(region_optimizer(e, region), &all, scalars);
}
