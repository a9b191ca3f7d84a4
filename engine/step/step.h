/* The step: all ranks agree on the gradient's norm and on what is skipped, then the update of every region starts. */
#ifndef ZERO_ENGINE_STEP_STEP_H
#define ZERO_ENGINE_STEP_STEP_H

#include "engine/state/state.h"

struct step {
    struct running *run;
    struct state *state; /* for its shadow, its save in the background, and the gradients at rest */
    const struct blueprint *blueprint;
    const struct peers *peers;
    struct training *training;
    zero_step_info info; /* of the last step */
    /* With updates in the backward: the settings of the open step's updates. */
    struct lr_setting upcoming[GROUP_MAX];
    struct optimizer_scalars scalars[SCALARS_MAX];
};

/* With updates in the backward, before the last training pass of a step begins: sets the settings of its updates. */
zero_status step_prepare(struct step *step);

/* After the last micro-step. Collective. */
zero_status step_run(struct step *step);

/* Then, every debug.compare_every steps: replica_check. Collective. */
zero_status step_check_replicas(const struct step *step);

#endif
