/* Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") as in torch.optim.Muon:
 *   m = mu m + (1 - mu) g;  d = nesterov ? mu m + (1 - mu) g : m;  d = orthogonalized d (orthogonalize.h) * ratio;
 *   p -= lr wd p;  p -= lr d.
 * ratio: sqrt(max(1, rows / columns)), or with match_rms 0.2 sqrt(max(rows, columns)). */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"

enum {
    MUON_LR,
    MUON_DECAY, /* lr * weight_decay */
    MUON_MOMENTUM,
    MUON_ONE_MINUS_MOMENTUM,
    MUON_NESTEROV,
    MUON_EPS,
    MUON_STEPS,
    MUON_MATCH_RMS,
    MUON_BF16
};

KERNEL_INLINE void muon_momentum(float *direction, float *m, float *none, float gradient, const float *s) {
    float share = s[MUON_ONE_MINUS_MOMENTUM] * gradient;
    *m = canonical(fmaf(s[MUON_MOMENTUM], *m, share));
    float ahead = canonical(fmaf(s[MUON_MOMENTUM], *m, share));
    *direction = s[MUON_NESTEROV] != 0 ? ahead : *m;
}

KERNEL_INLINE void muon_apply(float *weight, float *none0, float *none1, float direction, const float *s) {
    float decayed = fmaf(-s[MUON_DECAY], *weight, *weight);
    *weight = canonical(fmaf(-s[MUON_LR], direction, decayed));
}
