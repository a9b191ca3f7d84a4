/* Softmax and cross-entropy; each block handles one row. It reads the row once for its maximum and the sum of
 * exponentials together (Milakov and Gimelshein 2018), and once more to replace it with its gradient. */
#include "tools/gpt/cuda/number.h"

struct running {
    float most, total; /* total: of e^(x - most) */
};

static __device__ running join(running a, running b) {
    float most = fmaxf(a.most, b.most);
    if (most == -INFINITY) return a;
    return {most, a.total * expf(a.most - most) + b.total * expf(b.most - most)};
}

/* Adds N numbers; corrects the sum for a new maximum once for all of them. */
template <int N> static __device__ running take(running r, const float (&x)[N]) {
    float most = r.most;
    for (int i = 0; i < N; i++) most = fmaxf(most, x[i]);
    if (most == -INFINITY) return r;
    float total = r.total * expf(r.most - most);
    for (int i = 0; i < N; i++) total += expf(x[i] - most);
    return {most, total};
}

static __device__ running join_warp(running r) {
    for (int other = WARP / 2; other; other /= 2) {
        running b = {__shfl_xor_sync(0xffffffffu, r.most, other),
                     __shfl_xor_sync(0xffffffffu, r.total, other)};
        r = join(r, b);
    }
    return r;
}

/* Joins the results of all threads of the block; every thread gets the same result. */
static __device__ running join_block(running r) {
    __shared__ running of_warp[FLAT_THREADS / WARP];
    r = join_warp(r);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = r;
    __syncthreads();
    r = of_warp[0];
    for (int i = 1; i < FLAT_THREADS / WARP; i++) r = join(r, of_warp[i]);
    return r;
}

template <typename T, int N> static __device__ void row_of(const cross_entropy_argument &a) {
    T *x = (T *)a.logits + (uint64_t)blockIdx.x * a.stride;
    int32_t wanted = a.target[blockIdx.x];
    bool counts = wanted >= 0;
    uint32_t target = counts ? (uint32_t)wanted : 0, end = a.columns / N * N;
    running r = {-INFINITY, 0};
    float v[N], last[1];
    for (uint32_t c = threadIdx.x * N; c < end; c += FLAT_THREADS * N) load(v, x + c), r = take(r, v);
    for (uint32_t c = end + threadIdx.x; c < a.columns; c += FLAT_THREADS)
        load(last, x + c), r = take(r, last);
    r = join_block(r);
    if (threadIdx.x == 0) a.loss[blockIdx.x] = counts ? logf(r.total) - (wide(x[target]) - r.most) : 0.f;
    if (a.scale == 0) return;
    float inverse = 1 / r.total;
    __syncthreads(); /* every thread has read x[target] */
    for (uint32_t c = threadIdx.x * N; c < end; c += FLAT_THREADS * N) {
        load(v, x + c);
        for (int i = 0; i < N; i++)
            v[i] = counts ? (expf(v[i] - r.most) * inverse - (c + i == target ? 1.f : 0.f)) * a.scale : 0.f;
        store(x + c, v);
    }
    for (uint32_t c = end + threadIdx.x; c < a.stride; c += FLAT_THREADS) {
        float p = counts && c < a.columns ? expf(wide(x[c]) - r.most) * inverse - (c == target ? 1.f : 0.f) : 0.f;
        narrow(x + c, p * a.scale);
    }
}

template <typename T> static __device__ void loss(const cross_entropy_argument &a) {
    if (a.stride % WIDEST<T> == 0)
        row_of<T, WIDEST<T>>(a);
    else
        row_of<T, 1>(a);
}

KERNELS_OF(cross_entropy, FLAT_THREADS, loss)
