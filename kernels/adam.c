#include "kernels/adam.h"

#include "kernels/adam_scalars.h"
#include "kernels/element_loop.h"

ELEMENT_LOOPS(adam_element, 2)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    adam_scalars(params, step, params->weight_decay, out_scalars);
}

const struct optimizer optimizer_adam = {
    .name = "adam",
    .title = "Adam",
    .classes = {"FusedAdam", "CPUAdam", "DeepSpeedCPUAdam"},
    .keys = {{"lr", "0.001"},
             {"betas", "[0.9, 0.999]"},
             {"eps", "1e-8"},
             {"weight_decay", "0"},
             {"bias_correction", "true"},
             {"adam_w_mode", "true"},
             {"torch_adam", "false"}},
    .decoupled = &optimizer_adamw,
    .state_count = 2,
    .state_names = {"exp_avg", "exp_avg_sq"},
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias_correction = true},
    .prepare = prepare,
    .update = ISA_TABLE(adam_element),
};
