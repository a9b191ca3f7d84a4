/* The sum of squares of one block of NORM_BLOCK_ELEMENTS in norm.h's order, from shared memory: sixteen threads have a lane each. Their
 * chains of additions are long, so that several blocks must be under way on a multiprocessor: at 128 threads there are
 * as many as shared memory holds. */
#ifndef ZERO_KERNELS_NORM_CUH
#define ZERO_KERNELS_NORM_CUH

#include "engine/base/convert.h"
#include "engine/base/limits.h"

enum { NORM_LANES = 16, NORM_THREADS = 128 };

/* Called by all threads; *out_sum is written by one. */
static __device__ void norm_of_tile(const float *tile, double *out_sum) {
    __syncthreads();
    if (threadIdx.x >= NORM_LANES) return;
    double sum = 0;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < NORM_BLOCK_ELEMENTS; i += NORM_LANES) {
        double x = tile[i];
        sum += x * x;
    }
    for (uint32_t half = NORM_LANES / 2; half; half /= 2)
        sum += __shfl_down_sync(0xffffu, sum, half, NORM_LANES);
    if (threadIdx.x == 0) *out_sum = canonical_f64(sum);
}

#endif
