/* Deleting below a directory that this user owns, and nowhere else: the directory is opened without following a link
 * in its place, and entries are removed by the directory's handle. The path up to the directory's own name is the
 * caller's and is followed. Results: 0, or -errno: -ELOOP for a symbolic link, -EPERM for another user's directory.
 * Threads: any number. */
#ifndef ZERO_ENGINE_CHECKPOINT_OWNED_H
#define ZERO_ENGINE_CHECKPOINT_OWNED_H

#include "engine/checkpoint/storage.h"

int owned_list(const char *directory, storage_name_fn fn, void *user);

/* Whether owned_remove is likely to remove this entry, so that a directory is emptied whole or not at all. Only a
 * regular file of this user or of the directory's owner is. Else: -ELOOP a link, -EISDIR a directory, -EINVAL neither,
 * -EPERM another user's, -EBUSY a file that NFS keeps for a process that has it open, -EACCES no permission. */
int owned_check(const char *directory, const char *name);

/* A file of the directory. A link is refused, although removing it would leave its target alone: no checkpoint has
 * one, so somebody else has put it there. */
int owned_remove(const char *directory, const char *name);

#endif
