/* The softmax of attention's forward, of scores that come in tiles (Dao 2023, FlashAttention-2, algorithm 1). Exponentials use
 * base 2. */
#pragma once

#include "tools/gpt/cuda/kernels/flash.h"

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

/* The same of the keys that come before what the queries see. */
template <int R, int N>
static __device__ void hide_unseen(sums_of<R, N> &scores, const attention_argument &a, uint32_t query,
                                   uint32_t key) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t from = first_key(a, blockIdx.z, query + r * 16 + lane_row() + half * 8);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (key + n * 8 + lane_column() + i < from) scores[r][n][2 * half + i] = -INFINITY;
        }
}

/* Turns scores into weights, and scales the sums so far to the new maximum. A row that has seen no key so far adds nothing. */
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
            float known = most == -INFINITY ? 0.f : most;
            float correction = power_of_two((s.most[r][i] - known) * scale), base = known * scale;
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
