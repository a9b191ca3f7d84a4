/* The values of a step that are summed over ranks: its loss, its traffic and its times. */
#ifndef ZERO_TOOLS_COMMAND_STEP_SUMS_H
#define ZERO_TOOLS_COMMAND_STEP_SUMS_H

#include <stdbool.h>

#include "engine/zero.h"
#include "tools/command/agreement.h"
#include "tools/command/record.h"

enum {
    LOSS = AGREED,
    RESIDENT,
    WIRE,
    GATHERS,
    GATHERED,
    REDUCES,
    REDUCED,
    DRIVE_READ,
    DRIVE_WRITTEN,
    COMPUTE_S,
    WAIT_S,
    UPDATE_S,
    SUMS
};

/* Sets all sums but LOSS: this rank's part of the step that began when `counters` were read. Reads `counters` anew.
 * `counts_process`: this rank counts the memory of its process. */
void step_sums_count(const zero_engine *engine, bool counts_process, zero_counters *counters,
                     double sums[SUMS]);

/* Sets the fields of the record that the sums over all ranks give. */
void step_sums_record(const double sums[SUMS], uint32_t ranks, double seconds, struct record *record);

#endif
