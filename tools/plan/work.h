/* How long a rank's host computes on a machine: from a model's operations, and from the bytes that they move through
 * memory. Pure, except for memory. */
#ifndef ZERO_TOOLS_PLAN_WORK_H
#define ZERO_TOOLS_PLAN_WORK_H

#include "engine/inside.h"
#include "tools/plan/machine.h"
#include "tools/plan/pass.h"
#include "tools/plan/shapes.h"

struct work_options {
    const struct shapes *shapes;
    const struct machine *machine;
    const struct blueprint *blueprint; /* contains the shapes' units: their trained parameters and types */
    uint64_t batch;                    /* sequences of a micro-step */
    uint32_t recompute;                /* blocks of a recomputed segment; 0: no recomputation */
};

struct pass_work work_of_unit(const struct work_options *options, uint32_t unit);

/* Where a use has several micro-batches, tools/gpt computes segments of one block again in their backward's use. */
bool work_recomputes_in_use(const struct blueprint *blueprint, uint32_t recompute);

/* pass_free frees `out`. */
zero_status work_pass(const struct work_options *options, struct pass *out, struct zero_error *error);

#endif
