/* Without norms, a thread sums four elements. With norms, half a warp sums a block of NORM_BLOCK_ELEMENTS, whose squares it adds
 * (norm.cuh). Either loads several ranks' elements before it adds the first. */
#include "kernels/ordered_sum.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/norm.cuh"

static __device__ const void *input_of(const struct ordered_sum_argument &a, uint32_t rank) {
    return a.input_stride ? static_cast<const char *>(a.input[0]) + rank * a.input_stride : a.input[rank];
}

static __device__ bool several_nodes(const struct ordered_sum_argument &a) {
    return a.node_inputs && a.node_inputs < a.input_count;
}

/* The sum of one array in its own place changes nothing but a NaN's bits. */
static __device__ bool stays(const struct ordered_sum_argument &a) {
    return a.input_count == 1 && a.input[0] == a.target && a.dtype == a.target_dtype && !a.add;
}

/* ---- four elements ---- */

/* The sum over ranks [begin, end), of a node. */
template <uint32_t RANKS>
static __device__ four node_sum(const struct ordered_sum_argument &a, uint32_t begin, uint32_t end,
                                uint64_t first, uint32_t count) {
    four_bits of_rank[RANKS];
    four sum = {};
    for (uint32_t next = begin; next < end; next += RANKS) {
        for (uint32_t r = 0; r < RANKS; r++)
            if (next + r < end) of_rank[r] = four_fetch(input_of(a, next + r), a.dtype, first, count);
        for (uint32_t r = 0; r < RANKS && next + r < end; r++) {
            four x = four_widened(of_rank[r], a.dtype);
            for (uint32_t k = 0; k < 4; k++) sum.x[k] = next + r > begin ? sum.x[k] + x.x[k] : x.x[k];
        }
    }
    return sum;
}

static __device__ four sum_of(const struct ordered_sum_argument &a, uint64_t first, uint32_t count) {
    four_bits before = {};
    four sum;
    if (a.add) before = four_fetch(a.target, a.target_dtype, first, count);
    if (!several_nodes(a)) {
        sum = node_sum<4>(a, 0, a.input_count, first, count);
    } else {
        sum = node_sum<2>(a, 0, a.node_inputs, first, count);
        for (uint32_t begin = a.node_inputs; begin < a.input_count; begin += a.node_inputs) {
            four node = node_sum<2>(a, begin, begin + a.node_inputs, first, count);
            for (uint32_t k = 0; k < 4; k++) sum.x[k] = sum.x[k] + node.x[k];
        }
    }
    four x = four_widened(before, a.target_dtype);
    for (uint32_t k = 0; k < 4; k++) sum.x[k] = canonical(a.add ? x.x[k] + sum.x[k] : sum.x[k]);
    return sum;
}

static __device__ bool has_nan(const four &f) {
    return f.x[0] != f.x[0] || f.x[1] != f.x[1] || f.x[2] != f.x[2] || f.x[3] != f.x[3];
}

static __device__ void sum_four(const struct ordered_sum_argument &a) {
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, a.count);
    if (!count) return;
    four sum = sum_of(a, first, count);
    if (!stays(a) || has_nan(sum)) four_store(a.target, a.target_dtype, first, count, sum);
}

/* ---- a lane of a norm ---- */

/* The lane's sums of AHEAD elements from `first` on, as far as they are below `end`, over ranks [begin, ranks). */
template <typename T, uint32_t RANKS, uint32_t AHEAD>
static __device__ void sum_lane(const struct ordered_sum_argument &a, uint32_t begin, uint32_t ranks,
                                uint64_t first, uint64_t end, float (&sum)[AHEAD]) {
    T bits[RANKS][AHEAD] = {};
    for (uint32_t next = begin; next < ranks; next += RANKS) {
        for (uint32_t r = 0; r < RANKS && next + r < ranks; r++) {
            const T *x = static_cast<const T *>(input_of(a, next + r)) + first;
            for (uint32_t k = 0; k < AHEAD; k++)
                if (first + k * NORM_LANES < end) bits[r][k] = x[k * NORM_LANES];
        }
        for (uint32_t r = 0; r < RANKS && next + r < ranks; r++)
            for (uint32_t k = 0; k < AHEAD; k++) {
                float x = element_widened(bits[r][k], a.dtype);
                sum[k] = next + r > begin ? sum[k] + x : x;
            }
    }
}

template <typename T, uint32_t RANKS, uint32_t AHEAD, bool NODES>
static __device__ double lane_squares(const struct ordered_sum_argument &a, const norm_part &part) {
    uint64_t end = part.first + part.count;
    double squares = 0;
    for (uint64_t i = part.first + part.lane; i < end; i += AHEAD * NORM_LANES) {
        float sum[AHEAD] = {}, before[AHEAD] = {};
        for (uint32_t k = 0; k < AHEAD && a.add; k++)
            if (i + k * NORM_LANES < end)
                before[k] = element_load(a.target, a.target_dtype, i + k * NORM_LANES);
        sum_lane<T, RANKS>(a, 0, NODES ? a.node_inputs : a.input_count, i, end, sum);
        for (uint32_t node = a.node_inputs; NODES && node < a.input_count; node += a.node_inputs) {
            float more[AHEAD] = {};
            sum_lane<T, RANKS>(a, node, node + a.node_inputs, i, end, more);
            for (uint32_t k = 0; k < AHEAD; k++) sum[k] = sum[k] + more[k];
        }
        for (uint32_t k = 0; k < AHEAD; k++) {
            uint64_t at = i + k * NORM_LANES;
            if (at >= end) break;
            float x = canonical(a.add ? before[k] + sum[k] : sum[k]);
            if (!stays(a) || x != x) element_store(a.target, a.target_dtype, at, x);
            squares = norm_add(squares, rounded_to(x, a.target_dtype));
        }
    }
    return squares;
}

template <typename T> static __device__ void sum_norms(const struct ordered_sum_argument &a) {
    const norm_part part = norm_part_of(a.count);
    double squares = a.input_count == 1 ? lane_squares<T, 1, 8, false>(a, part)
                     : several_nodes(a) ? lane_squares<T, 2, 4, true>(a, part)
                                        : lane_squares<T, 4, 4, false>(a, part);
    norm_of_lanes(squares, part.lane, part.count ? &a.sums[part.block] : nullptr, NORM_BOTH_HALVES);
}

KERNEL(ordered_sum, NORM_THREADS, struct ordered_sum_argument, a) {
    if (!a.sums)
        sum_four(a);
    else if (a.dtype == DTYPE_F32)
        sum_norms<uint32_t>(a);
    else
        sum_norms<uint16_t>(a);
}
