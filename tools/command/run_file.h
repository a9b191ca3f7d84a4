/* run.json in the run's directory: what was asked for and planned, for `zero report`. Rank 0's. */
#ifndef ZERO_TOOLS_COMMAND_RUN_FILE_H
#define ZERO_TOOLS_COMMAND_RUN_FILE_H

#include "tools/command/job.h"

zero_status run_file_write(const struct job *job, const zero_engine *engine, const zero_plan *plan,
                           uint64_t steps, const char *directory, struct zero_error *error);

#endif
