/* How long a rank's host computes on a machine: from a model's operations, and from the bytes that they move through
 * memory. Pure, except for memory. */
#ifndef ZERO_TOOLS_PLAN_WORK_H
#define ZERO_TOOLS_PLAN_WORK_H

#include "engine/inside.h"
#include "tools/plan/elementwise.h"
#include "tools/plan/machine.h"
#include "tools/plan/pass.h"
#include "tools/plan/shapes.h"

/* How a program computes on a GPU. `again`: the parts of a block's forward that its backward computes again in its own use,
 * beside a scenario's segments: selective recomputation (Korthikanti et al. 2022) is {0, 1, 0}, if attention keeps its scores at
 * all; flash attention never keeps them, and counts them in its backward. */
struct work_style {
    enum kernels kernels;
    struct work_again {
        double products, attention, elementwise;
    } again;
};

struct work_options {
    const struct shapes *shapes;
    const struct machine *machine;
    const struct blueprint *blueprint; /* contains the shapes' units: their trained parameters and types */
    uint64_t batch;                    /* sequences of a micro-step */
    struct shapes_recompute recompute;
    const struct work_style *style; /* NULL: that of tools/gpt */
};

struct pass_work work_of_unit(const struct work_options *options, uint32_t unit);

/* Where a use has several micro-batches, tools/gpt computes segments of one block again in their backward's use. */
bool work_recomputes_in_use(const struct blueprint *blueprint, uint32_t recompute);

/* pass_free frees `out`. */
zero_status work_pass(const struct work_options *options, struct pass *out, struct zero_error *error);

#endif
