/* Opens files that others wrote: a pipe may have no writer, and a device may have no end. Threads: any. */
#pragma once

#include <stdio.h>

/* Opens a regular file for reading. NULL with errno: EINVAL if the path leads to anything else. */
FILE *regular_file_open(const char *path);

/* Why there is no such file, by errno. */
const char *regular_file_why(void);
