/* Whose gradients made a step be skipped. */
#ifndef ZERO_ENGINE_STEP_OVERFLOW_H
#define ZERO_ENGINE_STEP_OVERFLOW_H

#include "engine/state/state.h"

/* After the agreement of a step that is skipped, before anything is dropped. Of the units with a gradient that is inf or NaN on
 * some rank: the one whose backward came first, since later ones may only have inherited that. Logs it, with the parameter where
 * this rank stores it. NULL: none. */
const char *overflow_report(struct state *state, const struct agreement *all);

#endif
