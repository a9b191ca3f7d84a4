#include "kernels/sgd.h"

#include "kernels/element_loop.h"

ELEMENT_LOOPS(sgd_plain, 0)
ELEMENT_LOOPS(sgd_momentum, 1)
ELEMENT_LOOPS(sgd_nesterov, 1)

/* The three forms read different data, so the form is chosen once per call, not per element. */
#define SGD_UPDATE(isa, attribute)                                                                           \
    static void update_##isa(float *restrict master, float *restrict state0, float *restrict state1,         \
                             const float *restrict gradient, float scale, const struct optimizer_scalars *s, \
                             uint64_t count) {                                                               \
        optimizer_loop *loop = s->value[SGD_MOMENTUM] == 0 ? sgd_plain_##isa                                 \
                               : s->value[SGD_NESTEROV]    ? sgd_nesterov_##isa                              \
                                                           : sgd_momentum_##isa;                                \
        loop(master, state0, state1, gradient, scale, s, count);                                             \
    }

ISA_EACH(SGD_UPDATE)

static void prepare(const struct optimizer_params *params, uint64_t step,
                    struct optimizer_scalars *out_scalars) {
    *out_scalars =
        (struct optimizer_scalars){.value = {
                                       [SGD_LR] = (float)params->lr,
                                       [SGD_DECAY] = (float)params->weight_decay,
                                       [SGD_MOMENTUM] = (float)params->momentum,
                                       [SGD_GRADIENT] = (float)(step == 1 ? 1 : 1 - params->dampening),
                                       [SGD_NESTEROV] = params->nesterov,
                                   }};
}

static uint32_t states_used(const struct optimizer_params *params) { return (float)params->momentum != 0; }

const struct optimizer optimizer_sgd = {
    .name = "sgd",
    .title = "SGD",
    .keys = {{"lr", "0.001"},
             {"weight_decay", "0"},
             {"momentum", "0"},
             {"dampening", "0"},
             {"nesterov", "false"}},
    .state_count = 1,
    .state_names = {"momentum_buffer"},
    .defaults = {.lr = 1e-3},
    .prepare = prepare,
    .update = ISA_TABLE(update),
    .states_used = states_used,
};
