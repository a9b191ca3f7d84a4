/* Whose gradients made a step be skipped. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_OVERFLOW_H
#define ZERO_ENGINE_OVERFLOW_H

#include "engine/engine_internal.h"

/* After the agreement of a step that is skipped, before anything is dropped: the unit, of those with a gradient that is inf or
 * NaN on some rank, whose backward came first; what is behind it may only have inherited that. Says so in the log, with the
 * parameter where this rank holds it. NULL: none. */
const char *overflow_report(zero_engine *e, const struct agreement *all);

#endif
