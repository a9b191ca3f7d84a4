/* Adagrad (Duchi, Hazan and Singer 2011) as in torch.optim.Adagrad; DeepSpeed's is the same with lr_decay 0:
 *   g += wd p;  h += g^2;  p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(h) + eps). */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"

enum { ADAGRAD_LR, ADAGRAD_DECAY, ADAGRAD_EPS };

KERNEL_INLINE void adagrad_element(float *weight, float *sum, float *none, float gradient, const float *s) {
    float g = fmaf(s[ADAGRAD_DECAY], *weight, gradient);
    *sum = canonical(fmaf(g, g, *sum));
    *weight = canonical(fmaf(-s[ADAGRAD_LR], g / (sqrtf(*sum) + s[ADAGRAD_EPS]), *weight));
}
