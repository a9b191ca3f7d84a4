/* Finds the unit whose gradients caused a skipped step. */
#ifndef ZERO_ENGINE_STEP_OVERFLOW_H
#define ZERO_ENGINE_STEP_OVERFLOW_H

#include "engine/step/step.h"

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

#endif
