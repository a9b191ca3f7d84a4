/* The step: all ranks agree on the gradient's norm and on what is skipped, then the update of every region starts. */
#pragma once

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

/* ---- overflow.c: finds the unit whose gradients caused a skipped step ---- */
/* Of the units with a gradient that is inf or NaN on some rank: the one whose backward came first, since later ones may only
 * have inherited that. */
struct overflow {
    const char *unit; /* NULL: none; the sum of the squares is too large */
    uint32_t rank;    /* the first that stores such a gradient */
    char detail[512]; /* ", the first in parameter ...", where this rank stores one; or "" */
};

/* After the agreement of a step that is skipped, before anything is dropped. Logs it. */
void overflow_report(struct step *step, const struct agreement *all, struct overflow *out);

/* Fails where max_skipped_steps steps in a row were skipped. Only the rank that knows the parameter raises the failure:
 * the other ranks receive it when they next wait. */
zero_status overflow_check_limit(struct step *step, const struct overflow *overflow);
