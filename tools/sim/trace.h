/* The timeline of the first ranks (engine/trace/events.h) in virtual time. */
#ifndef ZERO_TOOLS_SIM_TRACE_H
#define ZERO_TOOLS_SIM_TRACE_H

#include "tools/sim/run.h"

/* Takes memory for the rank's events, if the rank is traced. False: there is none. */
bool sim_trace_open(struct rank *rank);
/* After the run; returns the number of operations that had no room. */
uint64_t sim_trace_write(struct run *run);

#endif
