/* One run at a time in a run's directory: its process of rank 0 holds a lock on the file `lock` there, in which its
 * number and host stand. The kernel gives the lock back when the process ends, however it ends, so that a file that
 * is left behind locks nothing. A lock is on the file, not on its name: whoever deletes or replaces the directory takes
 * it away, so that the holder asks again before it writes there. */
#ifndef ZERO_TOOLS_COMMAND_RUN_LOCK_H
#define ZERO_TOOLS_COMMAND_RUN_LOCK_H

#include <stdbool.h>

#include "engine/base/error.h"

struct run_lock {
    const char *command; /* "train": who warns */
    bool held;
    int handle;    /* of the file */
    int directory; /* a handle: the directory keeps its number, and no other gets it; below 0: there is none */
    char path[4096 + 32];
};

/* Nothing where it is held already, or where the directory is not there yet: take it again once that is made.
 * ZERO_E_IO: another process has it, and which; or the file is none that a run made, which is left as it is. A file
 * system without locks is warned of, on stderr. */
zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error);

/* Whether the file of that name is still the one that was locked. One that was deleted is made and locked again, in the
 * same directory and where no other run has made its own. */
bool run_lock_held(struct run_lock *lock);

void run_lock_release(struct run_lock *lock);

#endif
