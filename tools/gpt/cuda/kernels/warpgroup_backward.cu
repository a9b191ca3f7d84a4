/* Attention's backward for sm_90a, in tiles of width D = 64 or 128 (Dao 2023, FlashAttention-2, algorithm 2). A block has the gradients of
 * 128 keys and values, and adds its part of those of the queries that see them. These sums are integers, so that they have the same bits
 * in any order, and no block waits for another.
 *
 * A query's scale is a power of two. With weights p of a sum 1, slopes s, their mean m and keys k, its gradient in column c is
 * sum_j p_j (s_j - m) k_jc. Since sum_j p_j |s_j - m| <= max_j |s_j|, no partial sum is larger than the norm of the output's gradient
 * times the largest norm of a value times the largest number of a key, and SLACK for roundings. The scale makes 2^30 to 2^31 of this
 * bound. A block rounds its part once: with 64 blocks of keys (a context of 8,192) the error is about 2^-29 of the bound, and below that
 * of bf16 unless the gradient is smaller than the bound by 2^20. Weights that are alike at that context make it smaller by 2^13 or so;
 * a key or a value that is 100 times as large as all others, by 2^6 more. A bound that is not finite makes a gradient of NaN. */
#include "tools/gpt/cuda/kernels/slopes.h"
#include "tools/gpt/cuda/kernels/warpgroup.h"

/* ---- before ---- */

constexpr uint32_t MAXIMUM_LEAST = 0x21800000; /* 2^-60: products of two are no denormals */
constexpr float SLACK = 1.25f;

/* Of the lanes of a row: */
template <int LANES> static __device__ float lanes_sum(float x) {
    for (uint32_t other = LANES / 2; other; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
    return x;
}
template <int LANES, typename T> static __device__ T lanes_maximum(T x) {
    for (uint32_t other = LANES / 2; other; other /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, other));
    return x;
}

/* With squares that neither overflow nor vanish. NaN and infinity stay. */
template <int LANES> static __device__ float lanes_norm(const float (&x)[8]) {
    float most = 0, sum = 0;
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(x[i]));
    most = lanes_maximum<LANES>(most);
    float up = most > 0x1p32f ? 0x1p-70f : most < 0x1p-32f ? 0x1p70f : 1;
    for (int i = 0; i < 8; i++) sum += x[i] * up * (x[i] * up);
    return sqrtf(lanes_sum<LANES>(sum)) * (most > 0x1p32f ? 0x1p70f : most < 0x1p-32f ? 0x1p-70f : 1);
}

/* NaN's are the largest. */
static __device__ uint32_t bits_of_size(float x) { return __float_as_uint(x) & 0x7fffffff; }

static __device__ void keep_dots(const attention_argument &a, uint64_t to, float dot, float norm) {
    float base = a.lse[to] * LOG2_E;
    a.dots[to] = dot, a.bases[to] = base;
    a.norms[to] = fabsf(dot) < INFINITY && fabsf(base) < INFINITY ? norm : NAN;
}

