/* Attention's backward for sm_90a, in tiles of width D = 64 or 128: the two kernels of flash_backward.cu, with the same owners and
 * orders of sums. A warpgroup has 64 queries, in registers, or 64 keys, in shared memory, because registers hold the sums of their
 * two gradients. Rows of the other kind come in tiles of 64, two of each: one is filled while the warpgroups multiply by the other.
 * While the tensor cores make a product, the warps compute with the one before. */
#include "tools/gpt/cuda/slopes.h"
#include "tools/gpt/cuda/warpgroup.h"

/* ---- by queries ---- */

template <typename T, int D> static __device__ void by_query(const attention_argument &a) {
    static_assert(2 * sizeof(key_tile<D>) + LINES * LINE_BYTES == WARPGROUP_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    key_tile<D> *tiles = aligned<key_tile<D>>(memory);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin =
        (gridDim.x - 1 - blockIdx.x) * WARPGROUP_ROWS; /* blocks with the most keys start first */
    uint32_t first = begin + warp_index() * WARP_ROWS<1>, group = begin + warpgroup_index() * GROUP_ROWS;
    uint32_t end = begin + WARPGROUP_ROWS < a.length ? begin + WARPGROUP_ROWS : a.length, now = 0;
    factor_of<1, D> queries, gradients;
    sums_of<1, D> sums = {};
    float lse[1][2], dots[1][2], scales[1][2];
    fill_keys(tiles[0], h, a, 0);
    take_rows<1, D>(queries, h.query, first, a.length, a.width);
    take_rows<1, D>(gradients, h.mixed_gradient, first, a.length, a.width);
    take_each<1>(lse, h.lse, first, a.length, LOG2_E);
    take_dots<1, D>(dots, gradients, h.mixed, (float *)h.dots, first, a.length, a.width);
    for (uint32_t key = 0; key < end; key += TILE_ROWS, now ^= 1) {
        copies_done_for_products();
        __syncthreads();
        /* Between the products the compiler would let them wait for each other (C7520). */
        if (key + TILE_ROWS < end) fill_keys(tiles[now ^ 1], h, a, key + TILE_ROWS);
        if (key >= group + GROUP_ROWS) break; /* the warpgroup's queries come before these keys, the last */
        sums_of<1, TILE_ROWS> scores, slopes;
        factor_of<1, TILE_ROWS> factor;
        begin_score<D>(scores, queries, tiles[now].keys);
        begin_score<D>(slopes, gradients, tiles[now].values);
        warpgroup_wait<1>();
        hold_all<TILE_ROWS>(scores);
        query_weights<1, TILE_ROWS>(scores, lse, first, key, a.scale * LOG2_E);
        warpgroup_wait<0>();
        hold_all<TILE_ROWS>(slopes), hold_factor<D>(queries), hold_factor<D>(gradients);
        query_slopes<1, TILE_ROWS>(slopes, scores, dots);
        to_factor<T, 1, TILE_ROWS>(factor, slopes);
        begin_mix<D>(sums, factor, tiles[now].keys);
        warpgroup_wait<0>();
        hold_all<D>(sums), hold_factor<TILE_ROWS>(factor);
    }
    all<1>(scales, a.scale);
    write_rows<1, D>(h.query_gradient, first, a.length, a.width, sums, scales);
}

/* ---- by keys ---- */

/* The queries that a block of keys is multiplied by: from the block's first key on, for each head that shares the keys. */
template <int D> struct key_memory {
    swizzled<D, WARPGROUP_ROWS> keys, values;
    struct {
        swizzled<D> queries, gradients;
    } tiles[2];
    float lse[2][TILE_ROWS], dots[2][TILE_ROWS];
};

/* The tile `index` of all: `each` for a head. After the last there is none. */
template <int D>
static __device__ void fill_queries(key_memory<D> &to, uint32_t at, const attention_argument &a,
                                    uint32_t index, uint32_t each, uint32_t begin) {
    uint32_t member = index / each, query = begin + index % each * TILE_ROWS;
    if (member == a.heads / a.kv_heads) return;
    head<__nv_bfloat16> h = find<__nv_bfloat16>(a, blockIdx.z, blockIdx.y * (a.heads / a.kv_heads) + member);
    fill_swizzled(to.tiles[at].queries, h.query, query, a.length, a.width);
    fill_swizzled(to.tiles[at].gradients, h.mixed_gradient, query, a.length, a.width);
    fill_each<TILE_ROWS>(to.lse[at], h.lse, query, a.length);
    fill_each<TILE_ROWS>(to.dots[at], h.dots, query, a.length);
}

template <typename T, int D> static __device__ void by_key(const attention_argument &a) {
    static_assert(sizeof(key_memory<D>) + LINES * LINE_BYTES == WARPGROUP_KEY_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    key_memory<D> &m = *aligned<key_memory<D>>(memory);
    uint32_t begin = blockIdx.x * WARPGROUP_ROWS, first = begin + warp_index() * WARP_ROWS<1>;
    uint32_t group = begin + warpgroup_index() * GROUP_ROWS, now = 0;
    uint32_t each = (a.length - begin + TILE_ROWS - 1) / TILE_ROWS, count = each * (a.heads / a.kv_heads);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y * (a.heads / a.kv_heads));
    sums_of<1, D> key_sums = {}, value_sums = {};
    float scales[1][2];
    fill_swizzled(m.keys, h.key, begin, a.length, a.width);
    fill_swizzled(m.values, h.value, begin, a.length, a.width);
    fill_queries(m, 0, a, 0, each, begin);
    for (uint32_t i = 0; i < count; i++, now ^= 1) {
        uint32_t query = begin + i % each * TILE_ROWS;
        copies_done_for_products();
        __syncthreads();
        if (query + TILE_ROWS <= group) { /* all these queries come before the warpgroup's keys */
            fill_queries(m, now ^ 1, a, i + 1, each, begin);
            continue;
        }
        sums_of<1, TILE_ROWS> scores, slopes;
        factor_of<1, TILE_ROWS> weights, factor;
        begin_score<D>(scores, m.keys, m.tiles[now].queries);
        begin_score<D>(slopes, m.values, m.tiles[now].gradients);
        fill_queries(m, now ^ 1, a, i + 1, each, begin);
        warpgroup_wait<1>();
        hold_all<TILE_ROWS>(scores);
        key_weights<1, TILE_ROWS>(scores, m.lse[now], first, query, a.scale * LOG2_E);
        to_factor<T, 1, TILE_ROWS>(weights, scores);
        begin_mix<D>(value_sums, weights, m.tiles[now].gradients);
        warpgroup_wait<1>();
        hold_all<TILE_ROWS>(slopes);
        key_slopes<1, TILE_ROWS>(slopes, scores, m.dots[now]);
        to_factor<T, 1, TILE_ROWS>(factor, slopes);
        begin_mix<D>(key_sums, factor, m.tiles[now].queries);
        warpgroup_wait<0>();
        hold_all<D>(value_sums), hold_factor<TILE_ROWS>(weights);
        hold_all<D>(key_sums), hold_factor<TILE_ROWS>(factor);
    }
    all<1>(scales, a.scale);
    write_rows<1, D>(h.key_gradient, first, a.length, a.width, key_sums, scales);
    all<1>(scales, 1);
    write_rows<1, D>(h.value_gradient, first, a.length, a.width, value_sums, scales);
}

#define WARPGROUP_KERNEL_OF(name, width, function)                                                           \
    KERNEL(name##_##width##_bf16, WARPGROUP_THREADS, attention_argument, a) {                                \
        function<__nv_bfloat16, width>(a);                                                                   \
    }
WARPGROUP_KERNEL_OF(warpgroup_query_backward, 64, by_query)
WARPGROUP_KERNEL_OF(warpgroup_query_backward, 128, by_query)
WARPGROUP_KERNEL_OF(warpgroup_key_backward, 64, by_key)
WARPGROUP_KERNEL_OF(warpgroup_key_backward, 128, by_key)
