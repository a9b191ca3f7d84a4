/* Checks that all ranks got the same options and data. Processes that a launcher started may have different ones. */
#ifndef ZERO_TOOLS_COMMAND_ALIKE_H
#define ZERO_TOOLS_COMMAND_ALIKE_H

#include "engine/base/error.h"
#include "engine/zero.h"
#include "tools/command/job.h"

/* Compares the command's options and the data. A rank that differs from rank 0 writes into `error` the option that
 * differs and both values; the caller lets the ranks agree on that failure. Returns the status of the engine's sum.
 * Collective, after commit. */
zero_status alike_check(zero_engine *engine, const struct job *job, struct zero_error *error);

#endif
