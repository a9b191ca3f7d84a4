/* metrics.jsonl in the run's directory: one JSON object per step. Only rank 0 writes it. */
#ifndef ZERO_TOOLS_COMMAND_METRICS_H
#define ZERO_TOOLS_COMMAND_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "tools/command/record.h"

struct metrics {
    int file; /* its descriptor while `is_open`; below 0: a pipe without a reader */
    bool is_open;
    int64_t end;   /* after the last whole line; below 0: unknown, as for a pipe */
    uint64_t lost; /* lines that could not be written */
    int failure;   /* errno of the first lost line */
    char directory[4096], path[4096 + 32];
};

/* Makes the run's directory and its parents. `fresh`: the run shares its directory with no other run; if the directory
 * exists already, the name gets -2, -3, ... */
zero_status metrics_make_directory(const char *directory, bool fresh, struct zero_error *error,
                                   struct metrics *out);

/* Opens metrics.jsonl in that directory. In the file of an earlier run the lines of the first `steps_kept` steps stay.
 * A device or a pipe is neither read nor cut, and the open does not wait for a reader. */
zero_status metrics_open(struct metrics *metrics, uint64_t steps_kept, struct zero_error *error);

/* Writes each line at once, so that a reader can follow the run, and a killed run loses no line. If a line cannot be
 * written, no part of it stays in the file, and `lost` counts it. */
void metrics_write(struct metrics *metrics, const struct record *record);

void metrics_close(struct metrics *metrics);

#endif
