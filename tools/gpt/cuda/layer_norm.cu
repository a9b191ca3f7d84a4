/* LayerNorm and RMSNorm. A warp handles a row and reads it two or three times; after the first time from the caches. */
#include "tools/gpt/cuda/number.h"

template <typename T, int N>
static __device__ void forward_row(const norm_forward_argument &a, uint32_t row, uint32_t lane) {
    const T *x = (const T *)a.x + (uint64_t)row * a.columns;
    T *y = (T *)a.y + (uint64_t)row * a.columns;
    float v[N], gain[N], bias[N], mean = 0, square = 0;
    for (uint32_t c = lane * N; c < a.columns && a.mean; c += WARP * N) {
        load(v, x + c);
        for (int i = 0; i < N; i++) mean += v[i];
    }
    mean = warp_sum(mean) / (float)a.columns;
    for (uint32_t c = lane * N; c < a.columns; c += WARP * N) {
        load(v, x + c);
        for (int i = 0; i < N; i++) square += (v[i] - mean) * (v[i] - mean);
    }
    float rstd = 1 / sqrtf(warp_sum(square) / (float)a.columns + a.epsilon);
    for (uint32_t c = lane * N; c < a.columns; c += WARP * N) {
        load(v, x + c);
        load(gain, (const T *)a.gain + c);
        if (a.bias) load(bias, (const T *)a.bias + c);
        for (int i = 0; i < N; i++) v[i] = (v[i] - mean) * rstd * gain[i] + (a.bias ? bias[i] : 0.f);
        store(y + c, v);
    }
    if (lane == 0 && a.mean) a.mean[row] = mean;
    if (lane == 0) a.rstd[row] = rstd;
}

template <typename T> static __device__ void forward(const norm_forward_argument &a) {
    uint32_t row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= a.rows) return;
    if (a.columns % WIDEST<T> == 0)
        forward_row<T, WIDEST<T>>(a, row, lane);
    else
        forward_row<T, 1>(a, row, lane);
}

/* g is the gradient of n, the normalised x. */
template <typename T, int N>
static __device__ void backward_row(const norm_backward_argument &a, uint32_t row, uint32_t lane) {
    uint64_t at = (uint64_t)row * a.columns;
    const T *x = (const T *)a.x + at, *gain = (const T *)a.gain;
    const float *dy = a.dy + at;
    float mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row], sum_g = 0, sum_gn = 0;
    float n[N], g[N], w[N], skip[N];
    for (uint32_t c = lane * N; c < a.columns; c += WARP * N) {
        load(n, x + c), load(g, dy + c), load(w, gain + c);
        for (int i = 0; i < N; i++) {
            sum_g += g[i] * w[i];
            sum_gn += g[i] * w[i] * ((n[i] - mean) * rstd);
        }
    }
    float mean_g = a.mean ? warp_sum(sum_g) / (float)a.columns : 0;
    float mean_gn = warp_sum(sum_gn) / (float)a.columns;
    for (uint32_t c = lane * N; c < a.columns; c += WARP * N) {
        load(n, x + c), load(g, dy + c), load(w, gain + c);
        if (a.skip) load(skip, (const T *)a.skip + at + c);
        for (int i = 0; i < N; i++) {
            float d = (g[i] * w[i] - mean_g - (n[i] - mean) * rstd * mean_gn) * rstd;
            g[i] = a.skip ? d + skip[i] : d;
        }
        store((T *)a.dx + at + c, g);
    }
}

template <typename T> static __device__ void backward(const norm_backward_argument &a) {
    uint32_t row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= a.rows) return;
    if (a.columns % WIDEST<T> == 0)
        backward_row<T, WIDEST<T>>(a, row, lane);
    else
        backward_row<T, 1>(a, row, lane);
}

/* ---- the backward with its sums ----
 *
 * All threads of a block work on one row after another. A thread has the same group of columns of each row, so it adds the sums over
 * rows in registers, in the order of the rows. */

