/* The embeddings of tokens and of positions. Forward, a warp handles a row; backward, a block handles a row of a table. Threads go along
 * the columns. A thread handles as many neighbouring columns as 16 bytes hold, if a row is a multiple of that. A thread loads several
 * groups of columns, or several rows to sum, before it adds the first. */
#include "tools/gpt/cuda/kernels/number.h"

static constexpr uint32_t AHEAD = 4;

template <typename T, int N> static __device__ void forward_row(const embedding_forward_argument &a) {
    uint32_t row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, first = threadIdx.x % WARP * N;
    if (row >= a.rows) return;
    uint32_t here = (uint32_t)a.tokens[row] - a.first;
    const T *token = here < a.count ? (const T *)a.table + (uint64_t)here * a.width : NULL;
    uint32_t at = a.position ? a.position[row] : row % a.length;
    const T *position = a.positions ? (const T *)a.positions + (uint64_t)at * a.width : NULL;
    T *y = (T *)a.y + (uint64_t)row * a.width;
    if (a.add) position = y;
    if (!token && (a.add || !position)) return;
    for (; first < a.width; first += AHEAD * WARP * N) {
        packed<T, N> x[AHEAD] = {}, p[AHEAD] = {};
        float sum[N];
        for (uint32_t k = 0, c = first; k < AHEAD; k++, c += WARP * N) {
            if (c < a.width && token) x[k] = packed_at<N>(token + c);
            if (c < a.width && position) p[k] = packed_at<N>(position + c);
        }
        for (uint32_t k = 0, c = first; k < AHEAD; k++, c += WARP * N) {
            for (int i = 0; i < N; i++) sum[i] = x[k].at(i) + p[k].at(i);
            if (c < a.width) store(y + c, sum);
        }
    }
}

static __device__ uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Adds the first `count` groups, in order. */
template <typename T, int N>
static __device__ void add_groups(float (&sum)[N], const group<T, N> (&x)[AHEAD], uint32_t count) {
    for (uint32_t k = 0; k < AHEAD; k++)
        for (int i = 0; i < N && k < count; i++) sum[i] += wide(x[k].number[i]);
}

/* to = sum, or to += sum. */
template <typename T, int N> static __device__ void put(T *to, const float (&sum)[N], bool add) {
    float x[N] = {};
    if (add) load(x, to);
    for (int i = 0; i < N; i++) x[i] += sum[i];
    store(to, x);
}

template <typename T, int N> static __device__ void sum_group(const embedding_backward_argument &a) {
    uint32_t index = blockIdx.x;
    if (index >= *a.groups) return;
    uint32_t first = a.first[index], end = a.first[index + 1], here = (uint32_t)a.token[index] - a.from;
    if (here >= a.count) return;
    T *to = (T *)a.table + (uint64_t)here * a.width;
    for (uint32_t c = threadIdx.x * N; c < a.width; c += FLAT_THREADS * N) {
        float sum[N] = {};
        for (uint32_t at = first; at < end; at += AHEAD) {
            group<T, N> x[AHEAD];
            for (uint32_t k = 0; k < AHEAD; k++)
                x[k] = group_at<N>((const T *)a.dy + (uint64_t)a.order[least(at + k, end - 1)] * a.width + c);
            add_groups(sum, x, end - at);
        }
        put(to + c, sum, a.add);
    }
}

template <typename T, int N> static __device__ void sum_position(const position_backward_argument &a) {
    uint32_t position = blockIdx.x, end = position < a.length ? a.batch : 0;
    for (uint32_t c = threadIdx.x * N; c < a.width; c += FLAT_THREADS * N) {
        float sum[N] = {};
        for (uint32_t at = 0; at < end; at += AHEAD) {
            group<T, N> x[AHEAD];
            for (uint32_t k = 0; k < AHEAD; k++)
                x[k] = group_at<N>((const T *)a.dy +
                                   ((uint64_t)least(at + k, end - 1) * a.length + position) * a.width + c);
            add_groups(sum, x, end - at);
        }
        put((T *)a.table + (uint64_t)position * a.width + c, sum, a.add);
    }
}

KERNELS_BY_GROUPS(embedding_forward, ROWS_PER_BLOCK *WARP, forward_row, a.width)
KERNELS_BY_GROUPS(embedding_backward, FLAT_THREADS, sum_group, a.width)
KERNELS_BY_GROUPS(position_backward, FLAT_THREADS, sum_position, a.width)
