/* Computes the probabilities again: once by blocks of queries, for the queries' gradients, and once by blocks of keys,
 * for the gradients of keys and values. Every sum has one owner and one order (Dao 2023, FlashAttention-2, algorithm 2,
 * without its atomics). */
#include "tools/gpt/cuda/kernels/slopes.h"

template <typename T, int D, int N, int R> static __device__ void by_query(const attention_argument &a) {
    alignas(16) __shared__ tile<T, N, D> keys[2], values[2];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS<R>; /* blocks with the most keys start first */
    uint32_t first = begin + warp_index() * WARP_ROWS<R>;
    uint32_t end = begin + BLOCK_ROWS<R> < a.length ? begin + BLOCK_ROWS<R> : a.length, now = 0;
    factor_of<R, D> queries, gradients;
    sums_of<R, D> sums = {};
    float lse[R][2], dots[R][2], scales[R][2];
    uint32_t start = first_key(a, blockIdx.z, begin) / N * N;
    fill_tile<N, D>(keys[0], h.key, start, a.length, a.width);
    fill_tile<N, D>(values[0], h.value, start, a.length, a.width);
    take_rows<R, D>(queries, h.query, first, a.length, a.width);
    take_rows<R, D>(gradients, h.mixed_gradient, first, a.length, a.width);
    take_each<R>(lse, h.lse, first, a.length, LOG2_E);
    take_dots<R, D>(dots, gradients, h.mixed, (float *)h.dots, first, a.length, a.width);
    for (uint32_t key = start; key < end; key += N, now ^= 1) {
        copies_done();
        __syncthreads();
        if (key + N < end) {
            fill_tile<N, D>(keys[now ^ 1], h.key, key + N, a.length, a.width);
            fill_tile<N, D>(values[now ^ 1], h.value, key + N, a.length, a.width);
        }
        /* the warp's queries come before these keys, or see none of them */
        if (key >= first + WARP_ROWS<R> || sees_none(a, first, key + N)) continue;
        sums_of<R, N> scores = {}, slopes = {};
        factor_of<R, N> factor;
        multiply<R, D, N>(scores, queries, keys[now]);
        multiply<R, D, N>(slopes, gradients, values[now]);
        query_weights<R, N>(scores, lse, first, key, a.scale * LOG2_E);
        if (sees_some(a, first + WARP_ROWS<R> - 1, key)) unseen_keys<R, N>(scores, a, first, key);
        query_slopes<R, N>(slopes, scores, dots);
        to_factor<T, R, N>(factor, slopes);
        multiply_straight<R, N, D>(sums, factor, keys[now]);
    }
    all<R>(scales, a.scale);
    write_rows<R, D>(h.query_gradient, first, a.length, a.width, sums, scales);
}

/* The queries that a block of keys is multiplied by: from the block's first key on, for each head that shares the
 * keys. */
template <typename T, int D, int N> struct query_tile {
    tile<T, N, D> queries, gradients;
    float lse[N], dots[N];
};

template <int N, int D, typename T>
static __device__ void fill_queries(query_tile<T, D, N> &to, const attention_argument &a, uint32_t member,
                                    uint32_t query) {
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y * (a.heads / a.kv_heads) + member);
    fill_tile<N, D>(to.queries, h.query, query, a.length, a.width);
    fill_tile<N, D>(to.gradients, h.mixed_gradient, query, a.length, a.width);
    fill_each<N>(to.lse, h.lse, query, a.length);
    fill_each<N>(to.dots, h.dots, query, a.length);
}

template <typename T, int D, int N, int R> static __device__ void by_key(const attention_argument &a) {
    alignas(16) __shared__ query_tile<T, D, N> tiles[2];
    uint32_t begin = blockIdx.x * BLOCK_ROWS<R>, first = begin + warp_index() * WARP_ROWS<R>, now = 0;
    uint32_t end = end_query(a, blockIdx.z, begin + BLOCK_ROWS<R> - 1);
    uint32_t each = (end - begin + N - 1) / N, count = each * (a.heads / a.kv_heads);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y * (a.heads / a.kv_heads));
    factor_of<R, D> keys, values;
    sums_of<R, D> key_sums = {}, value_sums = {};
    float scales[R][2];
    fill_queries<N, D>(tiles[0], a, 0, begin);
    take_rows<R, D>(keys, h.key, first, a.length, a.width);
    take_rows<R, D>(values, h.value, first, a.length, a.width);
    for (uint32_t i = 0; i < count; i++, now ^= 1) {
        uint32_t query = begin + i % each * N;
        copies_done();
        __syncthreads();
        if (i + 1 < count) fill_queries<N, D>(tiles[now ^ 1], a, (i + 1) / each, begin + (i + 1) % each * N);
        if (query + N <= first) continue; /* all these queries come before the warp's keys */
        const query_tile<T, D, N> &t = tiles[now];
        sums_of<R, N> scores = {}, slopes = {};
        factor_of<R, N> factor;
        multiply<R, D, N>(scores, keys, t.queries);
        multiply<R, D, N>(slopes, values, t.gradients);
        key_weights<R, N>(scores, t.lse, first, query, a.scale * LOG2_E);
        if (!sees_all(a) && query + N > end_query(a, blockIdx.z, first))
            unseeing_queries<R, N>(scores, a, first, query);
        key_slopes<R, N>(slopes, scores, t.dots);
        to_factor<T, R, N>(factor, scores);
        multiply_straight<R, N, D>(value_sums, factor, t.gradients);
        to_factor<T, R, N>(factor, slopes);
        multiply_straight<R, N, D>(key_sums, factor, t.queries);
    }
    all<R>(scales, a.scale);
    write_rows<R, D>(h.key_gradient, first, a.length, a.width, key_sums, scales);
    all<R>(scales, 1);
    write_rows<R, D>(h.value_gradient, first, a.length, a.width, value_sums, scales);
}

FLASH_KERNEL_OF(flash_query_backward, 64, ATTENTION_THREADS, by_query, 32, 2)
FLASH_KERNEL_OF(flash_query_backward, 96, ATTENTION_THREADS, by_query, 32, 1)
FLASH_KERNEL_OF(flash_query_backward, 128, ATTENTION_THREADS, by_query, 32, 1)
FLASH_KERNEL_OF(flash_key_backward, 64, ATTENTION_THREADS, by_key, 64, 1)
FLASH_KERNEL_OF(flash_key_backward, 96, ATTENTION_THREADS, by_key, 32, 1)
FLASH_KERNEL_OF(flash_key_backward, 128, ATTENTION_THREADS, by_key, 16,
                1) /* more rows would need more registers */
