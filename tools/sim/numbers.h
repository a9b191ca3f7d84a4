/* Numbers for a simulation with data: a gradient that is a function of step, micro-step, rank, parameter, element and
 * weight; and the result of serial training with it. Serial training knows no stages, shards or streams: it adds ranks
 * in order, and micro-steps before or after the ranks, as the accumulation mode says. In fp32. */
#ifndef ZERO_TOOLS_SIM_NUMBERS_H
#define ZERO_TOOLS_SIM_NUMBERS_H

#include "tools/sim/sim.h"

struct numbers {
    const struct sim_setup *setup;
    float **weights;             /* per parameter that is not tied to another */
    struct numbers_place *place; /* index: rank; the rank's step and micro-step */
    struct sim_host host;
};

/* numbers->host is for sim_setup.host; borrows the setup. */
zero_status numbers_open(const struct sim_setup *setup, struct numbers *out, struct zero_error *error);
/* After the run: ZERO_E_DIVERGED if the run's weights differ in any bit from those of serial training. */
zero_status numbers_check(const struct numbers *numbers, struct zero_error *error);
void numbers_close(struct numbers *numbers);

/* Runs sim_run with numbers and checks them; out->error holds a difference. */
zero_status numbers_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error);

#endif
