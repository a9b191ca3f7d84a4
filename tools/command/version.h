/* What `zero --version` prints. */
#ifndef ZERO_TOOLS_COMMAND_VERSION_H
#define ZERO_TOOLS_COMMAND_VERSION_H

#include <stdio.h>

/* "zero 0.1.0", and then a line for each thing that a report of a fault needs. */
void version_print(FILE *out);

#endif
