/* Between the products of attention's backward: scores become weights again, and slopes (a gradient of the output times a value)
 * become the gradients of scores. Own rows are queries or keys; columns are those of the other kind. */
#pragma once

#include "tools/gpt/cuda/kernels/flash.h"

template <int R> static __device__ void all(float (&to)[R][2], float x) {
    for (int r = 0; r < R; r++) to[r][0] = to[r][1] = x;
}

template <typename T> static __device__ float dot_of_pairs(uint32_t x, uint32_t y) {
    group<T, 2> a, b;
    memcpy(&a, &x, sizeof a), memcpy(&b, &y, sizeof b);
    return wide(a.number[0]) * wide(b.number[0]) + wide(a.number[1]) * wide(b.number[1]);
}

/* For the lane's rows: the output times its gradient. Also written to `out`, for the blocks of keys. */
template <int R, int D, typename T>
static __device__ void take_dots(float (&dots)[R][2], const factor_of<R, D> &gradients, rows<T> mixed,
                                 float *out, uint32_t first, uint32_t end, uint32_t width) {
    factor_of<R, D> outputs;
    take_rows<R, D>(outputs, mixed, first, end, width);
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++) {
            uint32_t row = first + r * 16 + lane_row() + half * 8;
            float sum = 0;
            for (int k = 0; k < D / 16; k++)
                for (int i = half; i < 4; i += 2)
                    sum += dot_of_pairs<T>(gradients[r][k][i], outputs[r][k][i]);
            dots[r][half] = row_sum(sum);
            if (lane_column() == 0 && row < end) out[row] = dots[r][half];
        }
}

/* ---- rows are queries, from `first` on; columns are keys, from `key` on. Keys that come later than a query weigh zero, and
 * with unseen_keys those that come before what it sees. ---- */

template <int R, int N>
static __device__ void unseen_keys(sums_of<R, N> &weights, const attention_argument &a, uint32_t first,
                                   uint32_t key) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t from = first_key(a, blockIdx.z, first + r * 16 + lane_row() + i / 2 * 8);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                if (key + n * 8 + lane_column() + i % 2 < from) weights[r][n][i] = 0;
        }
}

template <int R, int N>
static __device__ void query_weights(sums_of<R, N> &scores, const float (&lse)[R][2], uint32_t first,
                                     uint32_t key, float scale) {
    bool hides = key + N > first + 1;
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++) {
                uint32_t row = first + r * 16 + lane_row() + i / 2 * 8,
                         column = key + n * 8 + lane_column() + i % 2;
                bool hidden = hides && column > row;
                scores[r][n][i] = hidden ? 0.f : power_of_two(fmaf(scores[r][n][i], scale, -lse[r][i / 2]));
            }
}

template <int R, int N>
static __device__ void query_slopes(sums_of<R, N> &slopes, const sums_of<R, N> &weights,
                                    const float (&dots)[R][2]) {
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++)
                slopes[r][n][i] = weights[r][n][i] * (slopes[r][n][i] - dots[r][i / 2]);
}

/* ---- rows are keys, from `first` on; columns are queries, from `query` on. Queries after the last one are zeros, with zeros for lse
 * and dots, and add nothing. With unseeing_queries those that come after what sees a key weigh zero. ---- */

template <int R, int N>
static __device__ void unseeing_queries(sums_of<R, N> &weights, const attention_argument &a, uint32_t first,
                                        uint32_t query) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t end = end_query(a, blockIdx.z, first + r * 16 + lane_row() + i / 2 * 8);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                if (query + n * 8 + lane_column() + i % 2 >= end) weights[r][n][i] = 0;
        }
}

template <int R, int N>
static __device__ void key_weights(sums_of<R, N> &scores, const float (&lse)[N], uint32_t first,
                                   uint32_t query, float scale) {
    bool hides = query < first + WARP_ROWS<R>;
    for (int n = 0; n < N / 8; n++)
        for (int k = 0; k < 2; k++) {
            uint32_t at = n * 8 + lane_column() + k;
            float base = lse[at] * LOG2_E;
            for (int r = 0; r < R; r++)
                for (int i = k; i < 4; i += 2) {
                    uint32_t row = first + r * 16 + lane_row() + i / 2 * 8;
                    bool hidden = hides && row > query + at;
                    scores[r][n][i] = hidden ? 0.f : power_of_two(fmaf(scores[r][n][i], scale, -base));
                }
        }
}

template <int R, int N>
static __device__ void key_slopes(sums_of<R, N> &slopes, const sums_of<R, N> &weights,
                                  const float (&dots)[N]) {
    for (int n = 0; n < N / 8; n++)
        for (int k = 0; k < 2; k++) {
            float dot = dots[n * 8 + lane_column() + k];
            for (int r = 0; r < R; r++)
                for (int i = k; i < 4; i += 2) slopes[r][n][i] = weights[r][n][i] * (slopes[r][n][i] - dot);
        }
}
