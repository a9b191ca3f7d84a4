/* What `zero --version` prints. */
#pragma once

#include <stdio.h>

/* "zero 0.1.0", and then a line for each thing that a report of a fault needs. */
void version_print(FILE *out);
