/* Deletes files in a directory that this user owns, and nowhere else. The directory is opened without following a
 * symbolic link in its place, and its entries are removed through the directory's handle. Symbolic links in the path
 * up to the directory's own name belong to the caller and are followed.
 *
 * Results: 0, or -errno: -ELOOP for a symbolic link, -EPERM for a directory of another user. Threads: any number. */
#ifndef ZERO_ENGINE_CHECKPOINT_OWNED_H
#define ZERO_ENGINE_CHECKPOINT_OWNED_H

#include "engine/checkpoint/storage.h"

int owned_list(const char *directory, storage_name_fn fn, void *user);

/* Lists any directory by its handle, which is closed. */
int directory_list(int directory, storage_name_fn fn, void *user);

/* Says whether owned_remove is likely to remove this entry. So a caller can delete all entries of a directory or
 * none. 0: a regular file of this user or of the directory's owner, and it can be removed. Else -ELOOP: a symbolic
 * link; -EISDIR: a directory; -EINVAL: another kind of file; -EPERM: a file of another user; -EBUSY: a file that NFS
 * keeps for a process that has it open; -EACCES: no permission. */
int owned_check(const char *directory, const char *name);

/* Removes a file of the directory. Refuses a symbolic link, although its removal would leave its target alone: no
 * checkpoint has a link, so somebody else made it. */
int owned_remove(const char *directory, const char *name);

#endif
