/* The sum of the ranks' contributions in rank order, in fp32, rounded once, as a kernel: ((r0 + r1) + r2) + ..., the same bits
 * as engine/comm's on the host. fp32 -> bf16 rounds half away from zero, fp32 -> fp16 half to even; a NaN is
 * the one NaN. The sums of squares of what is written come with it, in norm.h's order. */
#ifndef ZERO_KERNELS_ORDERED_SUM_H
#define ZERO_KERNELS_ORDERED_SUM_H

#include <stdint.h>

struct kernel;

enum { ORDERED_INPUTS_MAX = 16 };

struct ordered_sum_argument {
    /* One per rank, each `count` elements of `dtype`; or, where input_stride is not 0, all from the first on, so many bytes apart. */
    const void *input[ORDERED_INPUTS_MAX];
    uint64_t input_stride, count;
    void *target; /* may be one of the inputs */
    double *sums; /* one per NORM_BLOCK_ELEMENTS of the target; or NULL */
    uint32_t input_count, dtype;
    uint32_t target_dtype; /* dtype's or fp32 */
    uint32_t add;          /* target + sum, fp32 targets only */
};

extern const struct kernel kernel_ordered_sum;

#endif
