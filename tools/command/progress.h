/* Shows a run's progress: one live line on a terminal, a plain line every few steps in a pipe. Only rank 0 shows it.
 * Threads: progress_line may be called from any thread, at any time. */
#ifndef ZERO_TOOLS_COMMAND_PROGRESS_H
#define ZERO_TOOLS_COMMAND_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/command/record.h"

struct progress {
    bool quiet, live;
    uint64_t steps, every;    /* plain lines: at step 1, every `every` steps, and at the last */
    double seconds_per_step;  /* a moving average */
    double seconds;           /* of all steps so far */
    uint64_t trained, tokens; /* steps that were counted, and their tokens */
    struct record last;       /* the step that was counted last */
};

void progress_open(struct progress *progress, bool quiet, bool live, uint64_t steps, uint64_t every);
void progress_step(struct progress *progress, const struct record *record);

/* Prints a line that the live line does not overwrite. */
void progress_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the live line and prints a summary of the run. */
void progress_close(struct progress *progress);

#endif