/* A thread has eight columns of one head of queries, keys or values, of some rows. */
template <typename T, int D> static __device__ void dots(const attention_argument &a) {
    constexpr int LANES = D / 8;
    uint32_t groups = (a.length + WARPGROUP_DOT_ROWS - 1) / WARPGROUP_DOT_ROWS;
    uint32_t sequence = blockIdx.x / groups, first = blockIdx.x % groups * WARPGROUP_DOT_ROWS;
    uint32_t index = blockIdx.y * WARPGROUP_THREADS + threadIdx.x, head = index / LANES,
             column = index % LANES * 8;
    uint32_t heads = a.heads + 2 * a.kv_heads, keys = 0, values = 0;
    bool there = head < heads && column < a.width, queries = head < a.heads;
    uint64_t row = (uint64_t)sequence * a.length + first, stride = (queries ? a.heads : heads) * a.width;
    uint64_t from = row * stride + head * a.width + column;
    const T *x_at = (const T *)(queries ? a.mixed_gradient : a.qkv) + from,
            *output_at = (const T *)a.mixed + from;
#pragma unroll 2
    for (uint32_t i = 0; i < WARPGROUP_DOT_ROWS && first + i < a.length;
         i++, x_at += stride, output_at += stride) {
        float output[8] = {}, x[8] = {}, dot = 0;
        if (there) load(x, x_at);
        if (there && queries) load(output, output_at);
        for (int k = 0; k < 8; k++) dot += output[k] * x[k];
        dot = lanes_sum<LANES>(dot);
        float norm = lanes_norm<LANES>(x);
        if (queries && !column)
            keep_dots(a, ((uint64_t)sequence * a.heads + head) * a.length + first + i, dot, norm);
        for (int k = 0; k < 8; k++) keys = max(keys, bits_of_size(x[k]));
        values = max(values, bits_of_size(norm));
    }
    keys = lanes_maximum<LANES>(keys);
    if (head >= heads || queries || column) return;
    bool of_key = head < a.heads + a.kv_heads;
    uint32_t kv = (head - a.heads) % a.kv_heads;
    atomicMax(a.maxima + (sequence * a.kv_heads + kv) * 2 + !of_key, of_key ? keys : values);
}

/* ---- a query's scale ---- */

/* The largest number of a key times the largest norm of a value. */
static __device__ float reach_of(const attention_argument &a, uint32_t sequence, uint32_t kv) {
    const uint32_t *m = a.maxima + ((uint64_t)sequence * a.kv_heads + kv) * 2;
    return __uint_as_float(max(m[0], MAXIMUM_LEAST)) * __uint_as_float(max(m[1], MAXIMUM_LEAST));
}

/* Makes 2^30 to 2^31 of the bound, or less if that takes more than 2^126; NaN if the bound is not finite. */
static __device__ float scale_of(float norm, float reach) {
    float bound = norm * reach * SLACK;
    uint32_t exponent = 127 + 30 + 127 - (__float_as_uint(bound) >> 23);
    return bound < INFINITY ? __uint_as_float(min(exponent, 127 + 126u) << 23) : NAN;
}

/* ---- a block's memory ---- */

template <int D> constexpr int STEP = WARPGROUP_STEP(D); /* queries of a step */

/* One is multiplied by, one is filled, and of one the other warpgroup may not have done its last products. */
constexpr int STAGES = 3;
constexpr int PARTS = WARPGROUP_THREADS / WARP;

template <int D> struct key_memory {
    swizzled<D, WARPGROUP_ROWS> keys, values;
    struct {
        swizzled<D, STEP<D>> queries, gradients;
    } tiles[STAGES];
    swizzled<WARPGROUP_ROWS, STEP<D>> slopes[2]; /* [query][key] */
    float bases[2][STEP<D>], dots[2][STEP<D>];
    alignas(16) uint32_t item;
};

template <int D>
static __device__ void fill_queries(key_memory<D> &to, uint32_t at, uint32_t odd, const attention_argument &a,
                                    const head<__nv_bfloat16> &h, uint32_t query) {
    fill_swizzled(to.tiles[at].queries, h.query, query, a.length, a.width);
    fill_swizzled(to.tiles[at].gradients, h.mixed_gradient, query, a.length, a.width);
    fill_each<STEP<D>>(to.bases[odd], a.bases + (h.dots - a.dots), query, a.length);
    fill_each<STEP<D>>(to.dots[odd], h.dots, query, a.length);
}

/* ---- between the products: rows are keys, from `first` on; columns are queries, from `query` on ---- */

static __device__ void hide_before(sums_of<1, TILE_ROWS> &scores, uint32_t first, uint32_t query) {
    int before = (int)(first + lane_row()) - (int)(query + lane_column());
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (before > n * 8 + i % 2 - i / 2 * 8) scores[0][n][i] = -INFINITY;
}

static __device__ void weigh(sums_of<1, TILE_ROWS> &scores, const float *bases, float scale) {
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++) {
        group<float, 2> base = group_at<2>(bases + n * 8 + lane_column());
#pragma unroll
        for (int i = 0; i < 4; i++)
            scores[0][n][i] = power_of_two(fmaf(scores[0][n][i], scale, -base.number[i % 2]));
    }
}

