/* Published speeds of other systems beside the planner's: the model, the GPUs, the batch and the recomputation are the source's;
 * collectives and their overlap are this engine's at stage 3. */
#pragma once

#include <stdio.h>

#include "engine/base/error.h"
#include "tools/plan/host_work.h"

struct throughput_row {
    const char *model, *device;
    uint32_t ranks, micro_batch, micro_steps;
    const struct throughput_style *style;
    double per_s; /* the source's tokens per second of a GPU */
    const char *source;
    /* FIT: configs/hardware.json's rates of products are the mean that these rows need. CHECK, MORE: no rate was chosen by
     * them; MORE: models for which the planner promises no accuracy. */
    enum { THROUGHPUT_FIT, THROUGHPUT_CHECK, THROUGHPUT_MORE, THROUGHPUT_USES } use;
    uint64_t sequence; /* tokens; 0: the model's own */
};

struct throughput_style {
    const char *name;
    struct work_style work;
};

const struct throughput_row *throughput_at(uint32_t index); /* NULL past the last */

/* *out: the planned tokens per second of a GPU, whether or not its memory has room for the activations that tools/gpt keeps. */
zero_status throughput_plan(const struct throughput_row *row, double *out, struct zero_error *error);

zero_status throughput_print(FILE *out, struct zero_error *error);