/* The sums of x and y over all threads of the block, added in the order of its warps. Calls take turns with two buffers: a thread
 * that writes one has seen all threads read it. */
template <int THREADS> static __device__ void block_sums(float &x, float &y, uint32_t turn) {
    __shared__ float of_warp[2][THREADS / WARP][2];
    float(&each)[THREADS / WARP][2] = of_warp[turn % 2];
    x = warp_sum(x), y = warp_sum(y);
    if (threadIdx.x % WARP == 0) each[threadIdx.x / WARP][0] = x, each[threadIdx.x / WARP][1] = y;
    __syncthreads();
    x = y = 0;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) x += each[i][0], y += each[i][1];
}

/* A thread's columns of a row; zeros beyond it. */
template <typename T> struct norm_row {
    static constexpr int N = WIDEST<T>;
    group<T, N> x, skip;
    group<float, N> dy;

    __device__ void take(const norm_backward_argument &a, uint32_t row, uint32_t column) {
        uint64_t at = (uint64_t)row * a.columns + column;
        if (column >= a.columns) return;
        x = group_at<N>((const T *)a.x + at), dy = group_at<N>(a.dy + at);
        if (a.skip) skip = group_at<N>((const T *)a.skip + at);
    }
};

/* The next row is on its way while one is worked on. */
template <typename T, int THREADS> static __device__ void back(const norm_backward_argument &a) {
    constexpr int N = WIDEST<T>;
    uint32_t column = threadIdx.x * N, first = blockIdx.x * a.part_rows,
             end = first + a.part_rows < a.rows ? first + a.part_rows : a.rows;
    bool there = column < a.columns;
    float gain_sum[N] = {}, bias_sum[N] = {}, dx_sum[N] = {};
    group<T, N> gain = {};
    norm_row<T> now = {}, next = {};
    if (there) gain = group_at<N>((const T *)a.gain + column);
    now.take(a, first, column);
    for (uint32_t row = first; row < end; row++, now = next) {
        group<T, N> dx;
        float mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row], sum_g = 0, sum_gn = 0;
        if (row + 1 < end) next.take(a, row + 1, column);
        for (int i = 0; i < N; i++) {
            float d = now.dy.number[i], n = (wide(now.x.number[i]) - mean) * rstd,
                  g = d * wide(gain.number[i]);
            sum_g += g, sum_gn += g * n;
            gain_sum[i] += d * n, bias_sum[i] += d;
        }
        block_sums<THREADS>(sum_g, sum_gn, row);
        float mean_g = a.mean ? sum_g / (float)a.columns : 0, mean_gn = sum_gn / (float)a.columns;
        for (int i = 0; i < N; i++) {
            float n = (wide(now.x.number[i]) - mean) * rstd, g = now.dy.number[i] * wide(gain.number[i]);
            narrow(&dx.number[i], (g - mean_g - n * mean_gn) * rstd + wide(now.skip.number[i]));
            dx_sum[i] += wide(dx.number[i]);
        }
        if (there) *(group<T, N> *)((T *)a.dx + (uint64_t)row * a.columns + column) = dx;
    }
    uint64_t at = (uint64_t)blockIdx.x * a.columns + column;
    if (there && a.gain_sums) store(a.gain_sums + at, gain_sum);
    if (there && a.bias_sums) store(a.bias_sums + at, bias_sum);
    if (there && a.dx_sums) store(a.dx_sums + at, dx_sum);
}

template <typename T> static __device__ void back_1(const norm_backward_argument &a) {
    back<T, NORM_GROUPS>(a);
}
template <typename T> static __device__ void back_2(const norm_backward_argument &a) {
    back<T, 2 * NORM_GROUPS>(a);
}

KERNELS_OF(norm_forward, ROWS_PER_BLOCK *WARP, forward)
KERNELS_OF(norm_backward, ROWS_PER_BLOCK *WARP, backward)
KERNELS_OF(norm_back_1, NORM_GROUPS, back_1)
KERNELS_OF(norm_back_2, 2 * NORM_GROUPS, back_2)
