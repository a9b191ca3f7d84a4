#include "kernels/device_work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

static constexpr uint32_t AHEAD = 8;

/* A lane loads several elements before it adds the first. */
template <typename T>
static __device__ double lane_squares(const struct norm_blocks_argument &a, const norm_part &part) {
    const T *x = static_cast<const T *>(a.elements) + part.first;
    uint32_t i = part.lane;
    double sum = 0;
    for (; i + (AHEAD - 1) * NORM_LANES < part.count; i += AHEAD * NORM_LANES) {
        T bits[AHEAD];
        for (uint32_t k = 0; k < AHEAD; k++) bits[k] = x[i + k * NORM_LANES];
        for (uint32_t k = 0; k < AHEAD; k++) sum = norm_add(sum, element_widened(bits[k], a.dtype));
    }
    for (; i < part.count; i += NORM_LANES) sum = norm_add(sum, element_widened(x[i], a.dtype));
    return sum;
}

/* Half a warp per block of elements. */
KERNEL(norm_blocks, NORM_THREADS, struct norm_blocks_argument, a) {
    const norm_part part = norm_part_of(a.count);
    double sum = a.dtype == DTYPE_F32 ? lane_squares<uint32_t>(a, part) : lane_squares<uint16_t>(a, part);
    norm_of_lanes(sum, part.lane, part.count ? &a.sums[part.block] : nullptr, NORM_BOTH_HALVES);
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
