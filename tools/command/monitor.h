/* Writes the files of DeepSpeed's blocks tensorboard and csv_monitor: scalars of each step, by the number of samples trained. Tags,
 * files and columns are DeepSpeed's (deepspeed/monitor). Only rank 0 writes. */
#ifndef ZERO_TOOLS_COMMAND_MONITOR_H
#define ZERO_TOOLS_COMMAND_MONITOR_H

#include <stdbool.h>

#include "engine/config/config.h"
#include "tools/command/record.h"

enum { MONITORS = 2 };

struct monitor {
    char directory[4096];   /* ends with a slash; empty: not enabled, or ended by a failure */
    char events[4096 + 64]; /* TensorBoard's file */
};

/* Makes the directories: those of the configuration, or tensorboard/ and csv_monitor/ in `run`. `anew`: the run begins, so that files
 * of an earlier one in `run` are replaced. A directory of the configuration may have another run's files: they are replaced only if the
 * run also `overwrites`; else it appends to them. */
zero_status monitor_open(const struct config *config, const char *run, bool anew, bool overwrites,
                         struct zero_error *error, struct monitor out[MONITORS]);

/* Appends a step's scalars. A failure is reported once on standard error; then the monitor is not used any more, and
 * training goes on. */
void monitor_write(struct monitor monitor[MONITORS], const struct record *record, uint64_t samples);

#endif
