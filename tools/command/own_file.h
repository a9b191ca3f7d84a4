/* Protects the files in a run's directory: a run empties or replaces only files that a run made. */
#ifndef ZERO_TOOLS_COMMAND_OWN_FILE_H
#define ZERO_TOOLS_COMMAND_OWN_FILE_H

#include <stddef.h>

/* Returns NULL if there is no file, or if there is a regular file with one link that is empty, or that begins with
 * `beginning` and has at most `bytes_max` bytes. Else returns the rest of a sentence that begins with the path: it says
 * which file is there, and what the user can do. */
const char *own_file_problem(const char *path, const char *beginning, size_t bytes_max);

#endif
