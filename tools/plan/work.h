/* How long a rank's host computes: a model's operations, and what it moves through memory, on a machine. Pure but for
 * memory. */
#ifndef ZERO_TOOLS_PLAN_WORK_H
#define ZERO_TOOLS_PLAN_WORK_H

#include "engine/inside.h"
#include "tools/plan/machine.h"
#include "tools/plan/pass.h"
#include "tools/plan/shapes.h"

struct work_options {
    const struct shapes *shapes;
    const struct machine *machine;
    const struct blueprint *blueprint; /* with the shapes' units: which parameters train, in which type */
    uint64_t batch;                    /* sequences of a micro-step */
    uint32_t recompute;                /* blocks that are computed again together; 0: none */
};

struct pass_work work_of_unit(const struct work_options *options, uint32_t unit);

/* pass_free frees it. */
zero_status work_pass(const struct work_options *options, struct pass *out, struct zero_error *error);

#endif
