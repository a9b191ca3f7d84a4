/* The step: all ranks agree on the gradient's norm and on what is skipped, then the update of every region starts. */
#ifndef ZERO_ENGINE_STEP_STEP_H
#define ZERO_ENGINE_STEP_STEP_H

#include "engine/state/state.h"

/* With updates in the backward, before the last training pass of a step begins: sets the settings of its updates. */
zero_status step_prepare(struct state *state);

/* After the last micro-step. `out`: struct_size is set; filled in. Collective. */
zero_status step_run(struct state *state, zero_step_info *out);

/* Then, every debug.compare_every steps: replica_check. Collective. */
zero_status step_check_replicas(struct state *state, const zero_step_info *info);

#endif
