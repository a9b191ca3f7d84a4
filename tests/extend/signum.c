/* Signum (Bernstein et al. 2018, signSGD, algorithm 2): m = b m + (1 - b) g;  p -= lr (sign(m) + wd p). */
#include <math.h>

#include "engine/base/numbers/convert.h"
#include "kernels/element_loop.h"

enum { LR, DECAY /* lr * weight_decay */, MOMENTUM, ONE_MINUS_MOMENTUM };

KERNEL_INLINE void signum_element(float *weight, float *m, float *none, float gradient, const float *s) {
    float moment = canonical(fmaf(s[MOMENTUM], *m, s[ONE_MINUS_MOMENTUM] * gradient));
    float negative = moment < 0 ? -1.0f : moment, sign = moment > 0 ? 1.0f : negative;
    *weight = canonical(fmaf(-s[LR], sign, fmaf(-s[DECAY], *weight, *weight)));
    *m = moment;
}

ELEMENT_LOOPS(signum_element, 1)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars =
        (struct optimizer_scalars){.value = {[LR] = (float)params->lr,
                                             [DECAY] = (float)(params->lr * params->weight_decay),
                                             [MOMENTUM] = (float)params->momentum,
                                             [ONE_MINUS_MOMENTUM] = (float)(1 - params->momentum)}};
}

const struct optimizer optimizer_signum = {
    .name = "signum",
    .title = "Signum",
    .keys = {{"lr", "0.0001"}, {"weight_decay", "0"}, {"momentum", "0.9"}},
    .state_count = 1,
    .state_names = {"exp_avg"},
    .defaults = {.lr = 1e-4, .momentum = 0.9},
    .prepare = prepare,
    .update = ISA_TABLE(signum_element),
};
