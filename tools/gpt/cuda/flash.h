/* Attention on the tensor cores, of heads that are D = 64 or 128 wide: tiles in shared memory, and products of a warp's
 * 16 rows with them. Inner dimensions are multiples of 16, others of 8. */
#ifndef ZERO_TOOLS_GPT_CUDA_FLASH_H
#define ZERO_TOOLS_GPT_CUDA_FLASH_H

#include "tools/gpt/cuda/attention.h"
#include "tools/gpt/cuda/mma.h"

constexpr int ROWS_PER_WARP = FLASH_ROWS / ATTENTION_WARPS; /* 16: of a block's own queries or keys */
constexpr int TILE_PAD = 8; /* rows of a tile then begin in different banks, at multiples of 16 bytes */
constexpr float LOG2_E = 1.4426950408889634f;

template <typename T> using eight = group<T, 8>; /* 16 bytes */

static __device__ uint32_t lane_row(void) { return threadIdx.x % WARP / 4; }        /* g of mma.h */
static __device__ uint32_t lane_column(void) { return threadIdx.x % WARP % 4 * 2; } /* 2t */

template <typename T> static __device__ uint32_t pair_at(const T *from) {
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

template <typename T> static __device__ uint32_t pair_of(float x, float y) {
    T pair[2];
    narrow(&pair[0], x), narrow(&pair[1], y);
    return pair_at(pair);
}

static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
    mma_bf16(d, a, b0, b1);
}
static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
    mma_f16(d, a, b0, b1);
}

/* Rows first ... first + ROWS - 1, those from `end` on as zeros: as they are, or turned. By all threads of the block. */
template <int ROWS, int D, typename T>
static __device__ void fill_tile(T (&tile)[ROWS][D + TILE_PAD], rows<T> from, uint32_t first, uint32_t end) {
    for (uint32_t i = threadIdx.x; i < ROWS * D / 8; i += ATTENTION_THREADS) {
        uint32_t row = i / (D / 8), column = i % (D / 8) * 8;
        eight<T> x = {};
        if (first + row < end) x = *(const eight<T> *)(from.at(first + row) + column);
        *(eight<T> *)&tile[row][column] = x;
    }
}

template <int ROWS, int D, typename T>
static __device__ void fill_turned(T (&tile)[D][ROWS + TILE_PAD], rows<T> from, uint32_t first,
                                   uint32_t end) {
    for (uint32_t i = threadIdx.x; i < ROWS * D / 8; i += ATTENTION_THREADS) {
        uint32_t row = i % ROWS, column = i / ROWS * 8; /* neighbours write side by side */
        eight<T> x = {};
        if (first + row < end) x = *(const eight<T> *)(from.at(first + row) + column);
        for (int k = 0; k < 8; k++) tile[column + k][row] = x.number[k];
    }
}

/* 16 rows from `first` on as a left factor, those from `end` on as zeros. */
template <int D, typename T>
static __device__ void take_rows(uint32_t (&to)[D / 16][4], rows<T> from, uint32_t first, uint32_t end) {
    uint32_t row = first + lane_row();
    for (int k = 0; k < D / 16; k++)
        for (int i = 0; i < 4; i++) {
            uint32_t at = row + i % 2 * 8;
            to[k][i] = at < end ? pair_at(from.at(at) + k * 16 + i / 2 * 8 + lane_column()) : 0;
        }
}

/* sums[16][N] += left[16][K] tile[N][K]^T */
template <int K, int N, int STRIDE, typename T>
static __device__ void multiply(float (&sums)[N / 8][4], const uint32_t (&left)[K / 16][4],
                                const T (&tile)[N][STRIDE]) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            const T *row = &tile[n * 8 + lane_row()][k * 16 + lane_column()];
            mma(sums[n], left[k], pair_at(row), pair_at(row + 8), T());
        }
}

/* Sums as the left factor of the next product, rounded. */
template <typename T, int N>
static __device__ void to_factor(uint32_t (&to)[N / 16][4], const float (&sums)[N / 8][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = &sums[2 * k + i / 2][i % 2 * 2];
            to[k][i] = pair_of<T>(from[0], from[1]);
        }
}

/* 16 rows of sums, times a scale for the lane's rows g and g + 8. */
template <int D, typename T>
static __device__ void write_rows(rows<T> to, uint32_t first, uint32_t end, const float (&sums)[D / 8][4],
                                  float upper, float lower) {
    for (int n = 0; n < D / 8; n++)
        for (int i = 0; i < 2; i++) {
            uint32_t row = first + lane_row() + i * 8;
            float scale = i ? lower : upper;
            uint32_t bits = pair_of<T>(sums[n][i * 2] * scale, sums[n][i * 2 + 1] * scale);
            if (row < end)
                memcpy(static_cast<void *>(to.at(row) + n * 8 + lane_column()), &bits, sizeof bits);
        }
}

/* Defines NAME_64 and NAME_128 of bf16 and fp16 as FUNCTION<type, width, rows of a tile>. */
#define FLASH_KERNELS_OF(name, function)                                                                     \
    KERNEL(name##_64_bf16, ATTENTION_THREADS, attention_argument, a) { function<__nv_bfloat16, 64, 64>(a); } \
    KERNEL(name##_64_f16, ATTENTION_THREADS, attention_argument, a) { function<__half, 64, 64>(a); }         \
    KERNEL(name##_128_bf16, ATTENTION_THREADS, attention_argument, a) {                                      \
        function<__nv_bfloat16, 128, 32>(a);                                                                 \
    }                                                                                                        \
    KERNEL(name##_128_f16, ATTENTION_THREADS, attention_argument, a) { function<__half, 128, 32>(a); }

#endif
