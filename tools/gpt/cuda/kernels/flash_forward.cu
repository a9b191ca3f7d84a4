/* A block handles 64 R queries of a head; a warp handles 16 R of them, with their output in registers. Keys and values
 * come in tiles (Dao 2023, FlashAttention-2, algorithm 1). Exponentials of scores use base 2. */
#include "tools/gpt/cuda/kernels/softmax.h"

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
    uint32_t start = first_key(a, blockIdx.z, begin) / N * N;
    take_rows<R, D>(queries, h.query, first, a.length, a.width);
    fill_tile<N, D>(keys[0], h.key, start, a.length, a.width);
    fill_tile<N, D>(values[0], h.value, start, a.length, a.width);
    for (uint32_t key = start; key < end; key += N, now ^= 1) {
        copies_done();
        __syncthreads();
        if (key + N < end) {
            fill_tile<N, D>(keys[now ^ 1], h.key, key + N, a.length, a.width);
            fill_tile<N, D>(values[now ^ 1], h.value, key + N, a.length, a.width);
        }
        /* the warp's queries come before these keys, or see none of them */
        if (key >= first + WARP_ROWS<R> || sees_none(a, first, key + N)) continue;
        sums_of<R, N> scores = {};
        factor_of<R, N> weights;
        multiply<R, D, N>(scores, queries, keys[now]);
        if (key + N > first + 1) hide<R, N>(scores, first, key);
        if (sees_some(a, first + WARP_ROWS<R> - 1, key)) hide_unseen<R, N>(scores, a, first, key);
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
    uint32_t start = first_key(a, blockIdx.z, begin) / N * N;
    fill_tile<M, D, THREADS>(t->queries, h.query, begin, a.length, a.width);
    fill_tile<N, D, THREADS>(t->keys, h.key, start, a.length, a.width);
    for (uint32_t key = start; key < end; key += N) {
        /* else the warp's queries come before these keys, or see none of them */
        bool sees = key < first + WARP_ROWS<R> && !sees_none(a, first, key + N);
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
        if (sees_some(a, first + WARP_ROWS<R> - 1, key)) hide_unseen<R, N>(scores, a, first, key);
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
