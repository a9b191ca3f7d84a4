/* One block of the grid per NORM_BLOCK_ELEMENTS elements. If a norm is wanted, the written values stay in shared memory for it. */
#include "kernels/ordered_sum.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

static __device__ const void *input_of(const struct ordered_sum_argument &a, uint32_t rank) {
    return a.input_stride ? static_cast<const char *>(a.input[0]) + rank * a.input_stride : a.input[rank];
}

static __device__ void add(four &sum, const four &x) {
    for (uint32_t k = 0; k < 4; k++) sum.x[k] += x.x[k];
}

/* A thread's groups of four of the block, as those of the tile. */
struct fours {
    four of[NORM_FOURS];
    uint64_t first;

    __device__ uint64_t at(uint32_t k) const { return first + k * NORM_STRIDE; }
    __device__ void load(const void *array, uint32_t dtype, uint64_t count) {
        four_bits bits[NORM_FOURS];
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++)
            bits[k] = four_fetch(array, dtype, at(k), four_count(at(k), count));
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++) of[k] = four_widened(bits[k], dtype);
    }
    __device__ void sum(const struct ordered_sum_argument &a) {
        fours x;
        x.first = first;
        load(a.input[0], a.dtype, a.count);
        for (uint32_t rank = 1; rank < a.input_count; rank++) {
            x.load(input_of(a, rank), a.dtype, a.count);
#pragma unroll
            for (uint32_t k = 0; k < NORM_FOURS; k++) add(of[k], x.of[k]);
        }
        if (a.add) x.load(a.target, a.target_dtype, a.count);
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++) {
            if (a.add) add(of[k], x.of[k]);
            for (uint32_t i = 0; i < 4; i++) of[k].x[i] = canonical(of[k].x[i]);
        }
    }
};

/* The sum of one array in its own place changes nothing but a NaN's bits. */
static __device__ bool stays(const struct ordered_sum_argument &a) {
    return a.input_count == 1 && a.input[0] == a.target && a.dtype == a.target_dtype && !a.add;
}

static __device__ bool has_nan(const four &f) {
    return f.x[0] != f.x[0] || f.x[1] != f.x[1] || f.x[2] != f.x[2] || f.x[3] != f.x[3];
}

static __device__ four rounded(four f, uint32_t dtype) {
    for (uint32_t k = 0; k < 4; k++) f.x[k] = rounded_to(f.x[k], dtype);
    return f;
}

KERNEL(ordered_sum, NORM_THREADS, struct ordered_sum_argument, a) {
    __shared__ norm_tile tile;
    uint64_t base = blockIdx.x * (uint64_t)NORM_BLOCK_ELEMENTS;
    for (uint32_t i = threadIdx.x * 4; i < NORM_BLOCK_ELEMENTS; i += NORM_FOURS * NORM_STRIDE) {
        fours sum;
        sum.first = base + i;
        sum.sum(a);
#pragma unroll
        for (uint32_t k = 0; k < NORM_FOURS; k++) {
            uint32_t count = four_count(sum.at(k), a.count);
            if (count && (!stays(a) || has_nan(sum.of[k])))
                four_store(a.target, a.target_dtype, sum.at(k), count, sum.of[k]);
            if (a.sums) tile.put(i + k * NORM_STRIDE, rounded(sum.of[k], a.target_dtype));
        }
    }
    if (a.sums) norm_of_tile(tile.of, &a.sums[blockIdx.x]);
}
