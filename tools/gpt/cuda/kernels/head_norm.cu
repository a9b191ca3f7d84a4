/* The RMSNorm of each head's queries and keys over the columns of the head (Henry et al. 2020, Query-key normalization for
 * transformers), in place. A warp handles a head of a row; a lane has every 32nd column. */
#include "tools/gpt/cuda/kernels/number.h"

constexpr int COLUMNS_PER_LANE = HEAD_WIDTH_MAX / WARP;

/* The columns of one head of one row, and those that the backward needs again. */
template <typename T> struct place {
    T *now, *raw;
    float *rstd;
    const T *gain;
};

template <typename T, typename Argument>
static __device__ place<T> find(const Argument &a, uint32_t row, uint32_t head) {
    uint64_t heads = a.heads + a.kv_heads, at = row * heads + head;
    return {(T *)a.x + (uint64_t)row * a.stride + head * a.width, (T *)a.raw + at * a.width, a.rstd + at,
            (const T *)(head < a.heads ? a.query_gain : a.key_gain)};
}

template <typename T> static __device__ void forward(const head_norm_forward_argument &a) {
    uint64_t index = (uint64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, heads = a.heads + a.kv_heads;
    uint32_t lane = threadIdx.x % WARP;
    if (index >= a.rows * heads) return;
    place<T> p = find<T>(a, (uint32_t)(index / heads), (uint32_t)(index % heads));
    float x[COLUMNS_PER_LANE], square = 0;
    for (int i = 0; i < COLUMNS_PER_LANE; i++) {
        uint32_t c = lane + i * WARP;
        x[i] = c < a.width ? wide(p.now[c]) : 0.f;
        square += x[i] * x[i];
    }
    float rstd = 1 / sqrtf(warp_sum(square) / (float)a.width + a.epsilon);
    for (int i = 0; i < COLUMNS_PER_LANE; i++) {
        uint32_t c = lane + i * WARP;
        if (c >= a.width) continue;
        p.raw[c] = p.now[c];
        narrow(&p.now[c], x[i] * rstd * wide(p.gain[c]));
    }
    if (lane == 0) *p.rstd = rstd;
}

/* A block handles a head of a part of SUM_ROWS rows. Its warps take rows in turn; their sums are added in order. */
template <typename T> static __device__ void backward(const head_norm_backward_argument &a) {
    __shared__ float of_warp[SUM_LANES][HEAD_WIDTH_MAX];
    uint32_t lane = threadIdx.x, warp = threadIdx.y, head = blockIdx.y, first = blockIdx.x * SUM_ROWS,
             end = first + SUM_ROWS < a.rows ? first + SUM_ROWS : a.rows;
    float sum[COLUMNS_PER_LANE] = {};
    for (uint32_t row = first + warp; row < end; row += SUM_LANES) {
        place<T> p = find<T>(a, row, head);
        float n[COLUMNS_PER_LANE], g[COLUMNS_PER_LANE], rstd = *p.rstd, sum_gn = 0;
        for (int i = 0; i < COLUMNS_PER_LANE; i++) {
            uint32_t c = lane + i * WARP;
            bool there = c < a.width;
            float d = there ? wide(p.now[c]) : 0.f;
            n[i] = there ? wide(p.raw[c]) * rstd : 0.f;
            g[i] = there ? d * wide(p.gain[c]) : 0.f;
            sum_gn += g[i] * n[i], sum[i] += d * n[i];
        }
        float mean_gn = warp_sum(sum_gn) / (float)a.width;
        for (int i = 0; i < COLUMNS_PER_LANE; i++) {
            uint32_t c = lane + i * WARP;
            if (c < a.width) narrow(&p.now[c], (g[i] - n[i] * mean_gn) * rstd);
        }
    }
    for (int i = 0; i < COLUMNS_PER_LANE; i++) of_warp[warp][lane + i * WARP] = sum[i];
    __syncthreads();
    /* The parts of all heads of queries, then those of keys. */
    bool keys = head >= a.heads;
    uint32_t of_kind = keys ? a.kv_heads : a.heads, index = keys ? head - a.heads : head;
    float *to = a.sums + (keys ? (uint64_t)gridDim.x * a.heads * a.width : 0) +
                ((uint64_t)blockIdx.x * of_kind + index) * a.width;
    for (uint32_t c = warp * WARP + lane; c < a.width; c += SUM_LANES * WARP) {
        float total = 0;
        for (uint32_t w = 0; w < SUM_LANES; w++) total += of_warp[w][c];
        to[c] = total;
    }
}

KERNELS_OF(head_norm_forward, ROWS_PER_BLOCK *WARP, forward)
KERNELS_OF(head_norm_backward, WARP *SUM_LANES, backward)
