/* Shared by the kernels of warpgroups: swizzled tiles in shared memory, and products of a warpgroup with them. A block has two
 * warpgroups, of which each has 64 rows of its own (queries or keys). */
#pragma once

#include "tools/gpt/cuda/kernels/flash.h"
#include "tools/gpt/cuda/kernels/wgmma.h"

constexpr int WARPGROUP = 4 * WARP;
constexpr int GROUP_ROWS = WARPGROUP_ROWS / (WARPGROUP_THREADS / WARPGROUP); /* of a warpgroup */
constexpr int TILE_ROWS = 64;                                                /* of the other kind */

/* ---- tiles ----
 *
 * Lines of 128 bytes: 64 columns of a row. The eight groups of 16 bytes of a line are swizzled: group i of line r is at place
 * i ^ (r % 8). Eight lines begin at a multiple of 1,024 bytes, and follow each other. A product with a tile's rows reads them as
 * columns; a product with its columns reads it turned. */

constexpr uint32_t LINE_BYTES = 128, LINES = 8;

/* What a product is told: an address, bytes from 64 numbers of a line to the next 64 (there are no more), bytes from eight lines to
 * the next, and the swizzle of 128 bytes. The last 4 bits of addresses and bytes are left out. In two steps, of which the first does
 * not depend on the step of a sum: */
static __device__ uint32_t operand_of(const __nv_bfloat16 *at) {
    return (shared_address(at) & 0x3ffff) >> 4 | 1 << 16;
}
static __device__ uint64_t operand(uint32_t first, uint32_t bytes) {
    return (uint64_t)(LINES * LINE_BYTES >> 4 | 1u << 30) << 32 | (first + (bytes >> 4));
}
/* 16 columns, or 16 rows, of step `k`. */
template <int ROWS> static __device__ uint64_t columns_of(uint32_t first, int k) {
    return operand(first, k / 4 * ROWS * LINE_BYTES + k % 4 * 32);
}
static __device__ uint64_t rows_of(uint32_t first, int k) { return operand(first, k * 16 * LINE_BYTES); }

static __device__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

/* Rows of D columns, 64 columns after another. */
template <int D, int ROWS = TILE_ROWS> struct swizzled { __nv_bfloat16 columns[D / 64][ROWS][64]; };

/* The offset of 8 numbers, from `column` on, in their row. */
static __device__ uint32_t swizzled_column(uint32_t row, uint32_t column) {
    return (column / 8 ^ row % LINES) * 8;
}

/* As fill_tile. A thread's copies are some times eight rows apart, so they have one swizzle. */
template <int D, int ROWS>
static __device__ void fill_swizzled(swizzled<D, ROWS> &to, rows<__nv_bfloat16> from, uint32_t first,
                                     uint32_t end, uint32_t width) {
    constexpr uint32_t STEP = WARPGROUP_THREADS / (D / 8);
    static_assert(STEP % LINES == 0, "as the swizzle repeats");
    uint32_t row = threadIdx.x / (D / 8), column = threadIdx.x % (D / 8) * 8;
    __nv_bfloat16(*line)[64] = &to.columns[column / 64][row];
    const __nv_bfloat16 *at = from.at(first + row) + column;
    uint32_t place = swizzled_column(row, column % 64);
#pragma unroll
    for (uint32_t each = 0; each < ROWS; each += STEP, at += STEP * from.stride) {
        bool there = first + row + each < end && column < width;
        copy_16(&line[each][place], there ? at : from.first, there);
    }
}

/* The first place for eight lines. */
template <typename T> static __device__ T *aligned(unsigned char *memory) {
    uint32_t each = LINES * LINE_BYTES, behind = shared_address(memory) % each;
    return reinterpret_cast<T *>(memory + (each - behind) % each);
}

/* ---- products ----
 *
 * Each begins and is committed as a group of its own; after warpgroup_wait, hold what it reads from registers or writes. */

/* 64 columns of sums, from tile `n` of 8 on. */
template <int N> static __device__ float (&part_of(sums_of<1, N> &sums, int n))[8][4] {
    return reinterpret_cast<float(&)[8][4]>(sums[0][n]);
}

template <int D> static __device__ void hold_all(sums_of<1, D> &sums) {
#pragma unroll
    for (int n = 0; n < D / 64; n++) hold(part_of<D>(sums, n * 8));
}
template <int K> static __device__ void hold_factor(factor_of<1, K> &factor) {
#pragma unroll
    for (int k = 0; k < K / 16; k++) hold(factor[0][k]);
}

/* scores = own tile^T: 64 rows from `row` on, N of the tile from `other` on */
template <int D, int N, int OWN, int ROWS>
static __device__ void begin_scores(sums_of<1, N> &scores, const swizzled<D, OWN> &own, uint32_t row,
                                    const swizzled<D, ROWS> &tile, uint32_t other = 0) {
    uint32_t left = operand_of(own.columns[0][row]), right = operand_of(tile.columns[0][other]);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < N / 64; n++)
            warpgroup_multiply<false>(part_of<N>(scores, n * 8), columns_of<OWN>(left, k),
                                      columns_of<ROWS>(right + n * (64 * LINE_BYTES >> 4), k), k > 0);
    warpgroup_commit();
}

/* sums += weights tile, from `row` on */
template <int D, int K, int ROWS>
static __device__ void begin_mix(sums_of<1, D> &sums, factor_of<1, K> &weights, const swizzled<D, ROWS> &tile,
                                 uint32_t row = 0) {
    uint32_t first = operand_of(tile.columns[0][row]);
    hold_all<D>(sums);
    hold_factor<K>(weights);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int n = 0; n < D / 64; n++)
            warpgroup_multiply<true>(part_of<D>(sums, n * 8), weights[0][k],
                                     rows_of(first + n * (ROWS * LINE_BYTES >> 4), k), true);
    warpgroup_commit();
}
