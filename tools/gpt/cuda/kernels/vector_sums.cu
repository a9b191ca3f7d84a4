/* Gradients of vectors: sums over all rows, always in the same order. A block handles SUM_COLUMNS columns of a part of
 * SUM_ROWS rows. SUM_LANES threads share a column's rows; each thread handles SUM_EACH neighbouring columns, which it
 * loads at once if a row is a multiple of SUM_EACH. A thread loads several rows before it adds the first. */
#include "tools/gpt/cuda/kernels/number.h"

struct place {
    uint32_t column, lane, first, end; /* rows of the part, `first` to `end` */
};

static __device__ place find(uint32_t rows) {
    place p = {blockIdx.x * SUM_COLUMNS + threadIdx.x * SUM_EACH, threadIdx.y, blockIdx.y * SUM_ROWS, 0};
    p.end = p.first + SUM_ROWS < rows ? p.first + SUM_ROWS : rows;
    return p;
}

/* Reads the thread's columns of a row. Zeros from row `end` on, and from column `columns` on if rows are not Whole. */
template <bool Whole, typename T>
static __device__ group<T, SUM_EACH> take(const void *x, uint32_t row, uint32_t end, uint32_t column,
                                          uint32_t columns) {
    const T *from = (const T *)x + (uint64_t)row * columns + column;
    group<T, SUM_EACH> g = {};
    if (Whole && row < end) g = group_at<SUM_EACH>(from);
    for (uint32_t i = 0; !Whole && i < SUM_EACH; i++)
        if (row < end && column + i < columns) g.number[i] = from[i];
    return g;
}

/* Adds the lanes' sums in lane order and writes them to sums[part][column]. All threads of the block call it. */
static __device__ void finish_part(float *sums, const place &p, uint32_t columns,
                                   const float (&mine)[SUM_EACH]) {
    __shared__ float of_lane[SUM_LANES][SUM_COLUMNS];
    uint32_t index = threadIdx.y * WARP + threadIdx.x, column = blockIdx.x * SUM_COLUMNS + index;
    __syncthreads();
    for (uint32_t i = 0; i < SUM_EACH; i++) of_lane[p.lane][threadIdx.x * SUM_EACH + i] = mine[i];
    __syncthreads();
    if (index >= SUM_COLUMNS || column >= columns) return;
    float sum = 0;
    for (uint32_t i = 0; i < SUM_LANES; i++) sum += of_lane[i][index];
    sums[(uint64_t)blockIdx.y * columns + column] = sum;
}

template <typename T, bool Whole> static __device__ void norm_part(const norm_sums_argument &a) {
    constexpr uint32_t AHEAD = 4;
    place p = find(a.rows);
    float gain[SUM_EACH] = {}, bias[SUM_EACH] = {};
    for (uint32_t at = p.first + p.lane; at < p.end && p.column < a.columns; at += AHEAD * SUM_LANES) {
        group<T, SUM_EACH> x[AHEAD];
        group<float, SUM_EACH> d[AHEAD];
        float mean[AHEAD], rstd[AHEAD];
        for (uint32_t k = 0; k < AHEAD; k++) {
            uint32_t row = at + k * SUM_LANES;
            mean[k] = a.mean && row < p.end ? a.mean[row] : 0;
            rstd[k] = row < p.end ? a.rstd[row] : 0;
            d[k] = take<Whole, float>(a.dy, row, p.end, p.column, a.columns);
            x[k] = take<Whole, T>(a.x, row, p.end, p.column, a.columns);
        }
        for (uint32_t k = 0; k < AHEAD; k++)
            for (uint32_t i = 0; i < SUM_EACH; i++) {
                gain[i] += d[k].number[i] * ((wide(x[k].number[i]) - mean[k]) * rstd[k]);
                bias[i] += d[k].number[i];
            }
    }
    finish_part(a.gain, p, a.columns, gain);
    if (a.bias) finish_part(a.bias, p, a.columns, bias);
}

template <typename T> static __device__ void of_norm(const norm_sums_argument &a) {
    if (a.columns % SUM_EACH == 0)
        norm_part<T, true>(a);
    else
        norm_part<T, false>(a);
}

template <typename T, bool Whole> static __device__ void bias_part(const bias_sums_argument &a) {
    constexpr uint32_t AHEAD = 8;
    place p = find(a.rows);
    float sum[SUM_EACH] = {};
    for (uint32_t at = p.first + p.lane; at < p.end && p.column < a.columns; at += AHEAD * SUM_LANES) {
        group<T, SUM_EACH> x[AHEAD];
        for (uint32_t k = 0; k < AHEAD; k++)
            x[k] = take<Whole, T>(a.x, at + k * SUM_LANES, p.end, p.column, a.columns);
        for (uint32_t k = 0; k < AHEAD; k++)
            for (uint32_t i = 0; i < SUM_EACH; i++) sum[i] += wide(x[k].number[i]);
    }
    finish_part(a.sums, p, a.columns, sum);
}

template <typename T> static __device__ void of_bias(const bias_sums_argument &a) {
    if (a.columns % SUM_EACH == 0)
        bias_part<T, true>(a);
    else
        bias_part<T, false>(a);
}

template <typename T> static __device__ void finish(const finish_sums_argument &a) {
    __shared__ float of_lane[FINISH_LANES][WARP];
    const finished_vector v = blockIdx.y ? a.vector[1] : a.vector[0];
    uint32_t column = blockIdx.x * WARP + threadIdx.x, lane = threadIdx.y;
    float sum = 0;
#pragma unroll 16
    for (uint32_t part = lane; part < a.parts && column < a.columns; part += FINISH_LANES)
        sum += v.sums[(uint64_t)part * a.stride + column];
    of_lane[lane][threadIdx.x] = sum;
    __syncthreads();
    if (lane > 0 || column >= a.columns) return;
    T *to = (T *)v.to + column;
    float before = v.add ? wide(*to) : 0;
#pragma unroll
    for (uint32_t i = 1; i < FINISH_LANES; i++) sum += of_lane[i][threadIdx.x];
    narrow(to, before + sum);
}

template <typename T, int N> static __device__ void round_group(const round_sums_argument &a) {
    uint64_t at = ((uint64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * N;
    if (at >= a.count) return;
    float sum[N], before[N] = {};
    load(sum, a.sums + at);
    if (a.add) load(before, (const T *)a.to + at);
    for (int i = 0; i < N; i++) sum[i] += before[i];
    store((T *)a.to + at, sum);
}

KERNELS_OF(norm_sums, WARP *SUM_LANES, of_norm)
KERNELS_OF(bias_sums, WARP *SUM_LANES, of_bias)
KERNELS_OF(finish_sums, WARP *FINISH_LANES, finish)
KERNELS_BY_GROUPS(round_sums, FLAT_THREADS, round_group, a.count)
