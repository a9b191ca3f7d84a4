/* Debugging: what several ranks hold must be the same bits on all of them. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_COMPARE_H
#define ZERO_ENGINE_COMPARE_H

#include "engine/engine_internal.h"

/* After a step that was applied, every debug.compare_every steps: waits for the refresh, hashes all that is replicated
 * (parameters, and by the stage the reduced gradients, states and masters), compares the ranks that hold the same part.
 * ZERO_E_DIVERGED, on all ranks: the parameter, its unit and the rank that differs. Collective. */
zero_status compare_ranks(zero_engine *e);

#endif