static __device__ void slope(sums_of<1, TILE_ROWS> &slopes, const sums_of<1, TILE_ROWS> &weights,
                             const float *dots) {
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++) {
        group<float, 2> dot = group_at<2>(dots + n * 8 + lane_column());
#pragma unroll
        for (int i = 0; i < 4; i++)
            slopes[0][n][i] = weights[0][n][i] * (slopes[0][n][i] - dot.number[i % 2]);
    }
}

/* Turns them, for the product with the keys. */
template <int D>
static __device__ void store_slopes(swizzled<WARPGROUP_ROWS, STEP<D>> &to,
                                    const factor_of<1, TILE_ROWS> &factor, uint32_t half) {
    uint32_t lane = threadIdx.x % WARP, warp = warp_index();
    uint32_t query = half * TILE_ROWS + lane / 16 * 8 + lane % 8, key = warp % 4 * 16 + lane / 8 % 2 * 8;
    __nv_bfloat16 *at = &to.columns[warp / 4][query][swizzled_column(query, key)];
#pragma unroll
    for (int k = 0; k < TILE_ROWS / 16; k++) store_turned(at + k * 16 * 64, factor[0][k]);
}

/* ---- the queries' gradients ---- */

/* A warp's part of a step: 16 queries, 64 columns. In steps of 128 queries a warpgroup has half of them, in steps of 64 half of the
 * columns. */
template <int D> constexpr bool WIDE = STEP<D> == TILE_ROWS;

/* The first query of a warp, and the first column. */
template <int D> static __device__ uint32_t part_query(uint32_t warp) {
    return (WIDE<D> ? warp % 4 : warp) * 16;
}
template <int D> static __device__ uint32_t part_column(uint32_t warp) { return WIDE<D> ? warp / 4 * 64 : 0; }

/* Where a thread's number `i` of eight columns is, so that the threads of a warp add to 32 neighbours. */
static __device__ uint32_t part_place(uint32_t eight, uint32_t i, uint32_t lane) {
    return (eight * 4 + i) * WARP + lane;
}

template <int D>
static __device__ int32_t *sums_at(const attention_argument &a, uint32_t sequence, uint32_t head,
                                   uint32_t step) {
    uint32_t steps = (a.length + STEP<D> - 1) / STEP<D>;
    uint64_t part = (((uint64_t)sequence * a.heads + head) * steps + step) * PARTS;
    return a.sums + part * WARPGROUP_PART;
}

template <int D>
static __device__ void begin_query_part(sums_of<1, TILE_ROWS> &sums, const key_memory<D> &m, uint32_t at,
                                        uint32_t group) {
    uint32_t left = operand_of(m.slopes[at].columns[0][WIDE<D> ? 0 : group * TILE_ROWS]);
    uint32_t right = operand_of(m.keys.columns[WIDE<D> ? group : 0][0]);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < WARPGROUP_ROWS / 16; k++)
        warpgroup_multiply<true>(part_of<TILE_ROWS>(sums, 0), columns_of<STEP<D>>(left, k), rows_of(right, k),
                                 k > 0);
    warpgroup_commit();
}

/* The lane's two queries of the warp's part. */
template <int D>
static __device__ void take_norms(float (&norms)[2], const float *from, uint32_t query, uint32_t end) {
    for (int i = 0; i < 2; i++) {
        uint32_t row = query + part_query<D>(warp_index()) + lane_row() + i * 8;
        norms[i] = load_now(from + (row < end ? row : 0));
    }
}

/* Rounds the warp's part, and adds it. */
static __device__ void add_part(int32_t *to, const sums_of<1, TILE_ROWS> &sums, const float (&norms)[2],
                                float reach) {
    int32_t *part = to + warp_index() * WARPGROUP_PART + threadIdx.x % WARP;
    float scale[2] = {scale_of(norms[0], reach), scale_of(norms[1], reach)};
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            add_now(part + part_place(n, i, 0), __float2int_rn(sums[0][n][i] * scale[i / 2]));
}

