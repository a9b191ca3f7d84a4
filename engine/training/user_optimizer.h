/* An optimizer of the host program's (zero_engine_set_optimizer), as a row like those of the engine's own table. */
#ifndef ZERO_ENGINE_TRAINING_USER_OPTIMIZER_H
#define ZERO_ENGINE_TRAINING_USER_OPTIMIZER_H

#include "engine/base/error.h"
#include "engine/zero.h"
#include "kernels/optimizer.h"

enum { OPTIMIZER_NAME_BYTES = 32 };

struct user_optimizer {
    zero_optimizer given;
    char name[OPTIMIZER_NAME_BYTES], state[OPTIMIZER_STATES_MAX][OPTIMIZER_NAME_BYTES];
    struct optimizer_caller caller;
    struct optimizer_rows rows; /* they point into this struct, which must not move */
};

/* `rounds_states`: the configuration keeps states in bf16. */
zero_status user_optimizer_check(const zero_optimizer *given, bool rounds_states, struct zero_error *error);

/* Copies `given`. `defaults`: of the optimizer that it replaces. */
void user_optimizer_set(struct user_optimizer *user, const zero_optimizer *given,
                        const struct optimizer_params *defaults);

#endif
