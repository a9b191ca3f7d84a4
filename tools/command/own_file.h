/* Files in a run's directory that a run empties or replaces: only those that a run has made. */
#ifndef ZERO_TOOLS_COMMAND_OWN_FILE_H
#define ZERO_TOOLS_COMMAND_OWN_FILE_H

#include <stddef.h>

/* NULL: there is nothing, or a regular file with one name that is empty or begins with `beginning` and has at most
 * `bytes_max` bytes. Else the rest of a sentence that begins with the path: what is there, and what to do. */
const char *own_file_problem(const char *path, const char *beginning, size_t bytes_max);

#endif
