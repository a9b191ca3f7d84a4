/* A kernel that sums the contributions of the ranks in fp32, and rounds once: those of each node in rank order,
 * ((r0 + r1) + r2) + ..., then the nodes in their order. It gives the same bits as engine/comm's sum on the host.
 * fp32 -> bf16 and fp32 -> fp16 round to nearest, half to even; a NaN becomes the one NaN. The sum of one array in its
 * own place therefore writes only NaNs on a GPU. The kernel also takes the sums of squares of the target, in norm.h's
 * order. */
#pragma once

#include <stdint.h>

struct kernel;

enum { ORDERED_INPUTS_MAX = 16 };

struct ordered_sum_argument {
    /* One array per rank, of `count` elements of `dtype`. If input_stride is not 0, only input[0] is used: the arrays
     * begin there, input_stride bytes apart. */
    const void *input[ORDERED_INPUTS_MAX];
    uint64_t input_stride, count;
    void *target; /* may be one of the inputs */
    double *sums; /* sums of squares, one per NORM_BLOCK_ELEMENTS of the target; or NULL */
    uint32_t input_count, node_inputs; /* node_inputs: adjacent ones of each node; 0: all are of one node */
    uint32_t dtype;
    uint32_t target_dtype; /* the same as dtype, or fp32 */
    uint32_t add;          /* adds the sum to the target, in fp32 */
};

extern const struct kernel kernel_ordered_sum;
