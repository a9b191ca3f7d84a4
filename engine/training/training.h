/* A training between two steps: its progress, and the settings of the next update. */
#ifndef ZERO_ENGINE_TRAINING_TRAINING_H
#define ZERO_ENGINE_TRAINING_TRAINING_H

#include "engine/base/log.h"
#include "engine/config/config.h"
#include "engine/model/param_groups.h"
#include "engine/training/loss_scale.h"
#include "engine/training/user_optimizer.h"

enum { OPTIMIZER_NAMES_BYTES = 32 };

struct training {
    const struct config *config;
    const struct log *log;
    uint32_t rank, size;
    uint64_t steps, skipped;           /* updates done, and steps that an overflow skipped */
    uint64_t repeated;                 /* steps of this engine whose updates were repeated */
    uint64_t skipped_in_a_row;         /* since the last update, load or fill, or since this engine was opened */
    struct loss_scale loss_scale;      /* 1 unless compute is fp16 */
    const struct optimizer *optimizer; /* a row of the table, or user_optimizer's */
    /* States per element that the optimizer uses here; with another optimizer, the larger number of both. */
    uint32_t state_count;
    struct user_optimizer user_optimizer;
    struct param_groups groups;
    struct lr_schedule_params schedule; /* the configuration's; continues where that of a loaded run was */
    zero_schedule_fn schedule_fn;       /* the host's schedule, which replaces it; or NULL */
    void *schedule_user;
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

#endif
