/* LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2) as in DeepSpeed's FusedLamb:
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / c1 / (sqrt(v) / sqrt(c2) + eps) + wd p;
 *   p -= lr ratio u,  ratio = min(max(|p| / |u|, min_coeff), max_coeff), of a whole tensor; 1 where one of the norms is 0. */
#pragma once

#include "kernels/adamw.h"

/* Behind those of adam, whose ADAM_DECAY is weight_decay here. */
enum {
    LAMB_MEAN_SCALE = ADAM_DECAY + 1, /* 1 / (1 - beta1^t) */
    LAMB_LR,
    LAMB_MIN,
    LAMB_MAX,
    LAMB_STEP /* lr times the ratio of a tensor */
};

KERNEL_INLINE float lamb_update(float weight, float m, float v, const float *s) {
    float root = fmaf(sqrtf(v), s[ADAM_ROOT_SCALE], s[ADAM_EPS]);
    return fmaf(s[ADAM_DECAY], weight, m * s[LAMB_MEAN_SCALE] / root);
}

KERNEL_INLINE void lamb_moments(float *weight, float *m, float *v, float gradient, const float *s) {
    adam_averages(m, v, gradient, s);
}

KERNEL_INLINE void lamb_direction(float *weight, float *m, float *v, float none, const float *s) {
    *weight = canonical(lamb_update(*weight, *m, *v, s));
}

KERNEL_INLINE void lamb_apply(float *weight, float *m, float *v, float none, const float *s) {
    *weight = canonical(fmaf(-s[LAMB_STEP], lamb_update(*weight, *m, *v, s), *weight));
}
