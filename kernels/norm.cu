#include "kernels/work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

/* One block of the grid per block of elements. Zeros fill the last block; they add nothing. */
KERNEL(norm_blocks, NORM_THREADS, struct norm_blocks_argument, a) {
    __shared__ norm_tile tile;
    uint64_t first = blockIdx.x * (uint64_t)NORM_BLOCK_ELEMENTS;
    four f[NORM_FOURS];
    for (uint32_t i = threadIdx.x * 4; i < NORM_BLOCK_ELEMENTS; i += NORM_FOURS * NORM_STRIDE) {
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++) {
            uint64_t at = first + i + k * NORM_STRIDE;
            f[k] = four_load(a.elements, a.dtype, at, four_count(at, a.count));
        }
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++) tile.put(i + k * NORM_STRIDE, f[k]);
    }
    norm_of_tile(tile.of, &a.sums[blockIdx.x]);
}

static constexpr uint32_t TOTAL_STEP = 1024, WARP = 32;

/* Called by all warps except the first. */
static __device__ void fetch(double *tile, const struct norm_total_argument &a, uint64_t first) {
    for (uint32_t i = threadIdx.x - WARP; i < TOTAL_STEP && first + i < a.count; i += NORM_THREADS - WARP)
        tile[i] = a.sums[first + i];
}

/* One block. Its first thread adds, in one long chain of additions; the other warps fetch the next tile. */
KERNEL(norm_total, NORM_THREADS, struct norm_total_argument, a) {
    __shared__ double tile[2][TOTAL_STEP];
    double sum = a.add ? *a.total : 0;
    uint32_t now = 0;
    if (threadIdx.x >= WARP) fetch(tile[0], a, 0);
    for (uint64_t first = 0; first < a.count; first += TOTAL_STEP, now ^= 1) {
        uint32_t n = a.count - first < TOTAL_STEP ? (uint32_t)(a.count - first) : TOTAL_STEP;
        __syncthreads();
        if (threadIdx.x >= WARP) fetch(tile[now ^ 1], a, first + TOTAL_STEP);
        if (threadIdx.x) continue;
#pragma unroll 16
        for (uint32_t i = 0; i < n; i++) sum += tile[now][i];
    }
    if (threadIdx.x == 0) *a.total = canonical_f64(sum);
}
