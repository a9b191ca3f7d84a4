/* What a host decides in a step, from the agreements of all ranks. Pure. */
#pragma once

#include "engine/executor/executor.h"

/* The same on all ranks. */
struct host_decision {
    double norm; /* of the gradient, before clipping */
    float scale; /* struct update_settings: the mean, and clipping by the norm */
    enum outcome outcome;
};

/* The squared norm of the summed gradient, for a data rank: adds over the ranks that share one copy, model rank by model rank, and
 * their data ranks in order. `at`: the indices in `all` in this order; NULL: 0, 1, ... */
double host_norm_squared(const struct policy *policy, uint32_t data_rank, const struct agreement *all,
                         const uint32_t *at, uint32_t model_ranks);

/* `mean`: the factor from the summed gradient to the mean. Updates in the backward use it without clipping. `clip`: 0: no clipping. */
struct host_decision host_decide(const struct policy *policy, double norm_squared, double mean, double clip);
