/* The sum of squares of a block of NORM_BLOCK_ELEMENTS, in norm.h's order: each of sixteen threads adds one lane. These chains of
 * additions are long. Many half warps, each with a block of its own, hide each other's waits. */
#ifndef ZERO_KERNELS_NORM_CUH
#define ZERO_KERNELS_NORM_CUH

#include "engine/base/numbers/convert.h"
#include "engine/base/limits.h"

enum { NORM_LANES = 16, NORM_THREADS = 128 };

/* A square of an fp32 number is exact in double, so a fused operation rounds to the same sum. */
static __device__ double norm_add(double sum, float element) {
    double x = element;
    return fma(x, x, sum);
}

/* Adds the squares of a lane's elements of the tile; the first of them is `first`. */
static __device__ double norm_lane(double sum, const float *tile, uint32_t first, uint32_t elements) {
#pragma unroll 8
    for (uint32_t i = first; i < elements; i += NORM_LANES) sum = norm_add(sum, tile[i]);
    return sum;
}

/* Called by the threads of `mask`: half a warp or both halves, each of which has the lanes' sums of a block. The first of a half writes
 * *out_sum, unless that is NULL. */
static __device__ void norm_of_lanes(double sum, uint32_t lane, double *out_sum, uint32_t mask) {
    for (uint32_t half = NORM_LANES / 2; half; half /= 2)
        sum += __shfl_down_sync(mask, sum, half, NORM_LANES);
    if (lane == 0 && out_sum) *out_sum = canonical_f64(sum);
}
static constexpr uint32_t NORM_ONE_HALF = 0xffffu, NORM_BOTH_HALVES = 0xffffffffu;

/* The half warp's block of an array of `count` elements: elements `first` to first + count - 1. */
struct norm_part {
    uint64_t block, first;
    uint32_t lane, count; /* count 0: there is no such block */
};
static __device__ norm_part norm_part_of(uint64_t count) {
    uint64_t block = blockIdx.x * (uint64_t)(NORM_THREADS / NORM_LANES) + threadIdx.x / NORM_LANES,
             first = block * NORM_BLOCK_ELEMENTS, left = first < count ? count - first : 0;
    return {block, first, threadIdx.x % NORM_LANES,
            left < NORM_BLOCK_ELEMENTS ? (uint32_t)left : (uint32_t)NORM_BLOCK_ELEMENTS};
}

#endif
