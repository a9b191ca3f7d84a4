/* What must be alike on all ranks: processes that a launcher has started may have been given different options. */
#ifndef ZERO_TOOLS_COMMAND_ALIKE_H
#define ZERO_TOOLS_COMMAND_ALIKE_H

#include "engine/base/error.h"
#include "engine/zero.h"
#include "tools/command/job.h"

/* The command's options and the data. A rank that differs from rank 0 names in `error` what differs, with both values;
 * the caller lets the ranks agree on that. The status: of the engine's sum. Collective, after commit. */
zero_status alike_check(zero_engine *engine, const struct job *job, struct zero_error *error);

#endif
