/* Runs one rank, from opening the engine to the hash of the weights. Every rank runs the same function; rank 0 also
 * prints and writes files. */
#ifndef ZERO_TOOLS_COMMAND_TRAINER_H
#define ZERO_TOOLS_COMMAND_TRAINER_H

#include "tools/command/job.h"

/* `rank`: the number of the thread, or the number that the launcher gave this process. `error` holds this rank's
 * failure; an empty message means that another rank reports the failure. ZERO_E_INTERRUPTED: all ranks stopped after
 * the same step. */
zero_status trainer_run(const struct job *job, uint32_t rank, struct zero_error *error);

#endif
