/* Softmax and cross-entropy. A block handles one row after another. It reads a row once for its maximum and the sum of exponentials
 * together (Milakov and Gimelshein 2018), and once more to replace it with its gradient: the second time from shared memory, as far
 * as that holds the row. While it writes gradients, the next row is on its way there. A thread reads in shared memory only what it
 * copied itself. Exponentials use base 2. */
#include "tools/gpt/cuda/mma.h"
#include "tools/gpt/cuda/number.h"

static constexpr float LOG2_E = 1.4426950408889634f;
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

/* What a block knows of its row. Rows take turns with two of it: a thread that writes one has seen all threads read it. */
struct row_facts {
    running of_warp[WARPS];
    float wanted; /* x[target] */
};

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

template <typename T, int N> struct loss_rows {
    static constexpr uint32_t STEP = LOSS_THREADS * N;
    const cross_entropy_argument &a;
    T *kept; /* the thread's first group in shared memory */
    uint32_t first = threadIdx.x * N;

    __device__ T *logits_of(uint32_t row) const { return (T *)a.logits + (uint64_t)row * a.stride; }
    __device__ uint32_t column(uint32_t slot) const { return first + slot * STEP; }
    __device__ uint32_t quarter(uint32_t k) const { return a.slots * k / QUARTERS; }
    __device__ int32_t target(uint32_t row) const { return row < a.rows ? a.target[row] : -1; }

    __device__ void fetch(uint32_t row, uint32_t slot) const {
        if constexpr (sizeof(T) * N == 16)
            if (row < a.rows && column(slot) < a.stride)
                copy_16(kept + slot * STEP, logits_of(row) + column(slot), true);
    }

    __device__ running take_row(uint32_t row, float *wanted, uint32_t target) const {
        running r = {-INFINITY, 0};
        auto add = [&](const T *from, uint32_t c) {
            logits<T, N> x(from, c, a.columns);
            take(r, x.x), x.find(wanted, target);
        };
#pragma unroll
        for (uint32_t k = 0; k < QUARTERS; k++) {
            wait_for<QUARTERS - 1>(QUARTERS - 1 - k);
            for (uint32_t s = quarter(k); s < quarter(k + 1) && column(s) < a.stride; s++)
                add(kept + s * STEP, column(s));
        }
        for (uint32_t c = column(a.slots); c < a.stride; c += STEP) add(logits_of(row) + c, c);
        return r;
    }

    /* And fetches the next row. */
    __device__ void write_row(uint32_t row, uint32_t next, float base, float factor, float scale, uint32_t target) const {
        T *to = logits_of(row);
        auto write = [&](const T *from, uint32_t c) {
            logits<T, N> x(from, c, a.columns);
            x.write_gradient(to + c, base, factor, scale, target);
        };
        for (uint32_t k = 0; k < QUARTERS; k++) {
            for (uint32_t s = quarter(k); s < quarter(k + 1); s++) {
                if (a.scale != 0 && column(s) < a.stride) write(kept + s * STEP, column(s));
                fetch(next, s);
            }
            copies_end();
        }
        for (uint32_t c = column(a.slots); c < a.stride && a.scale != 0; c += STEP) write(to + c, c);
    }
};

template <typename T, int N> static __device__ void loss_of(const cross_entropy_argument &a) {
    __shared__ row_facts of_row[2];
    DYNAMIC_SHARED(T, kept);
    const loss_rows<T, N> rows = {a, kept + threadIdx.x * N};
    int32_t next_target = rows.target(blockIdx.x);
    uint32_t turn = 0;
    for (uint32_t k = 0; k < QUARTERS; k++) {
        for (uint32_t s = rows.quarter(k); s < rows.quarter(k + 1); s++) rows.fetch(blockIdx.x, s);
        copies_end();
    }
    for (uint32_t row = blockIdx.x, next; row < a.rows; row = next, turn ^= 1) {
        row_facts &facts = of_row[turn];
        bool counts = next_target >= 0;
        uint32_t target = counts ? (uint32_t)next_target : a.stride;
        next = row + gridDim.x, next_target = rows.target(next);
        running r = join_warp(rows.take_row(row, &facts.wanted, target));
        if (threadIdx.x % WARP == 0) facts.of_warp[threadIdx.x / WARP] = r;
        __syncthreads();
        r = join(facts.of_warp);
        if (threadIdx.x == 0) a.loss[row] = counts ? logf(r.total) - (facts.wanted - r.most) : 0.f;
        rows.write_row(row, next, r.most * LOG2_E, counts ? a.scale / r.total : 0.f, a.scale, target);
    }
    copies_done();
}

template <typename T> static __device__ void loss(const cross_entropy_argument &a) {
    if (a.stride % WIDEST<T> == 0)
        loss_of<T, WIDEST<T>>(a);
    else
        loss_of<T, 1>(a);
}

KERNELS_OF(cross_entropy, LOSS_THREADS, loss)
