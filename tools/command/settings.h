/* Values that the command line gives to keys of the configuration: `--set optimizer.params.lr=1e-4`. */
#ifndef ZERO_TOOLS_COMMAND_SETTINGS_H
#define ZERO_TOOLS_COMMAND_SETTINGS_H

#include "engine/base/error.h"
#include "engine/config/config.h"
#include "tools/command/options.h"

/* *out: the text of the configuration file with the values of `set`, of which a later one overrides an earlier one; the
 * caller frees it. NULL: `set` is empty. A value is JSON; anything else is a string. `other_model`: --model replaces the
 * model block, so that keys of the block are refused. Errors of the file are those of config_read. */
zero_status settings_apply(const char *config_path, const struct option_each *set, bool other_model,
                           char **out, struct zero_error *error);

/* The text of a configuration, which may itself be the argument, as json-c prints it; the caller frees it. */
zero_status settings_text(const char *config_path, char **out, struct zero_error *error);

/* After config_read of that text: the keys' source is the command line, for `zero config`. */
void settings_mark(struct config *config, const struct option_each *set);

#endif
