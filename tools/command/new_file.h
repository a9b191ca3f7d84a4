/* Small files that are replaced as a whole. */
#ifndef ZERO_TOOLS_COMMAND_NEW_FILE_H
#define ZERO_TOOLS_COMMAND_NEW_FILE_H

#include "engine/base/error.h"

/* Writes `text` to a new file, `path` and ".new", which then takes the place of `path`: a symbolic link there is replaced,
 * not followed, and a full disk or a power loss leaves the old file as it is. */
zero_status new_file_write(const char *path, const char *text, struct zero_error *error);

#endif
