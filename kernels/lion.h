/* Lion (Chen et al. 2023, algorithm 2; DeepSpeed's Lion):
 *   p -= lr wd p;  p -= lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g.
 * The sign of zero is zero; the sign of NaN is NaN. */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"

enum {
    LION_LR,
    LION_DECAY /* lr * weight_decay */,
    LION_BETA1,
    LION_ONE_MINUS_BETA1,
    LION_BETA2,
    LION_ONE_MINUS_BETA2
};

KERNEL_INLINE void lion_element(float *weight, float *m, float *none, float gradient, const float *s) {
    float mixed = fmaf(s[LION_BETA1], *m, s[LION_ONE_MINUS_BETA1] * gradient);
    float negative = mixed < 0 ? -1.0f : mixed, sign = mixed > 0 ? 1.0f : negative;
    float decayed = fmaf(-s[LION_DECAY], *weight, *weight);
    *weight = canonical(fmaf(-s[LION_LR], sign, decayed));
    *m = canonical(fmaf(s[LION_BETA2], *m, s[LION_ONE_MINUS_BETA2] * gradient));
}