/* ---- a block of keys ---- */

template <typename T, int D>
static __device__ void do_keys(const attention_argument &a, key_memory<D> &m, uint32_t sequence, uint32_t kv,
                               uint32_t block) {
    constexpr int HALVES = STEP<D> / TILE_ROWS;
    uint32_t warp = uniform(warp_index()), group = warp / 4, own = group * GROUP_ROWS;
    uint32_t begin = block * WARPGROUP_ROWS, first = begin + warp * WARP_ROWS<1>, now = 0, odd = 0;
    uint32_t members = a.heads / a.kv_heads, last = (a.length - 1) / STEP<D> * STEP<D>;
    uint32_t query = begin, member = 0;
    head<T> h = find<T>(a, sequence, kv * members);
    int32_t *to = sums_at<D>(a, sequence, kv * members, begin / STEP<D>);
    sums_of<1, D> key_sums = {}, value_sums = {};
    float scales[1][2], scale = a.scale * LOG2_E, reach = reach_of(a, sequence, kv);
    fill_swizzled(m.keys, h.key, begin, a.length, a.width);
    fill_swizzled(m.values, h.value, begin, a.length, a.width);
    fill_queries(m, 0, 0, a, h, begin);
    copies_done_for_products();
    __syncthreads();
    while (member < members) {
        uint32_t here = query, then = now == STAGES - 1 ? 0 : now + 1;
        sums_of<1, TILE_ROWS> scores, slopes;
        factor_of<1, TILE_ROWS> weights, factor;
        float norms[2];
        begin_scores<D, TILE_ROWS>(scores, m.keys, own, m.tiles[now].queries);
        begin_scores<D, TILE_ROWS>(slopes, m.values, own, m.tiles[now].gradients);
        take_norms<D>(norms, a.norms + (h.dots - a.dots), here, a.length);
        if (query != last)
            query += STEP<D>;
        else if (query = begin, ++member < members)
            h = find<T>(a, sequence, kv * members + member);
        if (member < members) fill_queries(m, then, odd ^ 1, a, h, query);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            warpgroup_wait<1>();
            hold_all<TILE_ROWS>(scores);
            if (here + half * TILE_ROWS < begin + own + GROUP_ROWS)
                hide_before(scores, first, here + half * TILE_ROWS);
            weigh(scores, m.bases[odd] + half * TILE_ROWS, scale);
            to_factor<T, 1, TILE_ROWS>(weights, scores);
            begin_mix<D, TILE_ROWS>(value_sums, weights, m.tiles[now].gradients, half * TILE_ROWS);
            warpgroup_wait<1>();
            hold_all<TILE_ROWS>(slopes);
            slope(slopes, scores, m.dots[odd] + half * TILE_ROWS);
            to_factor<T, 1, TILE_ROWS>(factor, slopes);
            begin_mix<D, TILE_ROWS>(key_sums, factor, m.tiles[now].queries, half * TILE_ROWS);
            store_slopes<D>(m.slopes[odd], factor, half);
            if (half + 1 < HALVES) {
                begin_scores<D, TILE_ROWS>(scores, m.keys, own, m.tiles[now].queries, TILE_ROWS);
                begin_scores<D, TILE_ROWS>(slopes, m.values, own, m.tiles[now].gradients, TILE_ROWS);
                warpgroup_wait<2>(); /* the factors can change */
                hold_all<D>(value_sums), hold_factor<TILE_ROWS>(weights);
                hold_all<D>(key_sums), hold_factor<TILE_ROWS>(factor);
            }
        }
        copies_done_for_products();
        __syncthreads();
        begin_query_part<D>(slopes, m, odd, group);
        warpgroup_wait<0>();
        hold_all<D>(value_sums), hold_factor<TILE_ROWS>(weights);
        hold_all<D>(key_sums), hold_factor<TILE_ROWS>(factor);
        hold_all<TILE_ROWS>(slopes);
        add_part(to, slopes, norms, reach);
        to += PARTS * WARPGROUP_PART;
        if (here == last && member < members)
            to = sums_at<D>(a, sequence, kv * members + member, begin / STEP<D>);
        now = then, odd ^= 1;
    }
    all<1>(scales, a.scale);
    write_rows<1, D>(h.key_gradient, first, a.length, a.width, key_sums, scales);
    all<1>(scales, 1);
    write_rows<1, D>(h.value_gradient, first, a.length, a.width, value_sums, scales);
}

