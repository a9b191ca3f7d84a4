/* The scalars of one step that adam and adamw share. */
#pragma once

#include <math.h>

#include "kernels/adamw.h"
#include "kernels/optimizer.h"

/* base^exponent by squaring. Unlike pow(), it gives the same bits with every C library. The error is some units of
 * the last place. */
static inline double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

static inline void adam_scalars(const struct optimizer_params *params, uint64_t step, double decay,
                                struct optimizer_scalars *out) {
    bool correct = params->bias_correction;
    double correction1 = correct ? 1 - power(params->beta1, step) : 1;
    double correction2 = correct ? 1 - power(params->beta2, step) : 1;
    *out = (struct optimizer_scalars){.value = {
                                          [ADAM_BETA1] = (float)params->beta1,
                                          [ADAM_ONE_MINUS_BETA1] = (float)(1 - params->beta1),
                                          [ADAM_BETA2] = (float)params->beta2,
                                          [ADAM_ONE_MINUS_BETA2] = (float)(1 - params->beta2),
                                          [ADAM_EPS] = (float)params->eps,
                                          [ADAM_STEP] = (float)(params->lr / correction1),
                                          [ADAM_ROOT_SCALE] = (float)(1 / sqrt(correction2)),
                                          [ADAM_DECAY] = (float)decay,
                                      }};
}
