/* One block of the grid per NORM_BLOCK_ELEMENTS elements; each thread takes four at a time. If a norm is wanted, the
 * written values stay in shared memory for it. */
#include "kernels/ordered_sum.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

static __device__ const void *input_of(const struct ordered_sum_argument &a, uint32_t rank) {
    return a.input_stride ? static_cast<const char *>(a.input[0]) + rank * a.input_stride : a.input[rank];
}

static __device__ four sum_of(const struct ordered_sum_argument &a, uint64_t first, uint32_t count) {
    four sum = four_load(a.input[0], a.dtype, first, count);
    for (uint32_t rank = 1; rank < a.input_count; rank++) {
        four x = four_load(input_of(a, rank), a.dtype, first, count);
        for (uint32_t k = 0; k < 4; k++) sum.x[k] += x.x[k];
    }
    if (a.add) {
        four x = four_load(a.target, a.target_dtype, first, count);
        for (uint32_t k = 0; k < 4; k++) sum.x[k] = x.x[k] + sum.x[k];
    }
    for (uint32_t k = 0; k < 4; k++) sum.x[k] = canonical(sum.x[k]);
    return sum;
}

/* The sum of one array in its own place changes nothing but a NaN's bits. */
static __device__ bool stays(const struct ordered_sum_argument &a) {
    return a.input_count == 1 && a.input[0] == a.target && a.dtype == a.target_dtype && !a.add;
}

static __device__ bool has_nan(const four &f) {
    return f.x[0] != f.x[0] || f.x[1] != f.x[1] || f.x[2] != f.x[2] || f.x[3] != f.x[3];
}

KERNEL(ordered_sum, NORM_THREADS, struct ordered_sum_argument, a) {
    __shared__ float tile[NORM_BLOCK_ELEMENTS];
    uint64_t base = blockIdx.x * (uint64_t)NORM_BLOCK_ELEMENTS;
    for (uint32_t i = threadIdx.x * 4; i < NORM_BLOCK_ELEMENTS; i += blockDim.x * 4) {
        uint64_t first = base + i;
        uint32_t count = four_count(first, a.count);
        four sum = {};
        if (count) {
            sum = sum_of(a, first, count);
            if (!stays(a) || has_nan(sum)) four_store(a.target, a.target_dtype, first, count, sum);
        }
        for (uint32_t k = 0; k < 4 && a.sums; k++)
            tile[i + k] = k < count ? rounded_to(sum.x[k], a.target_dtype) : 0.0f;
    }
    if (a.sums) norm_of_tile(tile, &a.sums[blockIdx.x]);
}
