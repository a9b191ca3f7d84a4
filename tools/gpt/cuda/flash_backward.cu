/* Probabilities are computed again, once by blocks of queries, for the queries' gradients, and once by blocks of keys, for
 * those of keys and values: every sum has one owner and one order (Dao 2023, FlashAttention-2, algorithm 2, without its
 * atomics). */
#include "tools/gpt/cuda/flash.h"

/* The lane's rows g and g + 8 of queries, or 0. */
static __device__ void take_each(float (&to)[2], const float *from, uint32_t first, uint32_t end,
                                 float scale) {
    for (int i = 0; i < 2; i++) {
        uint32_t row = first + lane_row() + i * 8;
        to[i] = row < end ? from[row] * scale : 0.f;
    }
}

template <typename T, int D, int N> static __device__ void by_query(const attention_argument &a) {
    alignas(16) __shared__ T keys[N][D + TILE_PAD];
    alignas(16) __shared__ T turned_keys[D][N + TILE_PAD];
    alignas(16) __shared__ T values[N][D + TILE_PAD];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin = blockIdx.x * FLASH_ROWS, first = begin + threadIdx.x / WARP * ROWS_PER_WARP;
    uint32_t end = begin + FLASH_ROWS < a.length ? begin + FLASH_ROWS : a.length;
    uint32_t queries[D / 16][4], gradients[D / 16][4];
    float sums[D / 8][4] = {}, lse[2], dots[2];
    take_rows<D>(queries, h.query, first, a.length);
    take_rows<D>(gradients, h.mixed_gradient, first, a.length);
    take_each(lse, h.lse, first, a.length, LOG2_E);
    take_each(dots, h.dots, first, a.length, 1);
    for (uint32_t key = 0; key < end; key += N) {
        __syncthreads();
        fill_tile<N, D>(keys, h.key, key, a.length);
        fill_turned<N, D>(turned_keys, h.key, key, a.length);
        fill_tile<N, D>(values, h.value, key, a.length);
        __syncthreads();
        if (key >= first + ROWS_PER_WARP) continue; /* the warp's queries come before */
        float scores[N / 8][4] = {}, slopes[N / 8][4] = {};
        uint32_t factor[N / 16][4];
        multiply<D, N>(scores, queries, keys);
        multiply<D, N>(slopes, gradients, values);
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++) {
                uint32_t row = first + lane_row() + i / 2 * 8, column = key + n * 8 + lane_column() + i % 2;
                float p = exp2f(scores[n][i] * (a.scale * LOG2_E) - lse[i / 2]);
                scores[n][i] = column <= row && row < a.length ? p * (slopes[n][i] - dots[i / 2]) : 0.f;
            }
        to_factor<T, N>(factor, scores);
        multiply<N, D>(sums, factor, turned_keys);
    }
    write_rows<D>(h.query_gradient, first, a.length, sums, a.scale, a.scale);
}

/* A warp has 16 keys; scores are turned: rows are keys, columns queries. */
template <typename T, int D, int N> static __device__ void by_key(const attention_argument &a) {
    alignas(16) __shared__ T queries[N][D + TILE_PAD];
    alignas(16) __shared__ T turned_queries[D][N + TILE_PAD];
    alignas(16) __shared__ T gradients[N][D + TILE_PAD];
    alignas(16) __shared__ T turned_gradients[D][N + TILE_PAD];
    uint32_t begin = blockIdx.x * FLASH_ROWS, first = begin + threadIdx.x / WARP * ROWS_PER_WARP;
    uint32_t group = a.heads / a.kv_heads, keys[D / 16][4], values[D / 16][4];
    float key_sums[D / 8][4] = {}, value_sums[D / 8][4] = {};
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y * group);
    take_rows<D>(keys, h.key, first, a.length);
    take_rows<D>(values, h.value, first, a.length);
    for (uint32_t member = 0; member < group; member++) {
        h = find<T>(a, blockIdx.z, blockIdx.y * group + member);
        for (uint32_t query = begin; query < a.length; query += N) {
            __syncthreads();
            fill_tile<N, D>(queries, h.query, query, a.length);
            fill_turned<N, D>(turned_queries, h.query, query, a.length);
            fill_tile<N, D>(gradients, h.mixed_gradient, query, a.length);
            fill_turned<N, D>(turned_gradients, h.mixed_gradient, query, a.length);
            __syncthreads();
            if (query + N <= first) continue; /* all of them come before the warp's keys */
            float scores[N / 8][4] = {}, slopes[N / 8][4] = {};
            uint32_t factor[N / 16][4];
            multiply<D, N>(scores, keys, queries);
            multiply<D, N>(slopes, values, gradients);
            for (int n = 0; n < N / 8; n++)
                for (int i = 0; i < 4; i++) {
                    uint32_t row = first + lane_row() + i / 2 * 8,
                             column = query + n * 8 + lane_column() + i % 2;
                    bool sees = row <= column && column < a.length;
                    float lse = sees ? h.lse[column] * LOG2_E : 0.f, dots = sees ? h.dots[column] : 0.f;
                    float p = sees ? exp2f(scores[n][i] * (a.scale * LOG2_E) - lse) : 0.f;
                    slopes[n][i] = p * (slopes[n][i] - dots);
                    scores[n][i] = p;
                }
            to_factor<T, N>(factor, scores);
            multiply<N, D>(value_sums, factor, turned_gradients);
            to_factor<T, N>(factor, slopes);
            multiply<N, D>(key_sums, factor, turned_queries);
        }
    }
    write_rows<D>(h.key_gradient, first, a.length, key_sums, a.scale, a.scale);
    write_rows<D>(h.value_gradient, first, a.length, value_sums, 1, 1);
}

FLASH_KERNELS_OF(flash_query_backward, by_query)
FLASH_KERNELS_OF(flash_key_backward, by_key)
