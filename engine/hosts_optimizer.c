/* An optimizer of the host program's, behind the table that the others are in. */
#include <string.h>

#include "engine/engine_internal.h"

_Static_assert((int)ZERO_STATES_MAX == (int)OPTIMIZER_STATES_MAX &&
                   (int)ZERO_SCALARS_MAX == (int)OPTIMIZER_SCALARS_MAX,
               "the host's optimizer sees the table's sizes");

static void prepare(void *user, const struct optimizer_params *p, uint64_t step, float *scalars) {
    const struct hosts_optimizer *h = user;
    zero_optimizer_params params = {.lr = p->lr,
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
    const struct hosts_optimizer *h = user;
    h->given.update(h->given.user, weight, state0, state1, gradient, gradient_scale, scalars, count);
}

static bool names(const char *name) { return name && *name && strlen(name) < OPTIMIZER_NAME_BYTES; }

static zero_status check(const zero_engine *e, const zero_optimizer *given) {
    bool good = names(given->name) && given->states <= ZERO_STATES_MAX && given->prepare && given->update;
    for (uint32_t k = 0; k < given->states && good; k++) good = names(given->state_names[k]);
    if (!good)
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_set_optimizer: it needs prepare, update, a name and at most %d states with names "
            "of at most %d bytes",
            ZERO_STATES_MAX, OPTIMIZER_NAME_BYTES - 1);
    if (optimizer_find(given->name))
        return refuse(ZERO_E_ARGUMENT,
                      "zero_engine_set_optimizer: \"%s\" is the engine's own, and checkpoints could not tell "
                      "them apart: "
                      "choose another name",
                      given->name);
    if (e->config.bf16_states && !given->rounds_states)
        return refuse(
            ZERO_E_UNSUPPORTED,
            "bf16.bf16_optimizer_states: the host's optimizer \"%s\" does not say that its states may be "
            "rounded (rounds_states): remove the key",
            given->name);
    return ZERO_OK;
}

zero_status zero_engine_set_optimizer(zero_engine *e, const zero_optimizer *optimizer) {
    zero_status status = engine_check_declaring(e, "zero_engine_set_optimizer");
    if (status) return status;
    if (!optimizer) return refuse(ZERO_E_ARGUMENT, "zero_engine_set_optimizer: optimizer is NULL");
    zero_optimizer given = {0};
    memcpy(&given, optimizer, optimizer->struct_size < sizeof given ? optimizer->struct_size : sizeof given);
    status = check(e, &given);
    if (status) return status;
    struct hosts_optimizer *h = &e->hosts_optimizer;
    const char *states[OPTIMIZER_STATES_MAX] = {0};
    h->given = given;
    strcpy(h->name, given.name);
    for (uint32_t k = 0; k < given.states; k++) states[k] = strcpy(h->state[k], given.state_names[k]);
    h->caller = (struct optimizer_caller){prepare, update, h};
    h->row = optimizer_of_caller(h->name, given.states, states, &e->optimizer->defaults);
    e->optimizer = &h->row;
    e->state_count = given.states;
    for (uint32_t g = 0; g < GROUP_MAX; g++) e->params[g].caller = &h->caller;
    return ZERO_OK;
}
