/* Debugging (debug.compare_every): what several ranks store must be the same bits on all of them. */
#ifndef ZERO_ENGINE_STATE_REPLICA_CHECK_H
#define ZERO_ENGINE_STATE_REPLICA_CHECK_H

#include "engine/state/state.h"

/* After a step that was applied: waits for the refresh, hashes everything that is replicated (parameters, and by the stage the
 * reduced gradients, states and masters), and compares the ranks that store the same part. ZERO_E_DIVERGED, on all ranks: names
 * the parameter, its unit and the rank that differs. Collective. */
zero_status replica_check(struct state *state);

#endif
