/* Whether all ranks go on. A rank keeps a failure outside the engine, or a signal, and sends it with sums that all ranks make; so
 * all ranks stop at the same place. */
#ifndef ZERO_TOOLS_COMMAND_AGREEMENT_H
#define ZERO_TOOLS_COMMAND_AGREEMENT_H

#include <stdint.h>

#include "engine/base/error.h"
#include "engine/zero.h"

enum { FAILED, INTERRUPTED, SIGNALS, AGREED }; /* indices of the first sums */

/* Sums `values` over all ranks. The first AGREED values are set here: the caller's begin at AGREED. `error`: this rank's
 * failure so far. ZERO_E_PEER: a rank has a failure; ZERO_E_INTERRUPTED: a rank got a signal. Both without a message if this
 * rank has no failure to report; values[FAILED] or values[INTERRUPTED] is then above 0. Collective. */
zero_status agreement_sum(zero_engine *engine, double *values, uint32_t count, struct zero_error *error);

/* A call of the engine or of the model failed: keeps its message, or else the status's meaning. */
zero_status agreement_engine_failed(zero_status status, struct zero_error *error);

#endif
