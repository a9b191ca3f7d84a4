/* The bytes that a GPU's elementwise passes move: norms, activations, residual sums, rotations, the loss. Products and attention
 * are not among them; their time follows from their arithmetic. Pure. */
#ifndef ZERO_TOOLS_PLAN_ELEMENTWISE_H
#define ZERO_TOOLS_PLAN_ELEMENTWISE_H

#include "tools/plan/shapes.h"

/* How a program cuts the passes into kernels. */
enum kernels {
    KERNELS_FUSED, /* a kernel per pass: each input is read once and each output written once (torch.compile) */
    KERNELS_EAGER, /* a kernel per operator, as PyTorch without a compiler: RMSNorm, rotation and loss go by way of fp32 */
    KERNELS_OWN,   /* tools/gpt: a kernel per pass, and gradients of norms' outputs in fp32 */
};

/* Bytes per token. again: the bytes of the forward that tools/gpt computes again in the backward, unless it keeps
 * outputs of this kind. */
struct elementwise {
    double forward, backward, again[GPT_OUTPUT_KINDS];
};

/* For elements of 16 bits. */
struct elementwise elementwise_of(const struct shapes *shapes, uint32_t unit, enum kernels kernels);

#endif
