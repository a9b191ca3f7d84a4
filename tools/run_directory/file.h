/* Small files that are replaced as a whole, and the files of a run's directory: a run empties or replaces only files that a run made. */
#pragma once

#include <stddef.h>

#include "engine/base/error.h"

/* Writes all bytes. Returns 0 or an errno. *out_written: the bytes that were written, also after a failure. */
int write_all(int file, const char *bytes, size_t count, size_t *out_written);

/* Writes `text` to a new file, `path` and ".new", and renames it to `path`. A symbolic link at `path` is replaced, not
 * followed. After a full disk or a power loss the old file is unchanged. */
zero_status new_file_write(const char *path, const char *text, struct zero_error *error);

/* The same with mode 0600, and with the process number before ".new": several processes may write the file at once. */
zero_status new_file_write_private(const char *path, const char *text, struct zero_error *error);

/* Returns NULL if there is no file, or if there is a regular file with one link that is empty, or that begins with
 * `beginning` and has at most `bytes_max` bytes. Else returns the rest of a sentence that begins with the path: it says
 * which file is there, and what the user can do. */
const char *own_file_problem(const char *path, const char *beginning, size_t bytes_max);
