#include "engine/state/training.h"

#include <string.h>

#include "engine/base/utf8.h"

_Static_assert((int)ZERO_STATES_MAX == (int)OPTIMIZER_STATES_MAX &&
                   (int)ZERO_SCALARS_MAX == (int)OPTIMIZER_SCALARS_MAX,
               "the host's optimizer sees the table's sizes");
_Static_assert((int)ZERO_SCOPE_TENSOR == (int)SCOPE_TENSOR && (int)ZERO_SCOPE_MATRIX == (int)SCOPE_MATRIX,
               "the host's scopes are the table's");

static void prepare(void *owner, const struct optimizer_params *p, uint64_t step, float *scalars) {
    const struct user_optimizer *h = owner;
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

static uint64_t no_scratch(uint64_t rows, uint64_t columns) { return 0; }

/* Checks that the optimizer has the functions of its scope, and no others. */
static zero_status check_scope(const zero_optimizer *given, struct zero_error *error) {
    static const char *const takes[] = {
        [ZERO_SCOPE_ELEMENT] = "of an element takes update alone",
        [ZERO_SCOPE_TENSOR] = "of a tensor takes before, direction, trust and update",
        [ZERO_SCOPE_MATRIX] = "of a matrix takes before, matrix and update, and may have matrix_scratch"};
    unsigned scope = (unsigned)given->scope;
    bool tensor = scope == ZERO_SCOPE_TENSOR, matrices = scope == ZERO_SCOPE_MATRIX,
         good = !given->before == !(tensor || matrices) && !given->direction == !tensor &&
                !given->trust == !tensor && !given->matrix == !matrices &&
                (matrices || !given->matrix_scratch);
    if (scope > ZERO_SCOPE_MATRIX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_optimizer: there is no scope %u: take one of zero_scope", scope);
    if (good) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "zero_engine_set_optimizer: the scope %s: set these, and no other functions of \"%s\"",
                     takes[scope], given->name);
}

/* A checkpoint's tensors are STATE/PARAM and STATE#PART/PARAM, beside "param" and "ema" in the place of STATE. */
static zero_status check_state(const zero_optimizer *given, uint32_t k, struct zero_error *error) {
    const char *name = given->state_names[k];
    bool good = strcmp(name, "param") != 0 && strcmp(name, "ema") != 0 && !strpbrk(name, "/#");
    for (uint32_t i = 0; i < k; i++) good &= strcmp(name, given->state_names[i]) != 0;
    if (good) return ZERO_OK;
    return error_set(
        error, ZERO_E_ARGUMENT,
        "zero_engine_set_optimizer: \"%s\" cannot be the name of a state of \"%s\": names differ, have no "
        "'/' or '#', and are not \"param\" or \"ema\", which checkpoints have already",
        name, given->name);
}

static bool names(const char *name) {
    return name && *name && strlen(name) < OPTIMIZER_NAME_BYTES && utf8_is(name);
}

zero_status user_optimizer_check(const zero_optimizer *given, bool rounds_states, struct zero_error *error) {
    bool good = names(given->name) && given->states <= ZERO_STATES_MAX && given->prepare && given->update;
    for (uint32_t k = 0; k < given->states && good; k++) good = names(given->state_names[k]);
    if (!good)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_optimizer: it needs prepare, update, a name and at most %d states "
                         "with names of at most %d bytes of UTF-8",
                         ZERO_STATES_MAX, OPTIMIZER_NAME_BYTES - 1);
    if (optimizer_find(given->name))
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_optimizer: \"%s\" is the engine's own, and checkpoints could not "
                         "tell them apart: choose another name",
                         given->name);
    for (uint32_t k = 0; k < given->states; k++) TRY(check_state(given, k, error));
    if (rounds_states && !given->rounds_states)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "bf16.bf16_optimizer_states: the host's optimizer \"%s\" does not say that its "
                         "states may be rounded (rounds_states): remove the key",
                         given->name);
    return check_scope(given, error);
}

void user_optimizer_set(struct user_optimizer *user, const zero_optimizer *given,
                        const struct optimizer_params *defaults, struct host_fault *fault) {
    struct optimizer *row = &user->rows.row;
    user->given = *given;
    user->caller = (struct optimizer_caller){.owner = user,
                                             .fault = fault,
                                             .prepare = prepare,
                                             .user = given->user,
                                             .update = given->update,
                                             .before = given->before,
                                             .direction = given->direction,
                                             .trust = given->trust,
                                             .matrix = given->matrix};
    *row = (struct optimizer){.name = strcpy(user->name, given->name),
                              .title = user->name,
                              .state_count = given->states,
                              .defaults = *defaults,
                              .scope = (enum optimizer_scope)given->scope,
                              .matrix_scratch = given->matrix_scratch ? given->matrix_scratch : no_scratch};
    for (uint32_t k = 0; k < given->states; k++)
        row->state_names[k] = strcpy(user->state[k], given->state_names[k]);
    optimizer_of_caller(&user->rows);
}
