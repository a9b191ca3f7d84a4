/* A training between two steps: its progress, and the settings of the next update. */
#pragma once

#include "engine/base/host_call.h"
#include "engine/base/log.h"
#include "engine/config/config.h"
#include "engine/model/param_groups.h"
#include "engine/state/loss_scale.h"
#include "engine/zero.h"
#include "kernels/optimizer.h"

/* An optimizer of the host program's (zero_engine_set_optimizer), as a row like those of the engine's own table. */
enum {
    OPTIMIZER_NAME_BYTES = 32,
    OPTIMIZER_NAMES_BYTES = 32 /* of one optimizer, or the beginnings of two */
};

struct user_optimizer {
    zero_optimizer given;
    char name[OPTIMIZER_NAME_BYTES], state[OPTIMIZER_STATES_MAX][OPTIMIZER_NAME_BYTES];
    struct optimizer_caller caller;
    struct optimizer_rows rows; /* they point into this struct, which must not move */
};

struct training {
    const struct config *config;
    const struct log *log;
    uint32_t rank, size;
    uint64_t steps, skipped;      /* updates done, and steps that an overflow skipped */
    uint64_t repeated;            /* steps of this engine whose updates were repeated */
    uint64_t skipped_in_a_row;    /* since the last update, load or fill, or since this engine was opened */
    struct loss_scale loss_scale; /* 1 unless compute is fp16 */
    const struct optimizer *optimizer; /* a row of the table, or user_optimizer's */
    /* States per element that the optimizer uses here; with another optimizer, the larger number of both. */
    uint32_t state_count;
    struct user_optimizer user_optimizer;
    struct param_groups groups;
    struct lr_schedule_params schedule; /* the configuration's; continues where that of a loaded run was */
    zero_schedule_fn schedule_fn;       /* the host's schedule, which replaces it; or NULL */
    void *schedule_user;
    struct host_fault *fault; /* of the functions of the host; borrowed */
};

/* After config_resolve. `log` and `config` are borrowed. */
zero_status training_open(struct training *training, const struct config *config, const struct log *log,
                          uint32_t rank, uint32_t size, struct zero_error *error);

/* The optimizer of a group: the run's or groups.other. */
static inline const struct optimizer *training_optimizer(const struct training *training, uint32_t group) {
    return training->groups.uses_other[group] ? training->groups.other : training->optimizer;
}
/* In checkpoints: the names of the optimizers, and of the states, which the one with more of them gives. `text`: room for a name. */
const char *training_optimizer_name(const struct training *training, char text[OPTIMIZER_NAMES_BYTES]);
const char *training_state_name(const struct training *training, uint32_t k);

/* The training begins anew: no step done, loss scale and schedule as configured. */
void training_restart(struct training *training);
void training_restart_loss_scale(struct training *training);

/* Replaces the configuration's optimizer. */
zero_status training_set_optimizer(struct training *training, const zero_optimizer *optimizer,
                                   struct zero_error *error);

/* The factor from the sum of the messages to the gradient: the mean over micro-steps, and over ranks or not, with the loss
 * scale divided out. `gradient_factor`: the factor of gradients before they are sent; 0: none. */
double training_mean(const struct training *training, float gradient_factor);

/* `rounds_states`: the configuration keeps states in bf16. */
zero_status user_optimizer_check(const zero_optimizer *given, bool rounds_states, struct zero_error *error);

/* Copies `given`. `defaults`: of the optimizer that it replaces. */
void user_optimizer_set(struct user_optimizer *user, const zero_optimizer *given,
                        const struct optimizer_params *defaults, struct host_fault *fault);
