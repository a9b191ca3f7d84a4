/* Gradients of vectors: sums over all rows, always in the same order. A block has SUM_COLUMNS columns of a part of
 * SUM_ROWS rows; SUM_LANES threads share a column's rows. */
#include "tools/gpt/cuda/number.h"

struct place {
    uint32_t column, lane, first, end; /* rows of the part */
};

static __device__ place find(uint32_t rows) {
    place p = {blockIdx.x * SUM_COLUMNS + threadIdx.x, threadIdx.y, blockIdx.y * SUM_ROWS, 0};
    p.end = p.first + SUM_ROWS < rows ? p.first + SUM_ROWS : rows;
    return p;
}

/* The lanes' sums, in the order of lanes, to sums[part][column]. All threads of the block come here. */
static __device__ void finish_part(float *sums, const place &p, uint32_t columns, float sum) {
    __shared__ float of_lane[SUM_LANES][SUM_COLUMNS];
    __syncthreads();
    of_lane[p.lane][threadIdx.x] = sum;
    __syncthreads();
    if (p.lane || p.column >= columns) return;
    for (uint32_t i = 1; i < SUM_LANES; i++) sum += of_lane[i][threadIdx.x];
    sums[(uint64_t)blockIdx.y * columns + p.column] = sum;
}

template <typename T> static __device__ void of_norm(const norm_sums_argument &a) {
    place p = find(a.rows);
    float gain = 0, bias = 0;
    for (uint32_t row = p.first + p.lane; row < p.end && p.column < a.columns; row += SUM_LANES) {
        uint64_t at = (uint64_t)row * a.columns + p.column;
        float d = wide(((const T *)a.dy)[at]), mean = a.mean ? a.mean[row] : 0;
        gain += d * ((wide(((const T *)a.x)[at]) - mean) * a.rstd[row]);
        bias += d;
    }
    finish_part(a.gain, p, a.columns, gain);
    if (a.bias) finish_part(a.bias, p, a.columns, bias);
}

template <typename T> static __device__ void of_bias(const bias_sums_argument &a) {
    place p = find(a.rows);
    float sum = 0;
    for (uint32_t row = p.first + p.lane; row < p.end && p.column < a.columns; row += SUM_LANES)
        sum += wide(((const T *)a.x)[(uint64_t)row * a.columns + p.column]);
    finish_part(a.sums, p, a.columns, sum);
}

template <typename T> static __device__ void finish(const finish_sums_argument &a) {
    uint32_t column = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (column >= a.columns) return;
    T *to = (T *)a.to + column;
    float sum = 0;
    for (uint32_t part = 0; part < a.parts; part++) sum += a.sums[(uint64_t)part * a.columns + column];
    narrow(to, a.add ? wide(*to) + sum : sum);
}

template <typename T> static __device__ void add_bias(const bias_add_argument &a) {
    uint64_t i = (uint64_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (i >= a.count) return;
    T *x = (T *)a.x + i;
    narrow(x, wide(*x) + wide(((const T *)a.bias)[i % a.columns]));
}

KERNELS_OF(norm_sums, SUM_COLUMNS *SUM_LANES, of_norm)
KERNELS_OF(bias_sums, SUM_COLUMNS *SUM_LANES, of_bias)
KERNELS_OF(finish_sums, FLAT_THREADS, finish)
KERNELS_OF(bias_add, FLAT_THREADS, add_bias)
