#include "kernels/lion.h"

#include "kernels/element_loop.h"

ELEMENT_LOOPS(lion_element, 1)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){.value = {
                                                  [LION_LR] = (float)params->lr,
                                                  [LION_DECAY] = (float)(params->lr * params->weight_decay),
                                                  [LION_BETA1] = (float)params->beta1,
                                                  [LION_ONE_MINUS_BETA1] = (float)(1 - params->beta1),
                                                  [LION_BETA2] = (float)params->beta2,
                                                  [LION_ONE_MINUS_BETA2] = (float)(1 - params->beta2),
                                              }};
}

const struct optimizer optimizer_lion = {
    .name = "lion",
    .title = "Lion",
    .classes = {"FusedLion", "DeepSpeedCPULion"},
    .keys = {{"lr", "0.001"}, {"betas", "[0.9, 0.999]"}, {"weight_decay", "0"}},
    .state_count = 1,
    .state_names = {"exp_avg"},
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999},
    .prepare = prepare,
    .update = ISA_TABLE(lion_element),
};
