/* Softmax and cross-entropy; each block handles one row. It reads the row once for its maximum and the sum of exponentials together
 * (Milakov and Gimelshein 2018), and once more to replace it with its gradient: the second time from shared memory, as far as that holds
 * the row. A thread reads in shared memory only what it copied itself. Exponentials use base 2. */
#include "tools/gpt/cuda/kernels/mma.h"
#include "tools/gpt/cuda/kernels/number.h"

static constexpr uint32_t WARPS = LOSS_THREADS / WARP, QUARTERS = 4;

struct running {
    float most, total; /* total: of e^(x - most) */
};

static __device__ float power_of_e(float x) { return power_of_two(x * LOG2_E); }

/* Adds N numbers; corrects the sum for a new maximum once for all of them. */
template <int N> static __device__ void take(running &r, const float (&x)[N]) {
    float most = r.most;
    for (int i = 0; i < N; i++) most = fmaxf(most, x[i]);
    if (most == -INFINITY) return;
    float base = most * LOG2_E;
    r.total *= power_of_two(fmaf(r.most, LOG2_E, -base));
    for (int i = 0; i < N; i++) r.total += power_of_two(fmaf(x[i], LOG2_E, -base));
    r.most = most;
}

/* Joins the results of all warps; in the same order in every thread. */
static __device__ running join(const running (&each)[WARPS]) {
    running all = {-INFINITY, 0};
    for (uint32_t i = 0; i < WARPS; i++) all.most = fmaxf(all.most, each[i].most);
    if (all.most == -INFINITY) return each[0];
    for (uint32_t i = 0; i < WARPS; i++) all.total += each[i].total * power_of_e(each[i].most - all.most);
    return all;
}

static __device__ running join_warp(running r) {
    float most = warp_maximum(r.most);
    return {most, most == -INFINITY ? r.total : warp_sum(r.total * power_of_e(r.most - most))};
}

/* N neighbouring logits of a row, from `column` on; those from `columns` on are hidden. */
template <typename T, int N> struct logits {
    uint32_t column;
    float x[N];

    __device__ logits(const T *from, uint32_t column, uint32_t columns) : column(column) {
        load(x, from);
        if (column + N <= columns) return;
        for (uint32_t i = 0; i < N; i++)
            if (column + i >= columns) x[i] = -INFINITY;
    }
    __device__ void find(float *wanted, uint32_t target) const {
        if (target - column >= N) return;
        for (uint32_t i = 0; i < N; i++)
            if (column + i == target) *wanted = x[i];
    }
    /* to = factor e^x, less `scale` at the target. */
    __device__ void write_gradient(T *to, float base, float factor, float scale, uint32_t target) {
        for (uint32_t i = 0; i < N; i++)
            x[i] = factor == 0 ? 0.f : factor * power_of_two(fmaf(x[i], LOG2_E, -base));
        for (uint32_t i = 0; i < N && target - column < N; i++)
            if (column + i == target) x[i] -= scale;
        store(to, x);
    }
};

template <int LATER> static __device__ void wait_for(uint32_t later) {
    if (later == LATER)
        copies_wait<LATER>();
    else if constexpr (LATER > 0)
        wait_for<LATER - 1>(later);
}

template <typename T, int N> struct loss_row {
    static constexpr uint32_t STEP = LOSS_THREADS * N;
    const cross_entropy_argument &a;
    T *x, *kept; /* the row; the thread's first group in shared memory */
    uint32_t first, target;

    __device__ uint32_t column(uint32_t slot) const { return first + slot * STEP; }
    __device__ uint32_t quarter(uint32_t k) const { return a.slots * k / QUARTERS; }

    __device__ void fetch() const {
        for (uint32_t k = 0; k < QUARTERS; k++) {
            for (uint32_t s = quarter(k); s < quarter(k + 1); s++)
                if constexpr (sizeof(T) * N == 16)
                    if (column(s) < a.stride) copy_16(kept + s * STEP, x + column(s), true);
            copies_end();
        }
    }

    /* The thread's part; one thread writes x[target]. */
    __device__ running read(float *wanted) const {
        running r = {-INFINITY, 0};
        auto add = [&](const T *from, uint32_t c) {
            logits<T, N> l(from, c, a.columns);
            take(r, l.x), l.find(wanted, target);
        };
#pragma unroll
        for (uint32_t k = 0; k < QUARTERS; k++) {
            wait_for<QUARTERS - 1>(QUARTERS - 1 - k);
            for (uint32_t s = quarter(k); s < quarter(k + 1) && column(s) < a.stride; s++)
                add(kept + s * STEP, column(s));
        }
        for (uint32_t c = column(a.slots); c < a.stride; c += STEP) add(x + c, c);
        return r;
    }

    __device__ void write(float base, float factor) const {
        auto put = [&](const T *from, uint32_t c) {
            logits<T, N>(from, c, a.columns).write_gradient(x + c, base, factor, a.scale, target);
        };
        for (uint32_t s = 0; s < a.slots && column(s) < a.stride; s++) put(kept + s * STEP, column(s));
        for (uint32_t c = column(a.slots); c < a.stride; c += STEP) put(x + c, c);
    }
};

