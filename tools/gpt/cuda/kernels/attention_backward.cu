/* Computes the probabilities again from the scores and the logarithm of their sum: once by queries, for the queries'
 * gradients, and once by keys, for the gradients of keys and values. Every sum therefore has one owner and one
 * order. */
#include "tools/gpt/cuda/kernels/attention.h"

constexpr int QUERIES_PER_WARP = QUERIES_PER_BLOCK / ATTENTION_WARPS;
constexpr int KEYS_PER_WARP = KEYS_PER_BLOCK / ATTENTION_WARPS;

template <typename T> static __device__ void dots(const attention_argument &a) {
    uint64_t index = (uint64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP;
    if (index >= (uint64_t)a.batch * a.heads * a.length) return;
    uint32_t row = (uint32_t)(index % a.length), each = (uint32_t)(index / a.length);
    head<T> h = find<T>(a, each / a.heads, each % a.heads);
    const T *x = h.mixed.at(row), *y = h.mixed_gradient.at(row);
    float sum = 0;
    for (uint32_t c = threadIdx.x % WARP; c < a.width; c += WARP) sum += wide(x[c]) * wide(y[c]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) ((float *)h.dots)[row] = sum;
}

template <typename T> static __device__ void by_query(const attention_argument &a) {
    __shared__ float queries[QUERIES_PER_BLOCK][HEAD_WIDTH_MAX], gradients[QUERIES_PER_BLOCK][HEAD_WIDTH_MAX];
    __shared__ float keys[WARP][SKEWED], values[WARP / 2][SKEWED], slopes[ATTENTION_WARPS][WARP];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t first = blockIdx.x * QUERIES_PER_BLOCK, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t end = first + QUERIES_PER_BLOCK < a.length ? first + QUERIES_PER_BLOCK : a.length;
    float sum[QUERIES_PER_WARP][COLUMNS_PER_LANE] = {};
    fill(queries, h.query, first, end, a.width, a.scale);
    fill(gradients, h.mixed_gradient, first, end, a.width, 1);
    for (uint32_t key = first_key(a, blockIdx.z, first) / WARP * WARP; key < end; key += WARP) {
        __syncthreads();
        fill(keys, h.key, key, a.length, a.width, 1);
        float slope[QUERIES_PER_WARP];
        for (uint32_t half = 0; half < 2; half++) { /* all values at once would not fit */
            __syncthreads();
            fill(values, h.value, key + half * (WARP / 2), a.length, a.width, 1);
            __syncthreads();
            for (int i = 0; i < QUERIES_PER_WARP && lane / (WARP / 2) == half; i++)
                slope[i] = dot(gradients[warp * QUERIES_PER_WARP + i], values[lane % (WARP / 2)], a.width);
        }
        for (int i = 0; i < QUERIES_PER_WARP; i++) {
            uint32_t mine = warp * QUERIES_PER_WARP + i, query = first + mine,
                     from = first_key(a, blockIdx.z, query);
            if (query >= end || key > query || from >= key + WARP) continue;
            float p = key + lane <= query && key + lane >= from
                          ? expf(dot(queries[mine], keys[lane], a.width) - h.lse[query])
                          : 0.f;
            slopes[warp][lane] = p * (slope[i] - h.dots[query]);
            __syncwarp();
            add_rows(sum[i], slopes[warp], keys, a.width);
            __syncwarp();
        }
    }
    for (int i = 0; i < QUERIES_PER_WARP; i++) {
        uint32_t query = first + warp * QUERIES_PER_WARP + i;
        if (query < end) write_row(h.query_gradient.at(query), sum[i], a.scale, a.width);
    }
}

/* Adds to a key's and a value's gradients the part of the tile of queries that begins at `first`. Each lane handles one
 * query; those from `end` on do not see the key. */
static __device__ void take_tile(float (&key_sum)[COLUMNS_PER_LANE], float (&value_sum)[COLUMNS_PER_LANE],
                                 const float *key, const float *value, uint32_t index, uint32_t end,
                                 uint32_t first, const float (&queries)[WARP][SKEWED],
                                 const float (&gradients)[WARP][SKEWED], const float *lse, const float *dots,
                                 float (*weights)[WARP], const attention_argument &a) {
    uint32_t lane = threadIdx.x % WARP, query = first + lane;
    bool sees = query < end && query >= index;
    float p = sees ? expf(dot(queries[lane], key, a.width) - lse[query]) : 0.f;
    float slope = dot(gradients[lane], value, a.width);
    weights[0][lane] = p;
    weights[1][lane] = sees ? p * (slope - dots[query]) : 0.f;
    __syncwarp();
    add_rows(value_sum, weights[0], gradients, a.width);
    add_rows(key_sum, weights[1], queries, a.width);
    __syncwarp();
}

/* The queries are scaled as they are read, so the keys' gradients are scaled, too. */
template <typename T> static __device__ void by_key(const attention_argument &a) {
    __shared__ float queries[WARP][SKEWED], gradients[WARP][SKEWED];
    __shared__ float keys[KEYS_PER_BLOCK][HEAD_WIDTH_MAX], values[KEYS_PER_BLOCK][HEAD_WIDTH_MAX];
    __shared__ float weights[ATTENTION_WARPS][2][WARP];
    uint32_t first = blockIdx.x * KEYS_PER_BLOCK, warp = threadIdx.x / WARP, group = a.heads / a.kv_heads;
    float key_sum[KEYS_PER_WARP][COLUMNS_PER_LANE] = {}, value_sum[KEYS_PER_WARP][COLUMNS_PER_LANE] = {};
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y * group);
    uint32_t end = end_query(a, blockIdx.z, first + KEYS_PER_BLOCK - 1);
    fill(keys, h.key, first, a.length, a.width, 1);
    fill(values, h.value, first, a.length, a.width, 1);
    for (uint32_t member = 0; member < group; member++) {
        h = find<T>(a, blockIdx.z, blockIdx.y * group + member);
        for (uint32_t query = first / WARP * WARP; query < end; query += WARP) {
            __syncthreads();
            fill(queries, h.query, query, a.length, a.width, a.scale);
            fill(gradients, h.mixed_gradient, query, a.length, a.width, 1);
            __syncthreads();
            for (int i = 0; i < KEYS_PER_WARP; i++) {
                uint32_t mine = warp * KEYS_PER_WARP + i;
                if (first + mine < a.length)
                    take_tile(key_sum[i], value_sum[i], keys[mine], values[mine], first + mine,
                              end_query(a, blockIdx.z, first + mine), query, queries, gradients, h.lse,
                              h.dots, weights[warp], a);
            }
        }
    }
    for (int i = 0; i < KEYS_PER_WARP; i++) {
        uint32_t key = first + warp * KEYS_PER_WARP + i;
        if (key >= a.length) continue;
        write_row(h.key_gradient.at(key), key_sum[i], 1, a.width);
        write_row(h.value_gradient.at(key), value_sum[i], 1, a.width);
    }
}

KERNELS_OF(attention_dots, ROWS_PER_BLOCK *WARP, dots)
KERNELS_OF(attention_query_backward, ATTENTION_THREADS, by_query)
KERNELS_OF(attention_key_backward, ATTENTION_THREADS, by_key)
