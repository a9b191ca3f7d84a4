/* A block handles 64 R queries of a head; a warp handles 16 R of them, with their output in registers. Keys and values
 * come in tiles (Dao 2023, FlashAttention-2, algorithm 1). Exponentials of scores use base 2. */
#include "tools/gpt/cuda/flash.h"

/* The softmax of the lane's rows; `most` is the maximum of the unscaled scores. */
template <int R> struct softmax_state { float most[R][2], total[R][2]; };

static __device__ float row_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Hides from the queries (from `query` on) the keys (from `key` on) that come later. */
template <int R, int N> static __device__ void hide(sums_of<R, N> &scores, uint32_t query, uint32_t key) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t row = query + r * 16 + lane_row() + i / 2 * 8,
                         column = key + n * 8 + lane_column() + i % 2;
                if (column > row) scores[r][n][i] = -INFINITY;
            }
}

/* Turns scores into weights, and scales the sums so far to the new maximum. In the first tile every row sees a key. */
template <int R, int N, int D>
static __device__ void renew(softmax_state<R> &s, sums_of<R, N> &scores, sums_of<R, D> &sums, float scale) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = s.most[r][i], total = 0;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                most = fmaxf(most, fmaxf(scores[r][n][2 * i], scores[r][n][2 * i + 1]));
            most = row_maximum(most);
            float correction = power_of_two((s.most[r][i] - most) * scale), base = most * scale;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int k = 2 * i; k < 2 * i + 2; k++)
                    total += scores[r][n][k] = power_of_two(fmaf(scores[r][n][k], scale, -base));
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                sums[r][n][2 * i] *= correction, sums[r][n][2 * i + 1] *= correction;
            s.total[r][i] = s.total[r][i] * correction + total; /* only the lane's columns */
            s.most[r][i] = most;
        }
}

template <int R> static __device__ void finish(softmax_state<R> &s, float (&inverse)[R][2]) {
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) s.total[r][i] = row_sum(s.total[r][i]), inverse[r][i] = 1 / s.total[r][i];
}

template <int R>
static __device__ void write_lse(const softmax_state<R> &s, float *lse, uint32_t first, uint32_t end,
                                 float scale) {
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2 && lane_column() == 0; i++) {
            uint32_t row = first + r * 16 + lane_row() + i * 8;
            if (row < end) lse[row] = (s.most[r][i] * scale + log2f(s.total[r][i])) / LOG2_E;
        }
}

template <typename T, int D, int N, int R> static __device__ void forward(const attention_argument &a) {
    alignas(16) __shared__ tile<T, N, D> keys[2], values[2];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS<R>; /* blocks with the most keys start first */
    uint32_t first = begin + warp_index() * WARP_ROWS<R>;
    uint32_t end = begin + BLOCK_ROWS<R> < a.length ? begin + BLOCK_ROWS<R> : a.length, now = 0;
    factor_of<R, D> queries;
    softmax_state<R> state;
    sums_of<R, D> sums = {};
    float scale = a.scale * LOG2_E, inverse[R][2];
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) state.most[r][i] = -INFINITY, state.total[r][i] = 0;
    take_rows<R, D>(queries, h.query, first, a.length, a.width);
    fill_tile<N, D>(keys[0], h.key, 0, a.length, a.width);
    fill_tile<N, D>(values[0], h.value, 0, a.length, a.width);
    for (uint32_t key = 0; key < end; key += N, now ^= 1) {
        copies_done();
        __syncthreads();
        if (key + N < end) {
            fill_tile<N, D>(keys[now ^ 1], h.key, key + N, a.length, a.width);
            fill_tile<N, D>(values[now ^ 1], h.value, key + N, a.length, a.width);
        }
        if (key >= first + WARP_ROWS<R>) continue; /* the warp's queries come before these keys */
        sums_of<R, N> scores = {};
        factor_of<R, N> weights;
        multiply<R, D, N>(scores, queries, keys[now]);
        if (key + N > first + 1) hide<R, N>(scores, first, key);
        renew<R, N, D>(state, scores, sums, scale);
        to_factor<T, R, N>(weights, scores);
        multiply_straight<R, N, D>(sums, weights, values[now]);
    }
    finish<R>(state, inverse);
    write_rows<R, D>(h.mixed, first, a.length, a.width, sums, inverse);
    write_lse<R>(state, (float *)h.lse, first, a.length, scale);
}

/* ---- wide heads ----
 *
 * Loads from shared memory bound these products: a warp with 16 queries loads as many bytes a cycle as the memory gives.
 * Here a warp has 32, whose numbers stand in shared memory, because registers hold their output and scores; the block's
 * 8 warps share the tiles. One tile of keys and one of values is enough: values are copied while the warps multiply by
 * keys, and the next keys while they multiply by values. */

template <typename T, int D, int N, int M> struct wide_tiles {
    tile<T, M, D> queries;
    tile<T, N, D> keys, values;
};

template <typename T, int D, int N, int R> static __device__ void wide_forward(const attention_argument &a) {
    constexpr int THREADS = FLASH_WIDE_THREADS, M = THREADS / WARP * WARP_ROWS<R>;
    using tiles = wide_tiles<T, D, N, M>;
    static_assert(sizeof(tiles) == FLASH_WIDE_BYTES && M == FLASH_QUERIES_128, "as the host launches it");
    DYNAMIC_SHARED(tiles, t);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin = (gridDim.x - 1 - blockIdx.x) * M; /* blocks with the most keys start first */
    uint32_t own = warp_index() * WARP_ROWS<R>, first = begin + own;
    uint32_t end = begin + M < a.length ? begin + M : a.length;
    softmax_state<R> state;
    sums_of<R, D> sums = {};
    float scale = a.scale * LOG2_E, inverse[R][2];
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) state.most[r][i] = -INFINITY, state.total[r][i] = 0;
    fill_tile<M, D, THREADS>(t->queries, h.query, begin, a.length, a.width);
    fill_tile<N, D, THREADS>(t->keys, h.key, 0, a.length, a.width);
    for (uint32_t key = 0; key < end; key += N) {
        bool sees = key < first + WARP_ROWS<R>; /* else the warp's queries come before these keys */
        sums_of<R, N> scores = {};
        copies_done();
        __syncthreads(); /* the keys are there, and no warp reads the last values */
        fill_tile<N, D, THREADS>(t->values, h.value, key, a.length, a.width);
        if (sees) multiply_shared<R, D, N>(scores, t->queries, own, t->keys);
        copies_done();
        __syncthreads(); /* the values are there, and no warp reads the keys */
        if (key + N < end) fill_tile<N, D, THREADS>(t->keys, h.key, key + N, a.length, a.width);
        if (!sees) continue;
        factor_of<R, N> weights;
        if (key + N > first + 1) hide<R, N>(scores, first, key);
        renew<R, N, D>(state, scores, sums, scale);
        to_factor<T, R, N>(weights, scores);
        multiply_straight<R, N, D>(sums, weights, t->values);
    }
    finish<R>(state, inverse);
    write_rows<R, D>(h.mixed, first, a.length, a.width, sums, inverse);
    write_lse<R>(state, (float *)h.lse, first, a.length, scale);
}

FLASH_KERNEL_OF(flash_forward, 64, ATTENTION_THREADS, forward, 64, 2)
FLASH_KERNEL_OF(flash_forward, 96, ATTENTION_THREADS, forward, 32, 1)
FLASH_KERNEL_OF(flash_forward, 128, FLASH_WIDE_THREADS, wide_forward, 32, 2)
