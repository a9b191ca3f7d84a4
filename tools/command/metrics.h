/* metrics.jsonl in the run's directory: one JSON object per step. Rank 0's. */
#ifndef ZERO_TOOLS_COMMAND_METRICS_H
#define ZERO_TOOLS_COMMAND_METRICS_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "tools/command/record.h"

struct metrics {
    FILE *file;
    char directory[4096], path[4096 + 32];
};

/* Makes the directory, its parents included. Of a file of an earlier run there the lines of the first `steps_kept`
 * steps stay; `fresh`: no run shares the directory, whose name gets -2, -3, ... if there is one already. */
zero_status metrics_open(const char *directory, bool fresh, uint64_t steps_kept, struct zero_error *error,
                         struct metrics *out);

/* Each line is flushed, so that a run can be watched, and a killed one loses nothing. */
zero_status metrics_write(struct metrics *metrics, const struct record *record, struct zero_error *error);

void metrics_close(struct metrics *metrics);

#endif
