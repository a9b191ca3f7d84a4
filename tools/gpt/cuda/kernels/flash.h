/* Attention on the tensor cores, in tiles of width D = 64, 96 or 128. Narrower heads are filled up with zeros, which
 * change no sum; their width is a multiple of 8, so that groups of 8 columns are a head's or zeros. A warp holds 16 R rows of its own (queries or keys)
 * in registers. The rows of the other kind stand in shared memory, in tiles of N rows, two tiles of each kind: one is
 * filled while the warps multiply by the other. The inner dimensions of products, N and D are multiples of 16. */
#pragma once

#include "tools/gpt/cuda/kernels/attention.h"
#include "tools/gpt/cuda/kernels/mma.h"

constexpr int TILE_PAD = 8; /* puts the rows of a tile into different banks, at multiples of 16 bytes */

template <typename T, int N, int D> using tile = T[N][D + TILE_PAD];
template <int R, int N> using sums_of = float[R][N / 8][4];       /* d of mma.h, for 16 R rows of N columns */
template <int R, int K> using factor_of = uint32_t[R][K / 16][4]; /* a of mma.h, for 16 R rows of K columns */

template <int R> constexpr int WARP_ROWS = 16 * R;
template <int R> constexpr int BLOCK_ROWS = ATTENTION_WARPS *WARP_ROWS<R>;

static __device__ uint32_t lane_row(void) { return threadIdx.x % WARP / 4; }        /* g of mma.h */
static __device__ uint32_t lane_column(void) { return threadIdx.x % WARP % 4 * 2; } /* 2t */
static __device__ uint32_t warp_index(void) { return threadIdx.x / WARP; }

/* Reads two neighbours in one access; the first is at a multiple of 4 bytes. Otherwise each would be read on its
 * own. */
template <typename T> static __device__ uint32_t pair_at(const T *from) {
    group<T, 2> pair = group_at<2>(from);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

template <typename T> static __device__ void put_pair(T *to, uint32_t bits) {
    group<T, 2> pair;
    memcpy(&pair, &bits, sizeof bits);
    *(group<T, 2> *)to = pair;
}

template <typename T> static __device__ uint32_t pair_of(float x, float y) {
    group<T, 2> pair;
    uint32_t bits;
    narrow(&pair.number[0], x), narrow(&pair.number[1], y);
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
    mma_bf16(d, a, b0, b1);
}
static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
    mma_f16(d, a, b0, b1);
}

/* The sum over the lanes that share a row. */
static __device__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* ---- tiles ---- */

/* Reads rows first ... first + N - 1; rows from `end` on, and columns from `width` on, are zeros. All THREADS threads of
 * the block call it. The data is there after all threads have called copies_done. */
template <int N, int D, int THREADS = ATTENTION_THREADS, typename T>
static __device__ void fill_tile(tile<T, N, D> &to, rows<T> from, uint32_t first, uint32_t end,
                                 uint32_t width) {
#pragma unroll
    for (int each = 0; each < N * D / 8; each += THREADS) {
        uint32_t i = each + threadIdx.x, row = i / (D / 8), column = i % (D / 8) * 8;
        bool there = first + row < end && column < width;
        copy_16(&to[row][column], there ? from.at(first + row) + column : from.first, there);
    }
}

/* Reads one number for each of the N rows; N threads do it. */
template <int N>
static __device__ void fill_each(float (&to)[N], const float *from, uint32_t first, uint32_t end) {
    uint32_t row = first + threadIdx.x;
    if (threadIdx.x < N) copy_4(&to[threadIdx.x], from + (row < end ? row : 0), row < end);
}

/* ---- a warp's own rows; rows from `end` on, and columns from `width` on, are zeros ---- */

template <int R, int D, typename T>
static __device__ void take_rows(factor_of<R, D> &to, rows<T> from, uint32_t first, uint32_t end,
                                 uint32_t width) {
    for (int r = 0; r < R; r++)
        for (int k = 0; k < D / 16; k++)
            for (int i = 0; i < 4; i++) {
                uint32_t at = first + r * 16 + lane_row() + i % 2 * 8, column = k * 16 + i / 2 * 8;
                bool there = at < end && column < width;
                to[r][k][i] = there ? pair_at(from.at(at) + column + lane_column()) : 0;
            }
}