/* Blocks take items in order: those of a head with the most work first. */
template <typename T, int D> static __device__ void by_key(const attention_argument &a) {
    static_assert(sizeof(key_memory<D>) + LINES * LINE_BYTES == WARPGROUP_BACK_BYTES(D),
                  "as the host launches it");
    DYNAMIC_SHARED(unsigned char, memory);
    key_memory<D> &m = *aligned<key_memory<D>>(memory);
    uint32_t blocks = (a.length + WARPGROUP_ROWS - 1) / WARPGROUP_ROWS, items = blocks * a.kv_heads * a.batch;
    if (threadIdx.x == 0) m.item = atomicAdd(a.item, 1u);
    __syncthreads();
    for (uint32_t item; (item = uniform(m.item)) < items;) {
        uint32_t next = threadIdx.x == 0 ? atomicAdd(a.item, 1u) : 0, pair = item / blocks;
        do_keys<T, D>(a, m, pair / a.kv_heads, pair % a.kv_heads, item % blocks);
        if (threadIdx.x == 0) m.item = next;
        __syncthreads();
    }
}

/* ---- after ---- */

/* A thread has eight columns of a query. */
template <typename T, int D> static __device__ void finish(const attention_argument &a) {
    constexpr uint32_t EIGHTS = WARPGROUP_PART / 8;
    uint32_t part = blockIdx.x * (WARPGROUP_THREADS / EIGHTS) + threadIdx.x / EIGHTS, warp = part % PARTS;
    uint32_t steps = (a.length + STEP<D> - 1) / STEP<D>, step = part / PARTS % steps,
             pair = part / PARTS / steps;
    uint32_t row = threadIdx.x / 64 % 2 * 8 + threadIdx.x % WARP / 4,
             eight = threadIdx.x / 32 % 2 * 4 + threadIdx.x % 4;
    uint32_t query = step * STEP<D> + part_query<D>(warp) + row, column = part_column<D>(warp) + eight * 8;
    if (pair >= a.batch * a.heads || query >= a.length || column >= a.width) return;
    uint32_t sequence = pair / a.heads, head = pair % a.heads;
    float scale = scale_of(a.norms[(uint64_t)pair * a.length + query],
                           reach_of(a, sequence, head / (a.heads / a.kv_heads)));
    const int32_t *from =
        a.sums + (uint64_t)part * WARPGROUP_PART + part_place(eight, row / 8 * 2, row % 8 * 4);
    group<int32_t, 4> even = group_at<4>(from), odd = group_at<4>(from + WARP);
    float sums[8];
    for (int i = 0; i < 4; i++) sums[2 * i] = (float)even.number[i], sums[2 * i + 1] = (float)odd.number[i];
    for (int i = 0; i < 8; i++) sums[i] *= a.scale / scale;
    store(find<T>(a, sequence, head).query_gradient.at(query) + column, sums);
}

#define WARPGROUP_KERNEL_OF(name, width, function)                                                           \
    KERNEL(name##_##width##_bf16, WARPGROUP_THREADS, attention_argument, a) {                                \
        function<__nv_bfloat16, width>(a);                                                                   \
    }
WARPGROUP_KERNEL_OF(warpgroup_dots, 64, dots)
WARPGROUP_KERNEL_OF(warpgroup_dots, 128, dots)
WARPGROUP_KERNEL_OF(warpgroup_backward, 64, by_key)
WARPGROUP_KERNEL_OF(warpgroup_backward, 128, by_key)
WARPGROUP_KERNEL_OF(warpgroup_finish, 64, finish)
WARPGROUP_KERNEL_OF(warpgroup_finish, 128, finish)
