/* Makes files and their names outlive a power loss. In POSIX a new name is durable only after an fsync of the directory
 * that has it. Results: 0, or an errno. A file system that cannot sync a file or a directory has nothing to make durable:
 * 0. Threads: any. */
#pragma once

#include <sys/types.h>

int durable(int handle); /* the bytes of a file, or the names in a directory */

/* The names in a directory. A directory that this user may write and not read cannot be opened for it: 0. */
int durable_names(const char *directory);
int durable_name(const char *path); /* of a file or directory, which may end with slashes */

/* Makes a directory, and its name durable. EEXIST: it is there. */
int durable_directory(const char *path, mode_t mode);

/* Makes all directories above `path` that do not exist. After a failure `path` ends with the one that failed. */
int durable_parents(char *path, mode_t mode);