template <typename T, int N> static __device__ void loss_of(const cross_entropy_argument &a) {
    __shared__ running of_warp[WARPS];
    __shared__ float wanted;
    DYNAMIC_SHARED(T, kept);
    uint32_t first = threadIdx.x * N;
    int32_t target = a.target[blockIdx.x];
    bool counts = target >= 0;
    const loss_row<T, N> row = {a, (T *)a.logits + (uint64_t)blockIdx.x * a.stride, kept + first, first,
                                counts ? (uint32_t)target : a.stride};
    row.fetch();
    running r = join_warp(row.read(&wanted));
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = r;
    __syncthreads();
    r = join(of_warp);
    if (threadIdx.x == 0) a.loss[blockIdx.x] = counts ? logf(r.total) - (wanted - r.most) : 0.f;
    if (a.scale != 0) row.write(r.most * LOG2_E, counts ? a.scale / r.total : 0.f);
}

/* ---- by blocks of the vocabulary ---- */

template <typename T, int N> static __device__ void part_of(const loss_part_argument &a) {
    __shared__ running of_warp[WARPS];
    uint32_t row = blockIdx.x,
             target = (uint32_t)a.target[row] - a.first; /* of no target: above all columns */
    const T *x = (const T *)a.logits + (uint64_t)row * a.stride;
    running r = {-INFINITY, 0};
    for (uint32_t c = threadIdx.x * N; c < a.columns; c += LOSS_THREADS * N) {
        logits<T, N> l(x + c, c, a.columns);
        take(r, l.x);
        if (target < a.columns) l.find(&a.wanted[row], target);
    }
    r = join_warp(r);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = r;
    __syncthreads();
    if (threadIdx.x > 0) return;
    r = join(of_warp);
    float before = a.begins ? -INFINITY : a.most[row], most = fmaxf(before, r.most);
    float total = r.total * power_of_e(r.most - most);
    if (!a.begins) total += a.total[row] * power_of_e(before - most);
    a.most[row] = most, a.total[row] = total;
}

/* After part_of: another thread may have written the target's logit. */
template <typename T, int N> static __device__ void loss_part(const loss_part_argument &a) {
    uint32_t row = blockIdx.x;
    part_of<T, N>(a);
    __syncthreads();
    if (a.ends && threadIdx.x == 0)
        a.loss[row] = a.target[row] < 0 ? 0.f : logf(a.total[row]) - (a.wanted[row] - a.most[row]);
}

template <typename T, int N> static __device__ void slope_of(const loss_slope_argument &a) {
    uint32_t row = blockIdx.x, target = (uint32_t)a.target[row] - a.first;
    T *x = (T *)a.logits + (uint64_t)row * a.stride;
    float base = a.most[row] * LOG2_E, factor = a.target[row] < 0 ? 0.f : a.scale / a.total[row];
    for (uint32_t c = threadIdx.x * N; c < a.stride; c += LOSS_THREADS * N)
        logits<T, N>(x + c, c, a.columns)
            .write_gradient(x + c, base, factor, a.scale, target < a.columns ? target : a.stride);
}

KERNELS_BY_GROUPS(cross_entropy, LOSS_THREADS, loss_of, a.stride)
KERNELS_BY_GROUPS(loss_part, LOSS_THREADS, loss_part, a.stride)
KERNELS_BY_GROUPS(loss_slope, LOSS_THREADS, slope_of, a.stride)
