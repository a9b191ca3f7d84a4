/* metrics.jsonl in the run's directory: one JSON object per step. Rank 0's. */
#ifndef ZERO_TOOLS_COMMAND_METRICS_H
#define ZERO_TOOLS_COMMAND_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "tools/command/record.h"

struct metrics {
    int file; /* its descriptor, while `is_open`; below 0: of a pipe that nobody reads */
    bool is_open;
    int64_t end;   /* behind the last whole line; below 0: unknown, as of a pipe */
    uint64_t lost; /* lines that could not be written */
    int failure;   /* of the first of them, an errno */
    char directory[4096], path[4096 + 32];
};

/* The run's directory, its parents included. `fresh`: no run shares the directory, whose name gets -2, -3, ... if there
 * is one already. */
zero_status metrics_make_directory(const char *directory, bool fresh, struct zero_error *error,
                                   struct metrics *out);

/* In that directory. Of a file of an earlier run there the lines of the first `steps_kept` steps stay. What is no regular
 * file, a device or a pipe, is neither read nor cut, and waits for nobody. */
zero_status metrics_open(struct metrics *metrics, uint64_t steps_kept, struct zero_error *error);

/* Each line is written at once, so that a run can be watched, and a killed one loses nothing. A line that cannot be
 * written is counted in `lost`, and nothing of it stays in the file. */
void metrics_write(struct metrics *metrics, const struct record *record);

void metrics_close(struct metrics *metrics);

#endif
