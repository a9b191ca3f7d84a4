/* The optimizer on whole matrices: each owner changes the directions of its own; all others leave zeros, so that a sum over the
 * ranks is the owners' numbers. The host does it, with all its threads. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/executor/steps.h"

struct matrix_argument {
    struct executor *executor;
    float *directions, *scratch;
    uint32_t region, scalars;
};

_Static_assert(sizeof(struct matrix_argument) <= DEVICE_ARGUMENT_BYTES, "arguments are copied into the work");

const struct optimizer *region_optimizer(const struct executor *e, uint32_t region) {
    return e->o.optimizer[region_other(&e->o.shape.model->region[region])];
}

static void clear(float *directions, uint64_t first, uint64_t end) {
    memset(directions + first, 0, (end - first) * sizeof *directions);
}

static void run_matrices(void *argument) {
    const struct matrix_argument *a = argument;
    struct executor *e = a->executor;
    const struct model *m = e->o.shape.model;
    const struct model_region *r = &m->region[a->region];
    const struct optimizer *optimizer = region_optimizer(e, a->region);
    uint64_t started = clock_now_ns(), kept = 0; /* kept: up to where directions are final */
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &m->param[r->param[i]];
        if (e->o.shape.matrix_owner[r->param[i]] != e->o.rank) continue;
        clear(a->directions, kept, p->offset);
        optimizer->matrix(a->directions + p->offset, p->shape[0], p->shape[1],
                          &e->scalars[a->scalars].group[p->scalars], a->scratch, e->o.threads);
        kept = p->offset + p->count;
    }
    clear(a->directions, kept, r->padded);
    atomic_fetch_add_explicit(&e->update_ns, clock_now_ns() - started, memory_order_relaxed);
}

static const struct kernel matrix_kernel = {
    .name = "matrices", .run = run_matrices, .argument_bytes = sizeof(struct matrix_argument)};

zero_status change_matrices(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct matrix_argument a = {.executor = e,
                                .directions = buffer_address(e, item->task->write[0]),
                                .scratch = buffer_address(e, item->task->write[1]),
                                .region = op->region,
                                .scalars = item->task->scalars};
    uint64_t bytes = e->o.shape.model->region[op->region].padded * sizeof(float);
    struct device_work work = {.reads = 1, .writes = 2, .read = {{a.directions, bytes}}};
    work.flops = executor_matrix_flops(&e->o.shape, op->region, e->o.rank);
    work.write[0] = work.read[0];
    work.write[1] = (struct device_span){a.scratch, e->o.plan->buffer[item->task->write[1]].bytes};
    return submit(e, item, &matrix_kernel, DEVICE_UPDATE, &a, &work);
}
