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

KERNELS_OF(norm_forward, ROWS_PER_BLOCK *WARP, forward)
KERNELS_OF(norm_backward, ROWS_PER_BLOCK *WARP, backward)
