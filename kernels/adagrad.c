#include "kernels/adagrad.h"

#include "kernels/element_loop.h"

ELEMENT_LOOPS(adagrad_element, 1)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars = (struct optimizer_scalars){
        .value = {
            [ADAGRAD_LR] = (float)(params->lr / (1 + (double)(step - 1) * params->lr_decay)),
            [ADAGRAD_DECAY] = (float)params->weight_decay,
            [ADAGRAD_EPS] = (float)params->eps,
        }};
}

const struct optimizer optimizer_adagrad = {
    .name = "adagrad",
    .title = "Adagrad",
    .classes = {"CPUAdagrad", "DeepSpeedCPUAdagrad"},
    .keys = {{"lr", "0.01"}, {"eps", "1e-10"}, {"weight_decay", "0"}, {"lr_decay", "0"}},
    .state_count = 1,
    .state_names = {"sum"},
    .defaults = {.lr = 1e-2, .eps = 1e-10},
    .prepare = prepare,
    .update = ISA_TABLE(adagrad_element),
};
