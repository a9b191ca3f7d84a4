/* The row for an optimizer that the program brings: its functions call the program. */
#include "engine/base/convert.h"
#include "kernels/isa.h"
#include "kernels/optimizer.h"

static void update(float *restrict master, float *restrict state0, float *restrict state1,
                   const float *restrict gradient, float gradient_scale,
                   const struct optimizer_scalars *scalars, uint64_t count) {
    const struct optimizer_caller *c = scalars->caller;
    c->update(c->user, master, state0, state1, gradient, gradient_scale, scalars->value, count);
    /* split masters can represent only one NaN */
    for (uint64_t i = 0; i < count; i++) master[i] = canonical(master[i]);
}

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){.caller = params->caller};
    params->caller->prepare(params->caller->user, params, step, out_scalars->value);
}

struct optimizer optimizer_of_caller(const char *name, uint32_t state_count, const char *const *state_names,
                                     const struct optimizer_params *defaults) {
    struct optimizer row = {
        .name = name, .title = name, .state_count = state_count, .defaults = *defaults, .prepare = prepare};
    for (uint32_t k = 0; k < state_count; k++) row.state_names[k] = state_names[k];
    for (int isa = 0; isa < KERNEL_ISAS; isa++) row.update[isa] = update;
    return row;
}
