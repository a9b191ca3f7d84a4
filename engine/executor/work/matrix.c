/* The optimizer on whole matrices: each rank changes the directions of the matrices that it owns and sets all other directions
 * to zero, so that the sum over the ranks has each owner's result. A discrete device does this work wherever the state is;
 * without one, the host does it, with all its threads. */
#include "engine/executor/work/work.h"

#include <string.h>

#include "engine/base/clock.h"
#include "kernels/device_work.h"
#include "kernels/matrix_step.h"

struct matrix_argument {
    struct executor *executor;
    float *directions, *scratch;
    uint32_t region, scalars;
};

_Static_assert(sizeof(struct matrix_argument) <= DEVICE_ARGUMENT_BYTES, "arguments are copied into the work");

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
        if (e->o.shape.matrix_owner[r->param[i]] != e->m.rank) continue;
        clear(a->directions, kept, p->offset);
        optimizer->matrix(a->directions + p->offset, p->shape[0], p->shape[1],
                          &e->scalars[a->scalars].group[p->scalars], a->scratch, e->m.threads);
        kept = p->offset + p->count;
    }
    clear(a->directions, kept, r->padded);
    atomic_fetch_add_explicit(&e->update_ns, clock_now_ns() - started, memory_order_relaxed);
}

static const struct kernel matrix_kernel = {
    .name = "matrices", .run = run_matrices, .argument_bytes = sizeof(struct matrix_argument)};

static zero_status change_on_host(struct executor *e, struct item *item, const struct matrix_argument *a,
                                  uint64_t scratch_bytes) {
    uint64_t bytes = e->o.shape.model->region[a->region].padded * sizeof(float);
    struct device_work work = {.reads = 1, .writes = 2, .read = {{a->directions, bytes}}};
    work.flops = executor_matrix_flops(&e->o.shape, a->region, e->m.rank);
    work.write[0] = work.read[0];
    work.write[1] = (struct device_span){a->scratch, scratch_bytes};
    return submit(e, item, &matrix_kernel, DEVICE_UPDATE, a, &work);
}

/* ---- on a discrete device ---- */

static zero_status clear_there(struct executor *e, struct item *item, const struct matrix_argument *a,
                               uint64_t first, uint64_t end) {
    if (first == end) return ZERO_OK;
    item->awaits = AWAITS_DEVICE;
    return e->m.device->ops->clear(e->m.device, DEVICE_UPDATE, a->directions + first,
                                   (end - first) * sizeof(float), &item->ticket, &e->error);
}

/* What the step reads and writes. */
static struct device_work step_work(const struct matrix_step *s) {
    uint64_t count = s->rows * s->columns, blocks = (count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS,
             floats = count * sizeof(float);
    struct device_work work = {.writes = 1, .write = {{s->out, floats}}};
    switch ((enum matrix_step_kind)s->kind) {
    case MATRIX_CAST:
        work.write[0].bytes = count * dtype_bytes(DTYPE_BF16);
        device_work_reads(&work, s->a, floats);
        break;
    case MATRIX_SQUARES:
        work.write[0].bytes = blocks * sizeof(double);
        device_work_reads(&work, s->a, count * dtype_bytes(s->bf16 ? DTYPE_BF16 : DTYPE_F32));
        break;
    case MATRIX_TOTAL:
        work.write[0].bytes = sizeof(double);
        device_work_reads(&work, s->a, count * sizeof(double));
        break;
    case MATRIX_PRODUCT:
        work.flops = 2 * (double)count * (double)s->inner;
        device_work_reads(&work, s->a, s->rows * s->inner * sizeof(float));
        device_work_reads(&work, s->b, s->inner * s->columns * sizeof(float));
        device_work_reads(&work, s->d, floats);
        break;
    default:
        device_work_reads(&work, s->a, floats);
        device_work_reads(&work, s->b, sizeof(double)); /* the norm */
    }
    return work;
}

static zero_status queue_steps(struct executor *e, struct item *item, const struct matrix_argument *a,
                               const struct model_param *p) {
    const struct optimizer *optimizer = region_optimizer(e, a->region);
    const struct optimizer_scalars *scalars = &e->scalars[a->scalars].group[p->scalars];
    _Alignas(16) uint8_t argument[MATRIX_ARGUMENT_BYTES];
    struct matrix_step step;
    for (uint32_t at = 0; optimizer->matrix_step(at, a->directions + p->offset, p->shape[0], p->shape[1],
                                                 scalars, a->scratch, &step);
         at++) {
        const struct kernel *kernel = matrix_step_kernel(&step, argument);
        struct device_work work = step_work(&step);
        TRY(submit(e, item, kernel, DEVICE_UPDATE, argument, &work));
    }
    return ZERO_OK;
}

/* Queues the work of one matrix at a time. item->moved: the parameters that are done, and those that another rank
 * owns. */
static zero_status change_on_device(struct executor *e, struct item *item, const struct matrix_argument *a) {
    const struct model *m = e->o.shape.model;
    const struct model_region *r = &m->region[a->region];
    uint32_t next = (uint32_t)item->moved;
    const struct model_param *before = next ? &m->param[r->param[next - 1]] : NULL;
    uint64_t kept = before ? before->offset + before->count : 0;
    while (next < r->params && e->o.shape.matrix_owner[r->param[next]] != e->m.rank) next++;
    if (next == r->params) return clear_there(e, item, a, kept, r->padded);
    const struct model_param *p = &m->param[r->param[next]];
    zero_status status = clear_there(e, item, a, kept, p->offset);
    item->moved = next + 1;
    repeat_from(item, change_matrices);
    return status ? status : queue_steps(e, item, a, p);
}

zero_status change_matrices(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct matrix_argument a = {.executor = e,
                                .directions = buffer_address(e, item->task->write[0]),
                                .scratch = buffer_address(e, item->task->write[1]),
                                .region = op->region,
                                .scalars = item->task->scalars};
    if (e->o.shape.terms->discrete) return change_on_device(e, item, &a);
    return change_on_host(e, item, &a, e->o.plan->buffer[item->task->write[1]].bytes);
}
