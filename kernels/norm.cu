#include "kernels/work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

/* A block of the grid for a block of elements. Beyond the end are zeros, which add nothing. */
KERNEL(norm_blocks, NORM_THREADS, struct norm_blocks_argument, a) {
    __shared__ float tile[NORM_BLOCK_ELEMENTS];
    uint64_t first = blockIdx.x * (uint64_t)NORM_BLOCK_ELEMENTS;
    for (uint32_t i = threadIdx.x * 4; i < NORM_BLOCK_ELEMENTS; i += blockDim.x * 4) {
        four f = four_load(a.elements, a.dtype, first + i, four_count(first + i, a.count));
        for (uint32_t k = 0; k < 4; k++) tile[i + k] = f.x[k];
    }
    norm_of_tile(tile, &a.sums[blockIdx.x]);
}

/* One block; its threads fetch, its first one adds. */
KERNEL(norm_total, NORM_THREADS, struct norm_total_argument, a) {
    __shared__ double tile[2048];
    const uint64_t step = sizeof tile / sizeof *tile;
    double sum = 0;
    for (uint64_t first = 0; first < a.count; first += step) {
        uint32_t n = a.count - first < step ? (uint32_t)(a.count - first) : (uint32_t)step;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) tile[i] = a.sums[first + i];
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < n; i++) sum += tile[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *a.total = canonical_f64(sum);
}
