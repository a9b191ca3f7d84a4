/* One run at a time in a run's directory: its process of rank 0 holds a lock on the file `lock` there, in which its
 * number and host stand. The kernel gives the lock back when the process ends, however it ends, so that a file that
 * is left behind locks nothing. */
#ifndef ZERO_TOOLS_COMMAND_RUN_LOCK_H
#define ZERO_TOOLS_COMMAND_RUN_LOCK_H

#include <stdbool.h>

#include "engine/base/error.h"

struct run_lock {
    bool held;
    int handle;
};

/* Nothing where it is held already, or where the directory is not there yet: take it again once that is made.
 * ZERO_E_IO: another process has it, and which. A file system without locks is warned of, on stderr. */
zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error);
void run_lock_release(struct run_lock *lock);

#endif
