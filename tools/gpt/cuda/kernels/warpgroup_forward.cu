/* Attention's forward for sm_90a, in tiles of width D = 64 or 128. A warpgroup has 64 queries. Keys and values come in tiles of 128 rows,
 * two of each: one is filled while the warpgroups multiply by the other. Wide tiles have fewer barriers, maxima across lanes and new
 * scales of the sums. Queries are in shared memory, because registers hold more scores. Otherwise as flash_forward.cu. */
#include "tools/gpt/cuda/kernels/softmax.h"
#include "tools/gpt/cuda/kernels/warpgroup.h"

constexpr int KEY_ROWS = 128;

template <int D> struct forward_memory {
    swizzled<D, WARPGROUP_ROWS> queries;
    struct {
        swizzled<D, KEY_ROWS> keys, values;
    } tiles[2];
};

template <int D>
static __device__ void fill_tiles(forward_memory<D> &to, uint32_t at, const head<__nv_bfloat16> &h,
                                  const attention_argument &a, uint32_t key) {
    fill_swizzled(to.tiles[at].keys, h.key, key, a.length, a.width);
    fill_swizzled(to.tiles[at].values, h.value, key, a.length, a.width);
}

/* Hides from the warp's queries, from `first` on, the keys that come later. */
static __device__ void hide_after(sums_of<1, KEY_ROWS> &scores, uint32_t first, uint32_t key) {
    int last = (int)(first + lane_row()) - (int)(key + lane_column());
#pragma unroll
    for (int n = 0; n < KEY_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (n * 8 + i % 2 - i / 2 * 8 > last) scores[0][n][i] = -INFINITY;
}

/* As to_factor, in the registers of the scores: two blocks have enough of them at once. */
template <typename T, int N> static __device__ factor_of<1, N> &weights_of(sums_of<1, N> &scores) {
    factor_of<1, N> &weights = reinterpret_cast<factor_of<1, N> &>(scores);
    to_factor<T, 1, N>(weights, scores);
    return weights;
}

template <typename T, int D> static __device__ void forward(const attention_argument &a) {
    static_assert(sizeof(forward_memory<D>) + LINES * LINE_BYTES == WARPGROUP_FORWARD_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    forward_memory<D> &m = *aligned<forward_memory<D>>(memory);
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t begin =
        (gridDim.x - 1 - blockIdx.x) * WARPGROUP_ROWS; /* blocks with the most keys start first */
    uint32_t warp = uniform(warp_index()), first = begin + warp * WARP_ROWS<1>;
    uint32_t end = begin + WARPGROUP_ROWS < a.length ? begin + WARPGROUP_ROWS : a.length;
    softmax_state<1> state;
    sums_of<1, D> sums = {};
    float inverse[1][2];
    for (int i = 0; i < 2; i++) state.most[0][i] = -INFINITY, state.total[0][i] = 0;
    fill_swizzled(m.queries, h.query, begin, a.length, a.width);
    fill_tiles(m, 0, h, a, 0);
    for (uint32_t key = 0, now = 0; key < end; key += KEY_ROWS, now ^= 1) {
        copies_done_for_products();
        __syncthreads();
        sums_of<1, KEY_ROWS> scores;
        begin_scores<D, KEY_ROWS>(scores, m.queries, warp / 4 * GROUP_ROWS, m.tiles[now].keys);
        if (key + KEY_ROWS < end) fill_tiles(m, now ^ 1, h, a, key + KEY_ROWS);
        warpgroup_wait<0>();
        hold_all<KEY_ROWS>(scores);
        if (key + KEY_ROWS > first + 1) hide_after(scores, first, key);
        renew<1, KEY_ROWS, D>(state, scores, sums, a.scale * LOG2_E);
        factor_of<1, KEY_ROWS> &weights = weights_of<T, KEY_ROWS>(scores);
        begin_mix<D, KEY_ROWS>(sums, weights, m.tiles[now].values);
        warpgroup_wait<0>();
        hold_all<D>(sums), hold_factor<KEY_ROWS>(weights);
    }
    finish<1>(state, inverse);
    write_rows<1, D>(h.mixed, first, a.length, a.width, sums, inverse);
    write_lse<1>(state, (float *)h.lse, first, a.length, a.scale * LOG2_E);
}

KERNEL(warpgroup_forward_64_bf16, WARPGROUP_THREADS, attention_argument, a) { forward<__nv_bfloat16, 64>(a); }
KERNEL(warpgroup_forward_128_bf16, WARPGROUP_THREADS, attention_argument, a) {
    forward<__nv_bfloat16, 128>(a);
}
