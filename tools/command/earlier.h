/* Finds out whether a run's directory holds an earlier run, which a new one must not overwrite by accident. */
#ifndef ZERO_TOOLS_COMMAND_EARLIER_H
#define ZERO_TOOLS_COMMAND_EARLIER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* ZERO_E_ARGUMENT: `directory` holds the steps (metrics.jsonl) or the checkpoints of an earlier run; the message says how
 * to go on with that run or to overwrite it. `shadow`: the configuration keeps a shadow, from which a run may recover. */
zero_status earlier_check(const char *directory, bool shadow, struct zero_error *error);

/* The latest checkpoint of `directory`. */
struct earlier {
    bool saved;    /* there is one */
    uint64_t step; /* the number of its directory */
    char run[40];  /* the id of the run that saved it; "": none */
};

/* ZERO_E_IO: there are checkpoints, or there may be, and the latest one cannot be found. */
zero_status earlier_find(const char *directory, struct earlier *out, struct zero_error *error);

#endif
