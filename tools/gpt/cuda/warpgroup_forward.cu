/* Attention's forward for sm_90a, in tiles of width D = 64 or 128. A block has two warpgroups of 64 queries each, in registers.
 * Keys and values come in tiles of 64 rows, two of each: one is filled while the warpgroups multiply by the other. Otherwise as
 * flash_forward.cu. */
#include "tools/gpt/cuda/softmax.h"
#include "tools/gpt/cuda/wgmma.h"

constexpr int KEYS = 64, WARPGROUP = 4 * WARP;

/* ---- tiles ----
 *
 * Lines of 128 bytes: 64 columns of a row. The eight groups of 16 bytes of a line are swizzled: group i of line r is at place
 * i ^ (r % 8). Eight lines begin at a multiple of 1,024 bytes, and follow each other. Products read keys as columns, because
 * scores are products with the rows of keys, and values turned. */

constexpr uint32_t LINE_BYTES = 128, LINES = 8;

/* What a product is told: an address, bytes from 64 numbers of a line to the next 64 (there are no more), bytes from eight lines to
 * the next, and the swizzle of 128 bytes. The last 4 bits of addresses and bytes are left out. */
static __device__ uint64_t operand_at(uint32_t address) {
    uint64_t next = 1, lines = LINES * LINE_BYTES >> 4;
    return (address & 0x3ffff) >> 4 | next << 16 | lines << 32 | UINT64_C(1) << 62;
}

/* Rows of D columns, 64 columns after another. */
template <int D> struct swizzled { __nv_bfloat16 columns[D / 64][KEYS][64]; };
template <int D> struct pair_of_tiles { swizzled<D> keys, values; };

/* The offset of 8 numbers, from `column` on, in their row. */
static __device__ uint32_t swizzled_column(uint32_t row, uint32_t column) {
    return (column / 8 ^ row % LINES) * 8;
}

/* As fill_tile. */
template <int D>
static __device__ void fill_swizzled(swizzled<D> &to, rows<__nv_bfloat16> from, uint32_t first, uint32_t end,
                                     uint32_t width) {
#pragma unroll
    for (int each = 0; each < KEYS * D / 8; each += WARPGROUP_THREADS) {
        uint32_t i = each + threadIdx.x, row = i / (D / 8), column = i % (D / 8) * 8;
        bool there = first + row < end && column < width;
        copy_16(&to.columns[column / 64][row][swizzled_column(row, column % 64)],
                there ? from.at(first + row) + column : from.first, there);
    }
}

/* ---- products ---- */

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

/* scores = queries keys^T */
template <int D>
static __device__ void score(sums_of<1, KEYS> &scores, factor_of<1, D> &queries, const swizzled<D> &keys) {
    hold_factor<D>(queries);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t at = shared_address(keys.columns[k / 4]) + k % 4 * 16 * sizeof(__nv_bfloat16);
        warpgroup_multiply<false>(part_of<KEYS>(scores, 0), queries[0][k], operand_at(at), k > 0);
    }
    warpgroup_end();
    hold_all<KEYS>(scores);
    hold_factor<D>(queries);
}

/* sums += weights values */
template <int D>
static __device__ void mix(sums_of<1, D> &sums, factor_of<1, KEYS> &weights, const swizzled<D> &values) {
    hold_all<D>(sums);
    hold_factor<KEYS>(weights);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < D / 64; n++)
            warpgroup_multiply<true>(part_of<D>(sums, n * 8), weights[0][k],
                                     operand_at(shared_address(values.columns[n][k * 16])), true);
    warpgroup_end();
    hold_all<D>(sums);
    hold_factor<KEYS>(weights);
}

/* The first place for eight lines. */
template <typename T> static __device__ T *aligned(unsigned char *memory) {
    uint32_t each = LINES * LINE_BYTES, behind = shared_address(memory) % each;
    return reinterpret_cast<T *>(memory + (each - behind) % each);
}

template <typename T, int D> static __device__ void forward(const attention_argument &a) {
    static_assert(2 * sizeof(pair_of_tiles<D>) + LINES * LINE_BYTES == WARPGROUP_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    pair_of_tiles<D> *tiles = aligned<pair_of_tiles<D>>(memory);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin =
        (gridDim.x - 1 - blockIdx.x) * WARPGROUP_QUERIES; /* blocks with the most keys start first */
    uint32_t first = begin + warp_index() * WARP_ROWS<1>, group = begin + threadIdx.x / WARPGROUP * 64;
    uint32_t end = begin + WARPGROUP_QUERIES < a.length ? begin + WARPGROUP_QUERIES : a.length, now = 0;
    factor_of<1, D> queries;
    softmax_state<1> state;
    sums_of<1, D> sums = {};
    float scale = a.scale * LOG2_E, inverse[1][2];
    for (int i = 0; i < 2; i++) state.most[0][i] = -INFINITY, state.total[0][i] = 0;
    take_rows<1, D>(queries, h.query, first, a.length, a.width);
    fill_swizzled<D>(tiles[0].keys, h.key, 0, a.length, a.width);
    fill_swizzled<D>(tiles[0].values, h.value, 0, a.length, a.width);
    for (uint32_t key = 0; key < end; key += KEYS, now ^= 1) {
        copies_done_for_products();
        __syncthreads();
        if (key + KEYS < end) {
            fill_swizzled<D>(tiles[now ^ 1].keys, h.key, key + KEYS, a.length, a.width);
            fill_swizzled<D>(tiles[now ^ 1].values, h.value, key + KEYS, a.length, a.width);
        }
        if (key >= group + 64) continue; /* the warpgroup's queries come before these keys */
        sums_of<1, KEYS> scores;
        factor_of<1, KEYS> weights;
        score<D>(scores, queries, tiles[now].keys);
        if (key + KEYS > first + 1) hide<1, KEYS>(scores, first, key);
        renew<1, KEYS, D>(state, scores, sums, scale);
        to_factor<T, 1, KEYS>(weights, scores);
        mix<D>(sums, weights, tiles[now].values);
    }
    finish<1>(state, inverse);
    write_rows<1, D>(h.mixed, first, a.length, a.width, sums, inverse);
    write_lse<1>(state, (float *)h.lse, first, a.length, scale);
}

KERNEL(warpgroup_forward_64_bf16, WARPGROUP_THREADS, attention_argument, a) { forward<__nv_bfloat16, 64>(a); }
KERNEL(warpgroup_forward_128_bf16, WARPGROUP_THREADS, attention_argument, a) {
    forward<__nv_bfloat16, 128>(a);
}
