/* Compares two checkpoints bit for bit, whatever ranks saved them. Prints a line per tensor that differs. */
#ifndef ZERO_TOOLS_COMMAND_CKPT_DIFF_H
#define ZERO_TOOLS_COMMAND_CKPT_DIFF_H

#include <stdbool.h>

#include "engine/base/error.h"

zero_status ckpt_diff(const char *a, const char *b, bool *out_same, struct zero_error *error);

#endif
