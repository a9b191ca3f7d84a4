/* One GPU, and a model whose state is in host memory or on a drive: published runs beside what would be planned here, and which models
 * which machines train. All of it is planned as `zero train` would run it: stage 3, bf16, blocks computed again, their inputs in host
 * memory. */
#pragma once

#include <stdio.h>

#include "engine/base/error.h"
#include "tools/plan/price.h"
#include "tools/plan/print/largest.h"

/* A published run. */
struct one_gpu_row {
    const char
        *model; /* as in shapes_find; or "gpt-2.6b", "gpt-6.7b": GPT-2's shape in RESULTS.md's widths */
    const char *device, *host;
    uint64_t sequence, micro_batch, micro_steps;
    bool clips;                /* else updates run in the backward */
    bool near;                 /* as in the first runs: inputs of blocks stay on the GPU, masters are fp32 */
    double per_s;              /* the source's tokens per second */
    double device_gb, host_gb; /* that it takes there; 0: unknown */
    const char *source, *why;
};

const struct one_gpu_row *one_gpu_at(uint32_t index); /* NULL past the last */

/* Times, whether or not the memory has room. */
zero_status one_gpu_plan(const struct one_gpu_row *row, struct price *out, struct zero_error *error);

zero_status one_gpu_print(FILE *out, struct zero_error *error);

struct one_gpu_machine {
    const char *device, *host;
    uint64_t host_gib;
    bool drive; /* one of hardware.json's nvme-gen4 */
};

/* Micro-steps of one sequence of 4,096 tokens, in vertical order, with clipping. */
enum { ONE_GPU_SHORT = 4, ONE_GPU_LONG = 16 };

/* The largest model of Llama's shape that fits with the longer steps, in the row of tiers that moves the fewest bytes. */
struct one_gpu_most {
    struct largest largest;
    struct price shorter, longer;
};
zero_status one_gpu_most(const struct one_gpu_machine *machine, struct one_gpu_most *out,
                         struct zero_error *error);

/* A step of `sequences` sequences of 4,096 tokens in one micro-step, wholly on the card, whether or not it has room, and with parameters and
 * state in host memory; without clipping with updates in the backward and the forward. `filled`: the first units' state is on the card, as
 * far as this budget has room. */
#define ONE_GPU_BUDGET 0x1p35
struct one_gpu_pair {
    struct price card, host, filled;
};
zero_status one_gpu_pair(const struct one_gpu_machine *machine, const char *model, uint64_t sequences,
                         bool clips, struct one_gpu_pair *out, struct zero_error *error);

/* "What trains on which machine", and how fast beside the same training wholly on the card, in Markdown. */
zero_status one_gpu_machines_print(FILE *out, struct zero_error *error);
