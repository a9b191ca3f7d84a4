/* Numbers for a simulation with data: a gradient that is a function of step, micro-step, rank, parameter, element and
 * weight, and what serial training makes of it, which knows nothing of stages, shards or streams: ranks are added in
 * order, micro-steps before that or after it, as the accumulation says. In fp32. */
#ifndef ZERO_TOOLS_SIM_NUMBERS_H
#define ZERO_TOOLS_SIM_NUMBERS_H

#include "tools/sim/sim.h"

struct numbers {
    const struct sim_setup *setup;
    float **weights;             /* per parameter that is not tied */
    struct numbers_place *place; /* per rank: where it is */
    struct sim_host host;
};

/* numbers->host is for sim_setup.host; the setup is borrowed. */
zero_status numbers_open(const struct sim_setup *setup, struct numbers *out, struct zero_error *error);
/* After the run: ZERO_E_DIVERGED if its weights are not, bit for bit, those of serial training. */
zero_status numbers_check(const struct numbers *numbers, struct zero_error *error);
void numbers_close(struct numbers *numbers);

/* sim_run with numbers, and their check: what differs is in out->error. */
zero_status numbers_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error);

#endif
