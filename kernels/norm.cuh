/* The sum of squares of one block of NORM_BLOCK_ELEMENTS in shared memory, in norm.h's order. Each of sixteen threads
 * adds one lane. These chains of additions are long, so several blocks should run on a multiprocessor at once: with
 * 128 threads per block, as many run as shared memory holds. */
#ifndef ZERO_KERNELS_NORM_CUH
#define ZERO_KERNELS_NORM_CUH

#include "engine/base/convert.h"
#include "engine/base/limits.h"

enum { NORM_LANES = 16, NORM_THREADS = 128 };

/* Called by all threads of the block; one thread writes *out_sum. */
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
