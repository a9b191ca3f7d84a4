/* Allows one run at a time in a run's directory: the process of rank 0 holds a lock on the file `lock` there. The file
 * names the process and its host. The kernel releases the lock however the process ends, so a file that stays behind
 * locks nothing. The lock belongs to the file, not to its name: if a user deletes or replaces the directory, the lock
 * is lost. The holder therefore checks again before it writes there. */
#ifndef ZERO_TOOLS_COMMAND_RUN_LOCK_H
#define ZERO_TOOLS_COMMAND_RUN_LOCK_H

#include <stdbool.h>

#include "engine/base/error.h"

struct run_lock {
    const char *command; /* "train": the command that the warnings name */
    bool held;
    int handle;    /* of the lock file */
    int directory; /* a handle: while it is open, no other directory gets the same inode number; below 0: none */
    char path[4096 + 32];
};

/* Does nothing if the lock is held already, or if the directory does not exist yet; the caller then takes the lock
 * again once the directory is made. ZERO_E_IO: another process holds the lock (the message names it), or no run made
 * the file, which stays as it is. On a file system without locks it prints a warning to stderr. */
zero_status run_lock_take(struct run_lock *lock, const char *directory, struct zero_error *error);

/* True if the file of that name is still the one that was locked. If the file was deleted, the call makes and locks it
 * again, but only in the same directory and only if no other run made its own lock there. */
bool run_lock_held(struct run_lock *lock);

void run_lock_release(struct run_lock *lock);

#endif