/* Reads one number for each of the lane's rows. */
template <int R>
static __device__ void take_each(float (&to)[R][2], const float *from, uint32_t first, uint32_t end,
                                 float scale) {
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) {
            uint32_t row = first + r * 16 + lane_row() + i * 8;
            to[r][i] = row < end ? from[row] * scale : 0.f;
        }
}

/* Writes the sums, times a scale for each of the lane's rows. */
template <int R, int D, typename T>
static __device__ void write_rows(rows<T> to, uint32_t first, uint32_t end, uint32_t width,
                                  const sums_of<R, D> &sums, const float (&scale)[R][2]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t row = first + r * 16 + lane_row() + i * 8;
#pragma unroll
            for (uint32_t n = 0; n < D / 8; n++) {
                const float *from = &sums[r][n][i * 2];
                if (row >= end || n * 8 >= width) continue;
                put_pair(to.at(row) + n * 8 + lane_column(),
                         pair_of<T>(from[0] * scale[r][i], from[1] * scale[r][i]));
            }
        }
}

/* ---- products ---- */

/* sums[16 R][N] += left[16 R][K] right[N][K]^T */
template <int R, int K, int N, typename T>
static __device__ void multiply(sums_of<R, N> &sums, const factor_of<R, K> &left,
                                const tile<T, N, K> &right) {
    uint32_t lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N / 16; n++)
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t b[4];
            load_matrices(b, &right[n * 16 + row][k * 16 + column]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                mma(sums[r][2 * n], left[r][k], b[0], b[1], T());
                mma(sums[r][2 * n + 1], left[r][k], b[2], b[3], T());
            }
        }
}

/* The same with the left factor in shared memory: 16 R rows of `left` from `row` on. */
template <int R, int K, int N, int M, typename T>
static __device__ void multiply_shared(sums_of<R, N> &sums, const tile<T, M, K> &left, uint32_t row,
                                       const tile<T, N, K> &right) {
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t a[R][4], b[4];
#pragma unroll
        for (int r = 0; r < R; r++)
            load_matrices(a[r], &left[row + r * 16 + lane % 16][k * 16 + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            load_matrices(b, &right[n * 16 + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                mma(sums[r][2 * n], a[r], b[0], b[1], T());
                mma(sums[r][2 * n + 1], a[r], b[2], b[3], T());
            }
        }
    }
}

/* sums[16 R][N] += left[16 R][K] right[K][N] */
template <int R, int K, int N, typename T>
static __device__ void multiply_straight(sums_of<R, N> &sums, const factor_of<R, K> &left,
                                         const tile<T, K, N> &right) {
    uint32_t lane = threadIdx.x % WARP, row = lane % 16, column = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            load_turned(b, &right[k * 16 + row][n * 16 + column]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                mma(sums[r][2 * n], left[r][k], b[0], b[1], T());
                mma(sums[r][2 * n + 1], left[r][k], b[2], b[3], T());
            }
        }
}

/* Rounds sums into the left factor of the next product. */
template <typename T, int R, int N>
static __device__ void to_factor(factor_of<R, N> &to, const sums_of<R, N> &sums) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int k = 0; k < N / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *from = &sums[r][2 * k + i / 2][i % 2 * 2];
                to[r][k][i] = pair_of<T>(from[0], from[1]);
            }
}

/* Defines NAME_WIDTH for bf16 and fp16 as FUNCTION<type, width, rows of a tile, R>. A warp uses each number that it loads
 * from a tile R times. */
#define FLASH_KERNEL_OF(name, width, threads, function, tile_rows, r)                                        \
    KERNEL(name##_##width##_bf16, threads, attention_argument, a) {                                          \
        function<__nv_bfloat16, width, tile_rows, r>(a);                                                     \
    }                                                                                                        \
    KERNEL(name##_##width##_f16, threads, attention_argument, a) { function<__half, width, tile_rows, r>(a); }
