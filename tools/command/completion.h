/* Writes the completion of a shell, from the commands' own tables of options. */
#ifndef ZERO_TOOLS_COMMAND_COMPLETION_H
#define ZERO_TOOLS_COMMAND_COMPLETION_H

#include <stdio.h>

#include "tools/command/command.h"

/* ZERO_E_ARGUMENT: there is none for this shell; the message names those that have one. */
zero_status completion_write(const char *shell, const struct command *const *commands, int count, FILE *out,
                             struct zero_error *error);

#endif
