/* Prints the summary before a run's first step, and reads how much memory the process took. Only rank 0 prints. */
#ifndef ZERO_TOOLS_COMMAND_REPORT_H
#define ZERO_TOOLS_COMMAND_REPORT_H

#include "tools/command/job.h"

/* Prints one block: the model, the ranks, the way they train, the data, and the memory per rank, planned and
 * measured. `anew`: the run goes on from nothing. */
void report_start(const struct job *job, bool anew, const zero_engine *engine, const struct gpt *gpt,
                  const char *run, uint64_t steps);

/* Bytes allocated per tier, from the engine's memory rows. */
void report_tiers(const zero_engine *engine, uint64_t bytes[ZERO_TIERS]);

/* The process's peak of resident memory (VmHWM), in bytes; 0 where the system does not provide it. */
uint64_t report_resident(void);

#endif
