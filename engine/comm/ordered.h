/* The sum of the ranks' contributions in rank order, in fp32, rounded once: ((r0 + r1) + r2) + ... The same
 * bits on every transport, since floating-point addition does not associate. fp32 -> bf16 rounds half away
 * from zero (w = (u + 0x8000) >> 16), fp32 -> fp16 half to even; a NaN is the one
 * NaN. The kernel ordered_sum (kernels/ordered_sum.h) gives the same bits on a GPU. In the environment of float_env.h, `written` included, whatever the caller's; that is as before on return. */
#ifndef ZERO_ENGINE_COMM_ORDERED_H
#define ZERO_ENGINE_COMM_ORDERED_H

#include "engine/comm/comm.h"

struct ordered {
    const void *const *inputs; /* one per rank, each `count` elements of `dtype` */
    uint32_t input_count;
    enum dtype dtype, target_dtype; /* fp32, bf16 or fp16; the target's: the same or fp32 */
    void *target;                   /* may be one of the inputs */
    uint64_t count;
    bool add; /* target + sum, fp32 targets only */
    comm_written_fn written;
    void *written_user;
};

void ordered_sum(const struct ordered *sum);

#endif
