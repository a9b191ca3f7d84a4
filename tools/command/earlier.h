/* Finds out whether a run's directory holds an earlier run, which a new one must not overwrite by accident. */
#ifndef ZERO_TOOLS_COMMAND_EARLIER_H
#define ZERO_TOOLS_COMMAND_EARLIER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* ZERO_E_ARGUMENT: `directory` holds the steps (metrics.jsonl) or the checkpoints of an earlier run; the message says how
 * to go on with that run or to overwrite it. `shadow`: the configuration keeps a shadow, from which a run may recover. */
zero_status earlier_check(const char *directory, bool shadow, struct zero_error *error);

/* Whether `directory` holds a complete checkpoint to go on from. earlier_step: its step; 0 where there is none, or where it cannot be
 * told. */
bool earlier_saved(const char *directory);
uint64_t earlier_step(const char *directory);

#endif
