/* The rows of an optimizer that the program brings: their functions call the program. */
#include <math.h>

#include "engine/base/host_call.h"
#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"
#include "kernels/isa.h"
#include "kernels/optimizer.h"

/* Split masters can represent only one NaN. */
static void one_nan(float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) x[i] = canonical(x[i]);
}

/* A call of one of the program's functions. */
struct call {
    const struct optimizer_caller *caller;
    enum { UPDATE, BEFORE, DIRECTION, TRUST, MATRIX, PREPARE } part;
    float *weight, *state0, *state1;
    const float *gradient;
    float gradient_scale;
    const float *scalars;
    uint64_t count;
    double norm[2];
    float *changed; /* scalars */
    uint64_t rows, columns, step;
    float *scratch;
    uint32_t threads;
    const struct optimizer_params *params;
};

static void make(void *made) {
    const struct call *k = made;
    const struct optimizer_caller *c = k->caller;
    switch (k->part) {
    case UPDATE:
        c->update(c->user, k->weight, k->state0, k->state1, k->gradient, k->gradient_scale, k->scalars,
                  k->count);
        break;
    case BEFORE:
        c->before(c->user, k->weight, k->state0, k->state1, k->gradient, k->gradient_scale, k->scalars,
                  k->count);
        break;
    case DIRECTION:
        c->direction(c->user, k->weight, k->state0, k->state1, k->scalars, k->count);
        break;
    case TRUST:
        c->trust(c->user, k->norm[0], k->norm[1], k->changed);
        break;
    case MATRIX:
        c->matrix(c->user, k->weight, k->rows, k->columns, k->scalars, k->scratch, k->threads);
        break;
    case PREPARE:
        c->prepare(c->owner, k->params, k->step, k->changed);
    }
}

static void call(struct call k) {
    static const char *const names[] = {
        [UPDATE] = "zero_optimizer.update",       [BEFORE] = "zero_optimizer.before",
        [DIRECTION] = "zero_optimizer.direction", [TRUST] = "zero_optimizer.trust",
        [MATRIX] = "zero_optimizer.matrix",       [PREPARE] = "zero_optimizer.prepare"};
    host_call(k.caller->fault, names[k.part], make, &k);
    if (k.weight) one_nan(k.weight, k.count);
}

#define ELEMENTS(function, PART, GRADIENT, SCALE)                                                            \
    static void function(float *restrict master, float *restrict state0, float *restrict state1,             \
                         const float *restrict gradient, float gradient_scale,                               \
                         const struct optimizer_scalars *scalars, uint64_t count) {                          \
        call((struct call){.caller = scalars->caller,                                                        \
                           .part = PART,                                                                     \
                           .weight = master,                                                                 \
                           .state0 = state0,                                                                 \
                           .state1 = state1,                                                                 \
                           .gradient = GRADIENT,                                                             \
                           .gradient_scale = SCALE,                                                          \
                           .scalars = scalars->value,                                                        \
                           .count = count});                                                                 \
    }
ELEMENTS(update, UPDATE, gradient, gradient_scale)
ELEMENTS(update_measured, UPDATE, NULL, 1) /* that of scope TENSOR */
ELEMENTS(before, BEFORE, gradient, gradient_scale)
ELEMENTS(direction, DIRECTION, NULL, 1)

static void trust(const struct tensor_norms *norms, struct optimizer_scalars *scalars) {
    call((struct call){.caller = scalars->caller,
                       .part = TRUST,
                       .norm = {sqrt(norms->weights), sqrt(norms->direction)},
                       .changed = scalars->value});
}

static void matrix(float *direction, uint64_t rows, uint64_t columns, const struct optimizer_scalars *scalars,
                   float *scratch, uint32_t threads) {
    float_env saved = float_env_enter();
    call((struct call){.caller = scalars->caller,
                       .part = MATRIX,
                       .weight = direction,
                       .rows = rows,
                       .columns = columns,
                       .count = rows * columns,
                       .scalars = scalars->value,
                       .scratch = scratch,
                       .threads = threads});
    float_env_leave(saved);
}

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){.caller = params->caller};
    call((struct call){.caller = params->caller,
                       .part = PREPARE,
                       .params = params,
                       .step = step,
                       .changed = out_scalars->value});
}

static void set_loop(struct optimizer *row, optimizer_loop *loop) {
    for (int isa = 0; isa < KERNEL_ISAS; isa++) row->update[isa] = loop;
}

void optimizer_of_caller(struct optimizer_rows *rows) {
    struct optimizer *row = &rows->row;
    bool tensor = row->scope == SCOPE_TENSOR;
    row->prepare = prepare;
    rows->before = rows->direction = *row;
    rows->before.scope = rows->direction.scope = SCOPE_ELEMENT;
    set_loop(row, tensor ? update_measured : update);
    set_loop(&rows->before, before);
    set_loop(&rows->direction, direction);
    if (row->scope == SCOPE_ELEMENT) return;
    row->before = &rows->before;
    if (!tensor) {
        row->matrix = matrix;
        return;
    }
    row->direction = &rows->direction;
    row->trust = trust;
}
