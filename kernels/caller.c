/* The rows of an optimizer that the program brings: their functions call the program. */
#include <math.h>

#include "engine/base/convert.h"
#include "engine/base/float_env.h"
#include "kernels/isa.h"
#include "kernels/optimizer.h"

/* Split masters can represent only one NaN. */
static void one_nan(float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) x[i] = canonical(x[i]);
}

static void update(float *restrict master, float *restrict state0, float *restrict state1,
                   const float *restrict gradient, float gradient_scale,
                   const struct optimizer_scalars *scalars, uint64_t count) {
    const struct optimizer_caller *c = scalars->caller;
    c->update(c->user, master, state0, state1, gradient, gradient_scale, scalars->value, count);
    one_nan(master, count);
}

/* That of scope TENSOR. */
static void update_measured(float *restrict master, float *restrict state0, float *restrict state1,
                            const float *restrict none, float gradient_scale,
                            const struct optimizer_scalars *scalars, uint64_t count) {
    const struct optimizer_caller *c = scalars->caller;
    c->update(c->user, master, state0, state1, NULL, 1, scalars->value, count);
    one_nan(master, count);
}

static void before(float *restrict master, float *restrict state0, float *restrict state1,
                   const float *restrict gradient, float gradient_scale,
                   const struct optimizer_scalars *scalars, uint64_t count) {
    const struct optimizer_caller *c = scalars->caller;
    c->before(c->user, master, state0, state1, gradient, gradient_scale, scalars->value, count);
    one_nan(master, count);
}

static void direction(float *restrict master, float *restrict state0, float *restrict state1,
                      const float *restrict none, float gradient_scale,
                      const struct optimizer_scalars *scalars, uint64_t count) {
    const struct optimizer_caller *c = scalars->caller;
    c->direction(c->user, master, state0, state1, scalars->value, count);
    one_nan(master, count);
}

static void trust(const struct tensor_norms *norms, struct optimizer_scalars *scalars) {
    const struct optimizer_caller *c = scalars->caller;
    c->trust(c->user, sqrt(norms->weights), sqrt(norms->direction), scalars->value);
}

static void matrix(float *direction, uint64_t rows, uint64_t columns, const struct optimizer_scalars *scalars,
                   float *scratch, uint32_t threads) {
    const struct optimizer_caller *c = scalars->caller;
    float_env saved = float_env_enter();
    c->matrix(c->user, direction, rows, columns, scalars->value, scratch, threads);
    float_env_leave(saved);
    one_nan(direction, rows * columns);
}

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){.caller = params->caller};
    params->caller->prepare(params->caller->owner, params, step, out_scalars->value);
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
