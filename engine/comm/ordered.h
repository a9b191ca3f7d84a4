/* The sum of the ranks' contributions in fp32, rounded once: those of each node in rank order, ((r0 + r1) + r2) + ..., then the
 * nodes in their order. Floating-point addition is not associative; the fixed order gives the same bits on every transport. The
 * kernel ordered_sum (kernels/ordered_sum.h) gives the same bits on a GPU.
 *
 * fp32 -> bf16 and fp32 -> fp16 round to nearest, half to even. Every NaN
 * becomes the canonical NaN (base/numbers/convert.h).
 *
 * The sum and `written` run in the floating-point environment of float_env.h. On return the caller's environment is
 * restored. */
#pragma once

#include "engine/comm/comm.h"

struct ordered {
    const void *const *inputs; /* one per rank, each `count` elements of `dtype` */
    uint32_t input_count;
    uint32_t node_inputs;           /* the adjacent inputs of each node; 0: all are of one node */
    enum dtype dtype, target_dtype; /* dtype: fp32, bf16 or fp16; target_dtype: the same, or fp32 */
    void *target;                   /* may be one of the inputs */
    uint64_t count;
    bool add; /* target = target + sum, in fp32, rounded once */
    comm_written_fn written;
    void *written_user;
};

void ordered_sum(const struct ordered *sum);
