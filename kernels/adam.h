/* Adam (Kingma and Ba 2015) with L2 decay added to the gradient, as in torch.optim.Adam and DeepSpeed's Adam
 * with adam_w_mode false. */
#pragma once

#include "kernels/adamw.h"

KERNEL_INLINE void adam_element(float *weight, float *m, float *v, float gradient, const float *s) {
    *weight = adam_moments(*weight, m, v, fmaf(s[ADAM_DECAY], *weight, gradient), s);
}
