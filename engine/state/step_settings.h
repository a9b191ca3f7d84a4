/* The settings of each parameter group's update: the values of the configuration or of zero_engine_set_lr, then changed by a
 * schedule, which is the configuration's or the host's. */
#pragma once

#include "engine/state/training.h"

zero_status settings_open(struct training *training, struct zero_error *error);

/* Of the next step, as this rank sees them. */
void settings_next(const struct training *training, struct lr_setting out[GROUP_MAX]);

/* `setting`: rank 0's, so that all ranks return the same. ZERO_E_ARGUMENT where an update could not use it. */
zero_status settings_check(const struct training *training, const struct lr_setting *setting,
                           struct zero_error *error);

/* Of this step, the first of which is 1: by model_scalars, for every group. */
void settings_scalars(const struct training *training, const struct lr_setting *setting, uint64_t step,
                      struct optimizer_scalars out[SCALARS_MAX]);

/* The share by which this step's updates move the averaged weights towards the weights; 0: they stay, or there are none. */
float settings_average_share(const struct training *training, uint64_t step);

/* DeepSpeed's last_batch_iteration. In this order: the schedule's present position; continues from a position; starts
 * again. */
int64_t settings_iteration(const struct training *training);
void settings_resume(struct training *training, int64_t iteration);
void settings_restart(struct training *training);

/* A hash of the numbers of groups that each rank takes from its own settings. */
uint64_t settings_hash(const struct training *training);

/* zero_engine_set_lr, _set_betas and _set_params. */
zero_status settings_set_lr(struct training *training, int group, double lr, struct zero_error *error);
zero_status settings_set_betas(struct training *training, int group, double beta1, double beta2,
                               struct zero_error *error);
zero_status settings_set_params(struct training *training, int group, const zero_optimizer_params *params,
                                struct zero_error *error);
