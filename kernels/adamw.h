/* AdamW (Loshchilov and Hutter 2019, algorithm 2) as in torch.optim.AdamW, with decay apart from the gradient:
 *   p -= lr wd p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps). */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"

enum {
    ADAM_BETA1,
    ADAM_ONE_MINUS_BETA1, /* computed in double: 1 - (float)beta would lose a third of the digits of 1 - 0.999 */
    ADAM_BETA2,
    ADAM_ONE_MINUS_BETA2,
    ADAM_EPS,
    ADAM_STEP,       /* lr / (1 - beta1^t) */
    ADAM_ROOT_SCALE, /* 1 / sqrt(1 - beta2^t) */
    ADAM_DECAY,      /* adamw: lr * weight_decay; adam: weight_decay */
};

/* Updates the moments; adam, adamw and lamb share it. */
KERNEL_INLINE void adam_averages(float *m, float *v, float gradient, const float *s) {
    *m = canonical(fmaf(s[ADAM_BETA1], *m, s[ADAM_ONE_MINUS_BETA1] * gradient));
    *v = canonical(fmaf(s[ADAM_BETA2], *v, s[ADAM_ONE_MINUS_BETA2] * gradient * gradient));
}

/* The same, and returns the new weight; adam and adamw share it. */
KERNEL_INLINE float adam_moments(float weight, float *m, float *v, float gradient, const float *s) {
    adam_averages(m, v, gradient, s);
    float root = fmaf(sqrtf(*v), s[ADAM_ROOT_SCALE], s[ADAM_EPS]);
    return canonical(fmaf(-s[ADAM_STEP], *m / root, weight));
}

/* An fma subtracts the decay: 1 - lr * wd as one fp32 factor would keep only some bits of lr * wd. */
KERNEL_INLINE void adamw_element(float *weight, float *m, float *v, float gradient, const float *s) {
    *weight = adam_moments(fmaf(-s[ADAM_DECAY], *weight, *weight), m, v, gradient, s);
}
