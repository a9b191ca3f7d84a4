#include "kernels/lamb.h"

#include "kernels/adam_scalars.h"
#include "kernels/element_loop.h"

ELEMENT_LOOPS(lamb_moments, 2)
ELEMENT_LOOPS(lamb_direction, 2)
ELEMENT_LOOPS(lamb_apply, 2)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    adam_scalars(params, step, params->weight_decay, out_scalars);
    float *s = out_scalars->value;
    s[LAMB_MEAN_SCALE] = (float)(params->bias_correction ? 1 / (1 - power(params->beta1, step)) : 1);
    s[LAMB_LR] = s[LAMB_STEP] = (float)params->lr;
    s[LAMB_MIN] = (float)params->min_coeff;
    s[LAMB_MAX] = (float)params->max_coeff;
}

static void trust(const struct tensor_norms *norms, struct optimizer_scalars *scalars) {
    float *s = scalars->value;
    double ratio = 1;
    if (norms->weights > 0 && norms->direction > 0) {
        ratio = sqrt(norms->weights) / sqrt(norms->direction);
        if (ratio > (double)s[LAMB_MAX]) ratio = (double)s[LAMB_MAX];
        if (ratio < (double)s[LAMB_MIN]) ratio = (double)s[LAMB_MIN];
    }
    s[LAMB_STEP] = (float)((double)s[LAMB_LR] * ratio);
}

#define STATES .state_count = 2, .state_names = {"exp_avg", "exp_avg_sq"}
#define DEFAULTS                                                                                             \
    {                                                                                                        \
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_coeff = 10, .min_coeff = 0.01,           \
        .bias_correction = true                                                                              \
    }

static const struct optimizer before = {.name = "lamb's moments",
                                        STATES,
                                        .defaults = DEFAULTS,
                                        .prepare = prepare,
                                        .update = ISA_TABLE(lamb_moments)};
static const struct optimizer direction = {.name = "lamb's direction",
                                           STATES,
                                           .defaults = DEFAULTS,
                                           .prepare = prepare,
                                           .update = ISA_TABLE(lamb_direction),
                                           .scope = SCOPE_TENSOR};

const struct optimizer optimizer_lamb = {.name = "lamb",
                                         .title = "Lamb",
                                         .classes = {"FusedLamb"},
                                         .keys = {{"lr", "0.001"},
                                                  {"betas", "[0.9, 0.999]"},
                                                  {"eps", "1e-8"},
                                                  {"weight_decay", "0"},
                                                  {"bias_correction", "true"},
                                                  {"max_coeff", "10"},
                                                  {"min_coeff", "0.01"}},
                                         STATES,
                                         .defaults = DEFAULTS,
                                         .prepare = prepare,
                                         .update = ISA_TABLE(lamb_apply),
                                         .scope = SCOPE_TENSOR,
                                         .before = &before,
                                         .direction = &direction,
                                         .trust = trust};
