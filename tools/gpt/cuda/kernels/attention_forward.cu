/* A block handles QUERIES_PER_BLOCK queries of a head, a warp a quarter of them. The warp goes over the keys in tiles
 * of 32. Each lane holds the scores of one key of the tile, and every 32nd column of the output. The softmax is updated
 * tile by tile (Milakov and Gimelshein 2018): when the maximum grows, the sums so far are scaled. */
#include "tools/gpt/cuda/kernels/attention.h"

constexpr int QUERIES_PER_WARP = QUERIES_PER_BLOCK / ATTENTION_WARPS;

struct query_state {
    float most, total, sum[COLUMNS_PER_LANE];
};

/* Adds the part of the tile of keys that begins at `first` to the output of query `index`, which sees keys from `from` on. Lanes whose key
 * the query does not see add nothing; it sees one of the tile. */
static __device__ void see_tile(query_state &s, const float *query, uint32_t index, uint32_t from,
                                uint32_t first, const float (&keys)[WARP][SKEWED],
                                const float (&values)[WARP][HEAD_WIDTH_MAX], float *weights, uint32_t width) {
    uint32_t lane = threadIdx.x % WARP;
    float score = first + lane <= index && first + lane >= from ? dot(query, keys[lane], width) : -INFINITY;
    float most = fmaxf(s.most, warp_maximum(score)), correction = expf(s.most - most);
    float weight = expf(score - most);
    s.most = most;
    s.total = s.total * correction + warp_sum(weight);
    for (int i = 0; i < COLUMNS_PER_LANE; i++) s.sum[i] *= correction;
    weights[lane] = weight;
    __syncwarp();
    add_rows(s.sum, weights, values, width);
    __syncwarp();
}

template <typename T> static __device__ void forward(const attention_argument &a) {
    __shared__ float queries[QUERIES_PER_BLOCK][HEAD_WIDTH_MAX], keys[WARP][SKEWED];
    __shared__ float values[WARP][HEAD_WIDTH_MAX], weights[ATTENTION_WARPS][WARP];
    head<T> h = find<T>(a, blockIdx.z, blockIdx.y);
    uint32_t first = blockIdx.x * QUERIES_PER_BLOCK, warp = threadIdx.x / WARP;
    uint32_t end = first + QUERIES_PER_BLOCK < a.length ? first + QUERIES_PER_BLOCK : a.length;
    query_state state[QUERIES_PER_WARP];
    for (int i = 0; i < QUERIES_PER_WARP; i++) state[i] = {-INFINITY, 0, {}};
    fill(queries, h.query, first, end, a.width, a.scale);
    for (uint32_t key = first_key(a, blockIdx.z, first) / WARP * WARP; key < end; key += WARP) {
        __syncthreads();
        fill(keys, h.key, key, a.length, a.width, 1);
        fill(values, h.value, key, a.length, a.width, 1);
        __syncthreads();
        for (int i = 0; i < QUERIES_PER_WARP; i++) {
            uint32_t mine = warp * QUERIES_PER_WARP + i, from = first_key(a, blockIdx.z, first + mine);
            if (first + mine < end && key <= first + mine && from < key + WARP)
                see_tile(state[i], queries[mine], first + mine, from, key, keys, values, weights[warp],
                         a.width);
        }
    }
    for (int i = 0; i < QUERIES_PER_WARP; i++) {
        uint32_t query = first + warp * QUERIES_PER_WARP + i;
        if (query >= end) continue;
        write_row(h.mixed.at(query), state[i].sum, 1 / state[i].total, a.width);
        if (threadIdx.x % WARP == 0) ((float *)h.lse)[query] = state[i].most + logf(state[i].total);
    }
}

KERNELS_OF(attention_forward, ATTENTION_THREADS, forward)
