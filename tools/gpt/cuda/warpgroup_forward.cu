/* Attention's forward for sm_90a, in tiles of width D = 64 or 128. A warpgroup has 64 queries, in registers. Keys and values come in
 * tiles of 64 rows, two of each: one is filled while the warpgroups multiply by the other. Otherwise as flash_forward.cu. */
#include "tools/gpt/cuda/softmax.h"
#include "tools/gpt/cuda/warpgroup.h"

template <typename T, int D> static __device__ void forward(const attention_argument &a) {
    static_assert(2 * sizeof(key_tile<D>) + LINES * LINE_BYTES == WARPGROUP_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    key_tile<D> *tiles = aligned<key_tile<D>>(memory);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin =
        (gridDim.x - 1 - blockIdx.x) * WARPGROUP_ROWS; /* blocks with the most keys start first */
    uint32_t first = begin + warp_index() * WARP_ROWS<1>, group = begin + warpgroup_index() * GROUP_ROWS;
    uint32_t end = begin + WARPGROUP_ROWS < a.length ? begin + WARPGROUP_ROWS : a.length, now = 0;
    factor_of<1, D> queries;
    softmax_state<1> state;
    sums_of<1, D> sums = {};
    float scale = a.scale * LOG2_E, inverse[1][2];
    for (int i = 0; i < 2; i++) state.most[0][i] = -INFINITY, state.total[0][i] = 0;
    take_rows<1, D>(queries, h.query, first, a.length, a.width);
    fill_keys(tiles[0], h, a, 0);
    for (uint32_t key = 0; key < end; key += TILE_ROWS, now ^= 1) {
        copies_done_for_products();
        __syncthreads();
        if (key >= group + GROUP_ROWS) break; /* the warpgroup's queries come before these keys, the last */
        sums_of<1, TILE_ROWS> scores;
        factor_of<1, TILE_ROWS> weights;
        begin_score<D>(scores, queries, tiles[now].keys);
        if (key + TILE_ROWS < end) fill_keys(tiles[now ^ 1], h, a, key + TILE_ROWS);
        warpgroup_wait<0>();
        hold_all<TILE_ROWS>(scores), hold_factor<D>(queries);
        if (key + TILE_ROWS > first + 1) hide<1, TILE_ROWS>(scores, first, key);
        renew<1, TILE_ROWS, D>(state, scores, sums, scale);
        to_factor<T, 1, TILE_ROWS>(weights, scores);
        begin_mix<D>(sums, weights, tiles[now].values);
        warpgroup_wait<0>();
        hold_all<D>(sums), hold_factor<TILE_ROWS>(weights);
    }
    finish<1>(state, inverse);
    write_rows<1, D>(h.mixed, first, a.length, a.width, sums, inverse);
    write_lse<1>(state, (float *)h.lse, first, a.length, scale);
}

KERNEL(warpgroup_forward_64_bf16, WARPGROUP_THREADS, attention_argument, a) { forward<__nv_bfloat16, 64>(a); }
KERNEL(warpgroup_forward_128_bf16, WARPGROUP_THREADS, attention_argument, a) {
    forward<__nv_bfloat16, 128>(a);
}
