/* The norms of whole tensors, where an optimizer needs them. A reduction cuts a region into parts. The region's buffer has, part by
 * part, the norms of every tensor of the region, also of tensors without elements in that part. So the sum over the parts adds the
 * same numbers in the same order at every stage. */
#include "engine/executor/work/work.h"

#include <string.h>

#include "kernels/device_work.h"
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

/* The two places for an unfinished block that earlier calls have begun, in memory that the device also reaches. The
 * place whose count is not 0 holds the block. */
static struct tensor_cut *cuts_of(const struct executor *e) {
    return executor_address(e, (struct buffer_ref){BUFFER_TENSOR_CUT, 0});
}

static struct tensor_cut *cut_of(const struct executor *e) {
    struct tensor_cut *cuts = cuts_of(e);
    return cuts + (cuts[1].count > 0);
}

void tensor_clear(const struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms) {
    uint64_t params = e->o.shape.model->region[region].params, part = share(&e->o.shape, region),
             elements = e->o.plan->layout.elements[region];
    if (!e->m.without_data)
        memset(norms + first / part * params, 0, elements / part * params * sizeof *norms);
}

void tensor_begin(struct executor *e, uint32_t region, uint64_t first, struct tensor_norms *norms) {
    tensor_clear(e, region, first, norms);
    for (uint32_t k = 0; k < TENSOR_CUTS; k++) cuts_of(e)[k].count = 0;
}

uint64_t tensor_part_end(const struct executor *e, uint32_t region, uint64_t first) {
    uint64_t part = share(&e->o.shape, region);
    return (first / part + 1) * part;
}

uint64_t tensor_end(const struct executor *e, uint32_t region, uint32_t param) {
    const struct model *model = e->o.shape.model;
    const struct model_param *p = &model->param[model->region[region].param[param]];
    return p->offset + p->count;
}

/* This rank's part has no more of the tensor. */
static bool ends_tensor(const struct executor *e, uint32_t region, uint32_t param,
                        const struct optimizer_args *args) {
    uint64_t end = args->first + args->count;
    return end % share(&e->o.shape, region) == 0 || end == tensor_end(e, region, param);
}

static struct tensor_norms *norms_at(const struct executor *e, uint32_t region, uint32_t param,
                                     uint64_t first, struct tensor_norms *norms) {
    return norms + first / share(&e->o.shape, region) * e->o.shape.model->region[region].params + param;
}

void tensor_measure_run(struct executor *e, uint32_t region, uint32_t param, uint64_t first,
                        const struct optimizer_args *args, struct tensor_norms *norms) {
    tensor_norms_measure(region_optimizer(e, region), args, first % share(&e->o.shape, region),
                         ends_tensor(e, region, param, args), cut_of(e),
                         norms_at(e, region, param, first, norms));
}

/* ---- on a discrete device ---- */

/* `blocks` end here; the last elements, `rest`, are in another block. */
static struct device_work measure_work(const struct optimizer_measure_argument *m, uint64_t blocks,
                                       uint64_t rest) {
    const struct optimizer_args *a = &m->args;
    struct device_work work = {0};
    uint64_t into = m->ends == m->begins ? m->held : 0;
    device_work_reads(&work, a->gradient, a->count * dtype_bytes(a->gradient_dtype));
    device_work_reads(&work, a->master, a->count * sizeof *a->master);
    device_work_reads(&work, a->master_low, a->count * sizeof *a->master_low);
    if (a->master_low) device_work_reads(&work, a->out, a->count * dtype_bytes(a->out_dtype));
    for (int k = 0; k < OPTIMIZER_STATES_MAX && a->state[k]; k++) {
        device_work_reads(&work, a->state[k], a->count * dtype_bytes(a->state_dtype));
        device_work_writes(&work, a->state[k], a->count * dtype_bytes(a->state_dtype));
    }
    if (blocks && m->held) device_work_reads(&work, m->begins->weights, m->held * sizeof *m->begins->weights);
    if (blocks && m->held)
        device_work_reads(&work, m->begins->direction, m->held * sizeof *m->begins->direction);
    device_work_writes(&work, m->sums, blocks * sizeof(struct tensor_norms));
    if (rest) device_work_writes(&work, m->ends->weights + into, rest * sizeof *m->ends->weights);
    if (rest) device_work_writes(&work, m->ends->direction + into, rest * sizeof *m->ends->direction);
    return work;
}

static zero_status queue_total(struct executor *e, struct item *item, const double *sums, uint64_t blocks,
                               double *total) {
    struct norm_total_argument all = {.sums = sums, .total = total, .count = blocks, .add = true};
    struct device_work work = {0};
    device_work_reads(&work, sums, blocks * sizeof *sums);
    device_work_reads(&work, total, sizeof *total);
    device_work_writes(&work, total, sizeof *total);
    return submit(e, item, &kernel_norm_total, DEVICE_UPDATE, &all, &work);
}

/* Sets the unfinished block that this call continues, and the one that it leaves. A block that stays unfinished keeps its place;
 * else the call reads one place and writes the other. */
static void take_cut(struct executor *e, struct optimizer_measure_argument *m, uint64_t blocks,
                     uint64_t rest) {
    if (!e->offload.hands_over || e->m.without_data) return;
    struct tensor_cut *cuts = cuts_of(e), *from = cut_of(e), *to = blocks ? &cuts[from == cuts] : from;
    m->held = (uint32_t)from->count;
    m->begins = m->held ? from : NULL;
    m->ends = rest ? to : NULL;
    from->count = 0;
    to->count = rest ? rest + (to == from) * m->held : 0;
}

zero_status tensor_measure_queue(struct executor *e, struct item *item, uint32_t param,
                                 const struct optimizer_args *args, struct tensor_norms *norms) {
    uint32_t region = item->task->op.region;
    const struct optimizer *optimizer = region_optimizer(e, region);
    uint64_t skip = args->first % share(&e->o.shape, region) % NORM_BLOCK_ELEMENTS,
             behind = (skip + args->count) % NORM_BLOCK_ELEMENTS,
             rest = ends_tensor(e, region, param, args) ? 0
                    : behind < args->count              ? behind
                                                        : args->count,
             blocks = tensor_norms_blocks(skip, args->count) - (rest > 0);
    double *sums = executor_address(e, (struct buffer_ref){BUFFER_TENSOR_SUMS, 0});
    struct tensor_norms *out = norms_at(e, region, param, args->first, norms);
    struct optimizer_measure_argument measure = {.args = *args,
                                                 .scalars = *args->scalars,
                                                 .optimizer = optimizer,
                                                 .sums = sums,
                                                 .skip = (uint32_t)skip};
    take_cut(e, &measure, blocks, rest);
    struct device_work work = measure_work(&measure, blocks, measure.ends ? rest : 0);
    measure.args.scalars = NULL; /* a pointer into the host's memory */
    zero_status status = submit(e, item, kernel_optimizer_measure(optimizer), DEVICE_UPDATE, &measure, &work);
    if (!status) status = queue_total(e, item, sums, blocks, &out->weights);
    return status ? status : queue_total(e, item, sums + blocks, blocks, &out->direction);
}

void tensor_trust(const struct executor *e, uint32_t region, uint32_t param, const struct tensor_norms *norms,
                  struct optimizer_scalars *scalars) {
    uint32_t params = e->o.shape.model->region[region].params;
    if (e->m.without_data) return;
    struct tensor_norms all = tensor_norms_total(norms + param, parts(&e->o.shape, region), params);
    optimizer_trust(region_optimizer(e, region), &all, scalars);
}
