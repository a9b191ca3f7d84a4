/* Averaged weights, for CPUs and CUDA: an exponential moving average of each weight (Polyak and Juditsky 1992), with the arithmetic of
 * PyTorch's lerp, which torch.optim.swa_utils uses:
 *   average += share (weight - average), share = 1 - decay
 * A share of at least one half goes back from the weight, so that a share of 1 gives the weight. */
#pragma once

#include <math.h>

#include "engine/base/numbers/convert.h"
#include "kernels/isa.h"

KERNEL_INLINE float average_of(float average, float weight, float share) {
    float from = share < 0.5f ? average : weight, factor = share < 0.5f ? share : share - 1;
    return canonical(fmaf(factor, weight - average, from));
}

/* average[i] moves towards weight[i]. The arrays do not overlap. In the kernels' floating-point environment. */
void average_move_isa(enum kernel_isa isa, float *average, const float *weight, float share, uint64_t count);
