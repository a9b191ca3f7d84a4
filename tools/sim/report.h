/* Prints the result of a simulation for people. */
#ifndef ZERO_TOOLS_SIM_REPORT_H
#define ZERO_TOOLS_SIM_REPORT_H

#include <stdio.h>

#include "tools/sim/job.h"

void report_print(const struct job *job, const struct job_ranks *ranks, const struct sim_result *result,
                  FILE *out);

#endif
