/* Shared by attention's kernels: the places of a head's rows, and tiles of rows in shared memory, as fp32. */
#pragma once

#include "tools/gpt/cuda/kernels/number.h"

constexpr int ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * WARP;
constexpr int COLUMNS_PER_LANE = HEAD_WIDTH_MAX / WARP;
constexpr int SKEWED = HEAD_WIDTH_MAX + 1; /* puts rows that lanes read side by side into different banks */

template <typename T> struct rows { /* of one head of one sequence */
    T *first;
    uint64_t stride;
    __device__ T *at(uint32_t row) const { return first + row * stride; }
};

template <typename T> struct head {
    rows<T> query, key, value, query_gradient, key_gradient, value_gradient, mixed, mixed_gradient;
    const float *lse, *dots;
};

template <typename T>
static __device__ head<T> find(const attention_argument &a, uint32_t sequence, uint32_t index) {
    uint64_t ld = ((uint64_t)a.heads + 2 * a.kv_heads) * a.width, query = (uint64_t)a.heads * a.width;
    uint64_t row = (uint64_t)sequence * a.length, from = row * ld, mixed = row * query + index * a.width;
    uint64_t q = from + (uint64_t)index * a.width;
    uint64_t k = from + query + (uint64_t)(index / (a.heads / a.kv_heads)) * a.width;
    uint64_t v = k + (uint64_t)a.kv_heads * a.width, each = ((uint64_t)sequence * a.heads + index) * a.length;
    T *qkv = (T *)a.qkv, *gradient = (T *)a.qkv_gradient;
    return {{qkv + q, ld},
            {qkv + k, ld},
            {qkv + v, ld},
            {gradient + q, ld},
            {gradient + k, ld},
            {gradient + v, ld},
            {(T *)a.mixed + mixed, query},
            {(T *)a.mixed_gradient + mixed, query},
            a.lse + each,
            a.dots + each};
}

/* A query sees the keys from first_key to its own, so a key is seen by the queries from its own to before end_query. Both grow with the
 * row. Rows behind the sequence stand for its last row. */
static __device__ uint32_t first_key(const attention_argument &a, uint32_t sequence, uint32_t query) {
    uint32_t row = query < a.length ? query : a.length - 1,
             first = a.window && row >= a.window ? row - a.window + 1 : 0;
    uint32_t begin = a.begins ? a.begins[(uint64_t)sequence * a.length + row] : 0;
    return first > begin ? first : begin;
}
static __device__ uint32_t end_query(const attention_argument &a, uint32_t sequence, uint32_t key) {
    uint32_t row = key < a.length ? key : a.length - 1,
             end = a.ends ? a.ends[(uint64_t)sequence * a.length + row] : a.length;
    return a.window && a.window < end - row ? row + a.window : end;
}

/* All keys up to its own. What asks the two functions above in a loop asks this before, so that it needs no register for the answer. */
static __device__ bool sees_all(const attention_argument &a) { return !a.window && !a.begins; }

/* The query sees none of the keys before `end`, or not all from `key` on. */
static __device__ bool sees_none(const attention_argument &a, uint32_t query, uint32_t end) {
    return !sees_all(a) && end <= first_key(a, blockIdx.z, query);
}
static __device__ bool sees_some(const attention_argument &a, uint32_t query, uint32_t key) {
    return !sees_all(a) && key < first_key(a, blockIdx.z, query);
}

/* Reads rows first ... first + ROWS - 1 times `scale`; rows from `end` on are zeros. All threads of the block call
 * it. */
template <int ROWS, int STRIDE, typename T>
static __device__ void fill(float (&tile)[ROWS][STRIDE], rows<T> from, uint32_t first, uint32_t end,
                            uint32_t width, float scale) {
    for (uint32_t i = threadIdx.x; i < ROWS * width; i += ATTENTION_THREADS) {
        uint32_t row = i / width, column = i % width;
        tile[row][column] = first + row < end ? wide(from.at(first + row)[column]) * scale : 0.f;
    }
}

static __device__ float dot(const float *a, const float *b, uint32_t width) {
    float sum = 0;
    for (uint32_t c = 0; c < width; c++) sum += a[c] * b[c];
    return sum;
}

/* sum += factor[j] * tile[j] over the tile's rows; each lane handles every 32nd column. */
template <int ROWS, int STRIDE>
static __device__ void add_rows(float (&sum)[COLUMNS_PER_LANE], const float *factor,
                                const float (&tile)[ROWS][STRIDE], uint32_t width) {
    for (int i = 0; i < COLUMNS_PER_LANE; i++) {
        uint32_t column = threadIdx.x % WARP + i * WARP;
        for (int j = 0; j < ROWS && column < width; j++) sum[i] += factor[j] * tile[j][column];
    }
}

template <typename T>
static __device__ void write_row(T *to, const float (&from)[COLUMNS_PER_LANE], float scale, uint32_t width) {
    for (int i = 0; i < COLUMNS_PER_LANE; i++) {
        uint32_t column = threadIdx.x % WARP + i * WARP;
        if (column < width) narrow(to + column, from[i] * scale);
    }
}
