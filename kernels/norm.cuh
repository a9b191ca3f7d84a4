/* The sum of squares of one block of NORM_BLOCK_ELEMENTS in shared memory, in norm.h's order. Each of sixteen threads
 * adds one lane. These chains of additions are long, so several blocks should run on a multiprocessor at once: with
 * 128 threads per block, as many run as shared memory holds. */
#ifndef ZERO_KERNELS_NORM_CUH
#define ZERO_KERNELS_NORM_CUH

#include "engine/base/convert.h"
#include "engine/base/limits.h"

enum { NORM_LANES = 16, NORM_THREADS = 128 };

/* Adds the squares of a lane's elements of the tile; the first of them is `first`. */
static __device__ double norm_lane(double sum, const float *tile, uint32_t first, uint32_t elements) {
#pragma unroll 8
    for (uint32_t i = first; i < elements; i += NORM_LANES) {
        double x = tile[i];
        sum += x * x;
    }
    return sum;
}

/* Called by the first sixteen threads of a warp, which have the lanes' sums; the first one writes *out_sum. */
static __device__ void norm_of_lanes(double sum, uint32_t lane, double *out_sum) {
    for (uint32_t half = NORM_LANES / 2; half; half /= 2)
        sum += __shfl_down_sync(0xffffu, sum, half, NORM_LANES);
    if (lane == 0) *out_sum = canonical_f64(sum);
}

/* Called by all threads of the block; one thread writes *out_sum. */
static __device__ void norm_of_tile(const float *tile, double *out_sum) {
    __syncthreads();
    if (threadIdx.x >= NORM_LANES) return;
    norm_of_lanes(norm_lane(0, tile, threadIdx.x, NORM_BLOCK_ELEMENTS), threadIdx.x, out_sum);
}

#endif
