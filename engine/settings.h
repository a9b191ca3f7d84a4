/* What each parameter group's update takes: given by the configuration or zero_engine_set_lr, then set by a schedule,
 * the configuration's or the host's. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_SETTINGS_H
#define ZERO_ENGINE_SETTINGS_H

#include "engine/engine_internal.h"

zero_status settings_open(zero_engine *e, struct zero_error *error);

/* Of the next step, as this rank sees them. */
void settings_next(const zero_engine *e, struct lr_setting out[GROUP_MAX]);

/* Of rank 0's, so that all ranks return the same: ZERO_E_ARGUMENT where an update could not use them. */
zero_status settings_check(zero_engine *e, const struct lr_setting *setting);

/* Of step e->steps: by model_scalars, for every group. */
void settings_scalars(const zero_engine *e, const struct lr_setting *setting,
                      struct optimizer_scalars out[SCALARS_MAX]);

/* DeepSpeed's last_batch_iteration: where the schedule stands, where it goes on, and at its beginning again. */
int64_t settings_iteration(const zero_engine *e);
void settings_resume(zero_engine *e, int64_t iteration);
void settings_restart(zero_engine *e);

#endif
