/* A block has 64 queries of a head, a warp 16 of them with their output in registers; keys and values come in tiles
 * (Dao 2023, FlashAttention-2, algorithm 1). Scores are in powers of 2. */
#include "tools/gpt/cuda/flash.h"

/* Of the lane's rows g and g + 8. */
struct softmax_state {
    float most[2], total[2];
};

static __device__ float row_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Scores of queries from `query` on against keys from `key` on: scaled, and hidden where the key comes later. */
template <int N>
static __device__ void hide(float (&scores)[N / 8][4], uint32_t query, uint32_t key, float scale) {
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) {
            uint32_t row = query + lane_row() + i / 2 * 8, column = key + n * 8 + lane_column() + i % 2;
            scores[n][i] = column <= row ? scores[n][i] * scale : -INFINITY;
        }
}

/* Scores become weights; what was summed up before is scaled to the new maximum. The first tile shows every row a key. */
template <int N, int D>
static __device__ void renew(softmax_state &s, float (&scores)[N / 8][4], float (&sums)[D / 8][4]) {
    for (int i = 0; i < 2; i++) {
        float most = s.most[i], total = 0;
        for (int n = 0; n < N / 8; n++) most = fmaxf(most, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
        most = row_maximum(most);
        float correction = exp2f(s.most[i] - most);
        for (int n = 0; n < N / 8; n++)
            for (int k = 2 * i; k < 2 * i + 2; k++) total += scores[n][k] = exp2f(scores[n][k] - most);
        for (int n = 0; n < D / 8; n++) sums[n][2 * i] *= correction, sums[n][2 * i + 1] *= correction;
        s.total[i] = s.total[i] * correction + row_sum(total);
        s.most[i] = most;
    }
}

template <typename T, int D, int N> static __device__ void forward(const attention_argument &a) {
    alignas(16) __shared__ T keys[N][D + TILE_PAD];
    alignas(16) __shared__ T values[D][N + TILE_PAD];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin = blockIdx.x * FLASH_ROWS, first = begin + threadIdx.x / WARP * ROWS_PER_WARP;
    uint32_t end = begin + FLASH_ROWS < a.length ? begin + FLASH_ROWS : a.length, queries[D / 16][4];
    softmax_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float sums[D / 8][4] = {};
    take_rows<D>(queries, h.query, first, a.length);
    for (uint32_t key = 0; key < end; key += N) {
        __syncthreads();
        fill_tile<N, D>(keys, h.key, key, a.length);
        fill_turned<N, D>(values, h.value, key, a.length);
        __syncthreads();
        if (key >= first + ROWS_PER_WARP) continue; /* the warp's queries come before */
        float scores[N / 8][4] = {};
        uint32_t weights[N / 16][4];
        multiply<D, N>(scores, queries, keys);
        hide<N>(scores, first, key, a.scale * LOG2_E);
        renew<N, D>(state, scores, sums);
        to_factor<T, N>(weights, scores);
        multiply<N, D>(sums, weights, values);
    }
    write_rows<D>(h.mixed, first, a.length, sums, 1 / state.total[0], 1 / state.total[1]);
    for (int i = 0; i < 2 && lane_column() == 0; i++) {
        uint32_t row = first + lane_row() + i * 8;
        if (row < a.length) ((float *)h.lse)[row] = (state.most[i] + log2f(state.total[i])) / LOG2_E;
    }
}

FLASH_KERNELS_OF(flash_forward, forward)
