/* LayerNorm and RMSNorm. A warp handles a row. The forward reads a row of up to KEPT groups per lane once, and keeps it in registers;
 * otherwise a warp reads its row two or three times, after the first time from the caches. */
#include "tools/gpt/cuda/kernels/mma.h"
#include "tools/gpt/cuda/kernels/number.h"

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

static constexpr uint32_t KEPT = 8;

/* The same sums in the same order. */
template <typename T, int N>
static __device__ void forward_kept_row(const norm_forward_argument &a, uint32_t row, uint32_t lane) {
    const T *x = (const T *)a.x + (uint64_t)row * a.columns;
    T *y = (T *)a.y + (uint64_t)row * a.columns;
    packed<T, N> kept[KEPT];
    float v[N], gain[N], bias[N] = {}, mean = 0, square = 0, share = 1 / (float)a.columns;
#pragma unroll
    for (uint32_t k = 0, c = lane * N; k < KEPT; k++, c += WARP * N)
        if (c < a.columns) kept[k] = packed_at<N>(x + c);
#pragma unroll
    for (uint32_t k = 0, c = lane * N; k < KEPT; k++, c += WARP * N)
        for (int i = 0; i < N && c < a.columns && a.mean; i++) mean += kept[k].at(i);
    mean = warp_sum(mean) * share;
#pragma unroll
    for (uint32_t k = 0, c = lane * N; k < KEPT; k++, c += WARP * N)
        for (int i = 0; i < N && c < a.columns; i++) {
            float d = kept[k].at(i) - mean;
            square += d * d;
        }
    float rstd = 1 / sqrtf(warp_sum(square) * share + a.epsilon);
#pragma unroll
    for (uint32_t k = 0, c = lane * N; k < KEPT; k++, c += WARP * N) {
        if (c >= a.columns) break;
        load(gain, (const T *)a.gain + c);
        if (a.bias) load(bias, (const T *)a.bias + c);
        for (int i = 0; i < N; i++) v[i] = (kept[k].at(i) - mean) * rstd * gain[i] + bias[i];
        store(y + c, v);
    }
    if (lane == 0 && a.mean) a.mean[row] = mean;
    if (lane == 0) a.rstd[row] = rstd;
}

template <typename T> static __device__ void forward(const norm_forward_argument &a) {
    uint32_t row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= a.rows) return;
    if (a.columns % WIDEST<T> == 0 && a.columns <= KEPT * WARP * WIDEST<T>)
        forward_kept_row<T, WIDEST<T>>(a, row, lane);
    else if (a.columns % WIDEST<T> == 0)
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
 * rows in registers, in the order of the rows. The next rows are on their way to shared memory. A thread reads there only what it
 * copied itself: that needs no barrier. */

/* The sums of x and y over all threads of the block, added in the order of its warps. Calls take turns with two buffers: a thread
 * that writes one has seen all threads read it. */
template <int THREADS> static __device__ void block_sums(float &x, float &y, uint32_t turn) {
    __shared__ float2 of_warp[2][THREADS / WARP];
    float2 *each = of_warp[turn % 2];
    x = warp_sum(x), y = warp_sum(y);
    if (threadIdx.x % WARP == 0) each[threadIdx.x / WARP] = make_float2(x, y);
    __syncthreads();
    x = y = 0;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) x += each[i].x, y += each[i].y;
}

/* A thread's columns of a row. In shared memory a row is NORM_PIECES pieces of 16 bytes for each thread: x, dy, and skip; each
 * piece stands beside the same piece of the other threads. */
template <typename T> struct norm_row {
    static constexpr int N = WIDEST<T>, GRADIENTS = N / 4;
    packed<T, N> x, skip;
    packed<float, 4> dy[GRADIENTS];

    static __device__ void copy(uint4 *to, const norm_backward_argument &a, uint64_t at) {
        copy_16(to, (const T *)a.x + at, true);
        for (int i = 0; i < GRADIENTS; i++) copy_16(to + (1 + i) * blockDim.x, a.dy + at + 4 * i, true);
        if (a.skip) copy_16(to + (1 + GRADIENTS) * blockDim.x, (const T *)a.skip + at, true);
    }
    __device__ void take(const uint4 *from, bool skips) {
        x = packed_at<N>((const T *)from);
        for (int i = 0; i < GRADIENTS; i++)
            dy[i] = packed_at<4>((const float *)(from + (1 + i) * blockDim.x));
        if (skips) skip = packed_at<N>((const T *)(from + (1 + GRADIENTS) * blockDim.x));
    }
};

template <typename T, int THREADS> static __device__ void back(const norm_backward_argument &a) {
    constexpr int N = WIDEST<T>, PIECES = NORM_PIECES(sizeof(T));
    DYNAMIC_SHARED(uint4, rows);
    uint4 *mine = rows + threadIdx.x;
    uint32_t column = threadIdx.x * N, first = blockIdx.x * a.part_rows, place = 0,
             end = first + a.part_rows < a.rows ? first + a.part_rows : a.rows;
    bool there = column < a.columns;
    float gain_sum[N] = {}, bias_sum[N] = {}, dx_sum[N] = {}, share = 1 / (float)a.columns;
    float mean = a.mean ? a.mean[first] : 0, rstd = a.rstd[first];
    packed<T, N> gain = {};
    norm_row<T> now = {};
    if (there) gain = packed_at<N>((const T *)a.gain + column);
    for (uint32_t k = 0; k < NORM_ROWS; k++) {
        if (there && first + k < end)
            now.copy(mine + k * PIECES * blockDim.x, a, (uint64_t)(first + k) * a.columns + column);
        copies_end();
    }
    for (uint32_t row = first; row < end; row++, place = place + 1 < NORM_ROWS ? place + 1 : 0) {
        uint4 *here = mine + place * PIECES * blockDim.x;
        uint64_t at = (uint64_t)row * a.columns + column;
        uint32_t next = row + 1 < end ? row + 1 : row;
        float next_mean = a.mean ? a.mean[next] : 0, next_rstd = a.rstd[next], sum_g = 0, sum_gn = 0;
        float n[N], g[N];
        group<T, N> dx;
        copies_wait<NORM_ROWS - 1>();
        if (there) now.take(here, a.skip != NULL);
        for (int i = 0; i < N; i++) {
            float d = now.dy[i / 4].at(i % 4);
            n[i] = (now.x.at(i) - mean) * rstd, g[i] = d * gain.at(i);
            sum_g += g[i], sum_gn += g[i] * n[i];
            gain_sum[i] += d * n[i], bias_sum[i] += d;
        }
        if (there && row + NORM_ROWS < end) now.copy(here, a, at + (uint64_t)NORM_ROWS * a.columns);
        copies_end();
        block_sums<THREADS>(sum_g, sum_gn, row);
        float mean_g = a.mean ? sum_g * share : 0, mean_gn = sum_gn * share;
        for (int i = 0; i < N; i++) {
            narrow(&dx.number[i], (g[i] - mean_g - n[i] * mean_gn) * rstd + now.skip.at(i));
            dx_sum[i] += wide(dx.number[i]);
        }
        if (there) *(group<T, N> *)((T *)a.dx + at) = dx;
        mean = next_mean, rstd = next_rstd;
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
