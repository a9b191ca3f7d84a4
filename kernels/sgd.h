/* Stochastic gradient descent as in torch.optim.SGD, with L2 decay and heavy-ball or Nesterov momentum (Sutskever et
 * al. 2013):
 *   g += wd p;  b = momentum b + (1 - dampening) g (b = g in the first step);
 *   p -= lr (nesterov ? g + momentum b : b). */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"

enum { SGD_LR, SGD_DECAY, SGD_MOMENTUM, SGD_GRADIENT /* 1 - dampening; 1 in the first step */, SGD_NESTEROV };

KERNEL_INLINE void sgd_plain(float *weight, float *none0, float *none1, float gradient, const float *s) {
    *weight = canonical(fmaf(-s[SGD_LR], fmaf(s[SGD_DECAY], *weight, gradient), *weight));
}

KERNEL_INLINE void sgd_momentum(float *weight, float *buffer, float *none, float gradient, const float *s) {
    float g = fmaf(s[SGD_DECAY], *weight, gradient);
    *buffer = canonical(fmaf(s[SGD_MOMENTUM], *buffer, s[SGD_GRADIENT] * g));
    *weight = canonical(fmaf(-s[SGD_LR], *buffer, *weight));
}

KERNEL_INLINE void sgd_nesterov(float *weight, float *buffer, float *none, float gradient, const float *s) {
    float g = fmaf(s[SGD_DECAY], *weight, gradient);
    *buffer = canonical(fmaf(s[SGD_MOMENTUM], *buffer, s[SGD_GRADIENT] * g));
    *weight = canonical(fmaf(-s[SGD_LR], fmaf(s[SGD_MOMENTUM], *buffer, g), *weight));
}
