/* How long a rank's host computes on a machine: from a model's operations, and from the bytes that they move through
 * memory. Pure, except for memory. */
#pragma once

#include "engine/api/inside.h"
#include "tools/plan/machine/machine.h"
#include "tools/plan/pass.h"
#include "tools/plan/shapes.h"

/* The bytes that a GPU's elementwise passes move: norms, activations, residual sums, rotations, the loss. Products and attention
 * are not among them; their time follows from their arithmetic. */

/* How a program cuts the passes into kernels. */
enum kernels {
    KERNELS_FUSED, /* a kernel per pass: each input is read once and each output written once (torch.compile) */
    KERNELS_EAGER, /* a kernel per operator, as PyTorch without a compiler: RMSNorm, rotation and loss go by way of fp32 */
    KERNELS_OWN, /* tools/gpt: a kernel per pass, and gradients of norms' outputs in fp32 */
};

/* Bytes per token. again: the bytes of the forward that tools/gpt computes again in the backward, unless it keeps
 * outputs of this kind; those of attention and MLP if the whole block runs again. */
struct elementwise {
    double forward, backward, again[GPT_OUTPUT_KINDS];
};

/* For elements of 16 bits. */
struct elementwise elementwise_of(const struct shapes *shapes, uint32_t unit, enum kernels kernels);

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

/* On a GPU: the inputs of so many last segments stay there when the others leave (tools/gpt/cuda/checkpoints.c). */
enum { CHECKPOINTS_NEAR = 2 };

/* Where a use has several micro-batches, tools/gpt computes segments of one block again in their backward's use. */
bool work_recomputes_in_use(const struct blueprint *blueprint, uint32_t recompute);

/* pass_free frees `out`. */
zero_status work_pass(const struct work_options *options, struct pass *out, struct zero_error *error);
