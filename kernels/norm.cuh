/* The sum of squares of one block of NORM_BLOCK_ELEMENTS in shared memory, in norm.h's order. Each of sixteen threads
 * adds one lane. These chains of additions are long, so several blocks should run on a multiprocessor at once: with
 * 128 threads per block, as many run as shared memory holds. */
#ifndef ZERO_KERNELS_NORM_CUH
#define ZERO_KERNELS_NORM_CUH

#include "engine/base/convert.h"
#include "engine/base/limits.h"
#include "kernels/four.cuh"

enum { NORM_LANES = 16, NORM_THREADS = 128 };

/* The squares of a lane's next elements of the tile, from `first` on; zeros beyond the tile. */
struct norm_squares {
    static constexpr uint32_t COUNT = 8;
    double of[COUNT];

    __device__ void take(const float *tile, uint32_t first, uint32_t elements) {
#pragma unroll
        for (uint32_t k = 0; k < COUNT; k++) {
            uint32_t i = first + k * NORM_LANES;
            double x = i < elements ? tile[i] : 0.0f;
            of[k] = x * x;
        }
    }
};

/* Adds the squares of a lane's elements of the tile; the first of them is `first`. The next squares are made while these are added. */
static __device__ double norm_lane(double sum, const float *tile, uint32_t first, uint32_t elements) {
    constexpr uint32_t STEP = norm_squares::COUNT * NORM_LANES;
    norm_squares now, next;
    now.take(tile, first, elements);
    for (uint32_t i = first; i < elements; i += STEP, now = next) {
        next.take(tile, i + STEP, elements);
#pragma unroll
        for (uint32_t k = 0; k < norm_squares::COUNT; k++) sum += now.of[k];
    }
    return sum;
}

/* Called by the first sixteen threads of a warp, which have the lanes' sums; the first one writes *out_sum. */
static __device__ void norm_of_lanes(double sum, uint32_t lane, double *out_sum) {
    for (uint32_t half = NORM_LANES / 2; half; half /= 2)
        sum += __shfl_down_sync(0xffffu, sum, half, NORM_LANES);
    if (lane == 0) *out_sum = canonical_f64(sum);
}

/* A block's elements in shared memory. A thread loads NORM_FOURS groups of four, NORM_STRIDE elements apart, before it waits for the
 * first. */
enum { NORM_STRIDE = 4 * NORM_THREADS, NORM_FOURS = 4 };
struct norm_tile {
    alignas(16) float of[NORM_BLOCK_ELEMENTS];

    __device__ void put(uint32_t i, const four &f) {
        *reinterpret_cast<float4 *>(of + i) = make_float4(f.x[0], f.x[1], f.x[2], f.x[3]);
    }
};
static_assert(NORM_BLOCK_ELEMENTS % (NORM_FOURS * NORM_STRIDE) == 0, "all threads load as often");

/* Called by all threads of the block; one thread writes *out_sum. Warps take turns by block: each of a multiprocessor's four schedulers
 * has its own warps of every block. */
static __device__ void norm_of_tile(const float *tile, double *out_sum) {
    uint32_t lane = (threadIdx.x + blockIdx.x * 32) % NORM_THREADS;
    __syncthreads();
    if (lane >= NORM_LANES) return;
    norm_of_lanes(norm_lane(0, tile, lane, NORM_BLOCK_ELEMENTS), lane, out_sum);
}

#endif
