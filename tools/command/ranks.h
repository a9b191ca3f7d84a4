/* Runs the ranks of this process: one rank, or several as threads. Each rank runs the same function. */
#ifndef ZERO_TOOLS_COMMAND_RANKS_H
#define ZERO_TOOLS_COMMAND_RANKS_H

#include "engine/zero.h"
#include "engine/base/error.h"

typedef zero_status (*rank_fn)(void *user, zero_local *local, uint32_t rank, struct zero_error *error);

/* `local` has `count` ranks; NULL: the only rank of this process is `first`. Returns after all ranks have ended. A rank
 * that knows the cause prints each failure to stderr once; the function returns that failure's code. */
zero_status ranks_run(uint32_t count, uint32_t first, zero_local *local, rank_fn run, void *user);

#endif
