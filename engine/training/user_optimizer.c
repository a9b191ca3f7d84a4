#include "engine/training/user_optimizer.h"

#include <string.h>

_Static_assert((int)ZERO_STATES_MAX == (int)OPTIMIZER_STATES_MAX &&
                   (int)ZERO_SCALARS_MAX == (int)OPTIMIZER_SCALARS_MAX,
               "the host's optimizer sees the table's sizes");

static void prepare(void *user, const struct optimizer_params *p, uint64_t step, float *scalars) {
    const struct user_optimizer *h = user;
    zero_optimizer_params params = {.struct_size = sizeof params,
                                    .lr = p->lr,
                                    .beta1 = p->beta1,
                                    .beta2 = p->beta2,
                                    .eps = p->eps,
                                    .weight_decay = p->weight_decay,
                                    .momentum = p->momentum,
                                    .dampening = p->dampening};
    h->given.prepare(h->given.user, &params, step, scalars);
}

static void update(void *user, float *weight, float *state0, float *state1, const float *gradient,
                   float gradient_scale, const float *scalars, uint64_t count) {
    const struct user_optimizer *h = user;
    h->given.update(h->given.user, weight, state0, state1, gradient, gradient_scale, scalars, count);
}

static bool names(const char *name) { return name && *name && strlen(name) < OPTIMIZER_NAME_BYTES; }

zero_status user_optimizer_check(const zero_optimizer *given, bool rounds_states, struct zero_error *error) {
    bool good = names(given->name) && given->states <= ZERO_STATES_MAX && given->prepare && given->update;
    for (uint32_t k = 0; k < given->states && good; k++) good = names(given->state_names[k]);
    if (!good)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "zero_engine_set_optimizer: it needs prepare, update, a name and at most %d states with names "
            "of at most %d bytes",
            ZERO_STATES_MAX, OPTIMIZER_NAME_BYTES - 1);
    if (optimizer_find(given->name))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "zero_engine_set_optimizer: \"%s\" is the engine's own, and checkpoints could not tell "
            "them apart: choose another name",
            given->name);
    for (uint32_t k = 0; k < given->states; k++)
        if (strcmp(given->state_names[k], "ema") == 0)
            return error_set(error, ZERO_E_ARGUMENT,
                             "zero_engine_set_optimizer: a state of \"%s\" is named \"ema\", as the averaged "
                             "weights are in checkpoints: choose another name",
                             given->name);
    if (rounds_states && !given->rounds_states)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "bf16.bf16_optimizer_states: the host's optimizer \"%s\" does not say that its states may be "
            "rounded (rounds_states): remove the key",
            given->name);
    return ZERO_OK;
}

void user_optimizer_set(struct user_optimizer *user, const zero_optimizer *given,
                        const struct optimizer_params *defaults) {
    const char *states[OPTIMIZER_STATES_MAX] = {0};
    user->given = *given;
    strcpy(user->name, given->name);
    for (uint32_t k = 0; k < given->states; k++) states[k] = strcpy(user->state[k], given->state_names[k]);
    user->caller = (struct optimizer_caller){prepare, update, user};
    user->row = optimizer_of_caller(user->name, given->states, states, defaults);
}
