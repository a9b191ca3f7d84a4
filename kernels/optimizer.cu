/* Optimizer updates in one pass over memory: four elements per thread. The element functions are those of the CPU;
 * --fmad=false keeps their arithmetic. */
#include "kernels/device_work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/adagrad.h"
#include "kernels/adam.h"
#include "kernels/adamw.h"
#include "kernels/average.h"
#include "kernels/four.cuh"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/muon.h"
#include "kernels/norm.cuh"
#include "kernels/sgd.h"
#include "kernels/state_element.h"

typedef void element_function(float *weight, float *state0, float *state1, float gradient, const float *s);

/* Of a split master: the weights in the first two words, the low halves in the others. */
static __device__ four_bits fetch_master(const struct optimizer_args &a, uint64_t first, uint32_t count) {
    if (!a.master_low) return four_fetch(a.master, DTYPE_F32, first, count);
    uint2 weight = four_load_halves(static_cast<const uint16_t *>(a.out), first, count);
    uint2 low = four_load_halves(a.master_low, first, count);
    return {make_uint4(weight.x, weight.y, low.x, low.y)};
}

static __device__ four master_from(const struct optimizer_args &a, const four_bits &bits) {
    if (!a.master_low) return four_widened(bits, DTYPE_F32);
    const uint4 &w = bits.word;
    four f;
    for (uint32_t k = 0; k < 4; k++)
        f.x[k] = master_of(four_half(make_uint2(w.x, w.y), k), four_half(make_uint2(w.z, w.w), k));
    return f;
}

/* What an update reads, in one go. */
struct read_four {
    four_bits master, gradient, state[OPTIMIZER_STATES_MAX];
};

template <int states>
static __device__ read_four read(const struct optimizer_args &a, uint64_t first, uint32_t count,
                                 bool gradient) {
    read_four r = {};
    r.master = fetch_master(a, first, count);
    if (gradient) r.gradient = four_fetch(a.gradient, a.gradient_dtype, first, count);
    for (int s = 0; s < states; s++) r.state[s] = four_fetch(a.state[s], a.state_dtype, first, count);
    return r;
}

static __device__ void move_average(const struct optimizer_args &a, uint64_t first, uint32_t count,
                                    const four &weight) {
    four f = four_load(a.average, DTYPE_F32, first, count);
    for (uint32_t k = 0; k < 4; k++) f.x[k] = average_of(f.x[k], weight.x[k], a.average_share);
    four_store(a.average, DTYPE_F32, first, count, f);
}

static __device__ void store_master(const struct optimizer_args &a, uint64_t first, uint32_t count, four f) {
    for (uint32_t k = 0; k < 4 && a.out && a.out_dtype == DTYPE_BF16; k++) f.x[k] = kept_master(f.x[k]);
    if (a.average) move_average(a, first, count, f);
    if (!a.master_low) {
        four_store(a.master, DTYPE_F32, first, count, f);
        if (a.out) four_store(a.out, a.out_dtype, first, count, f);
        return;
    }
    uint16_t weight[4], low[4];
    for (uint32_t k = 0; k < 4; k++)
        weight[k] = (uint16_t)(bf16_sum_of_result(bits_of(f.x[k])) >> 16), low[k] = low_of(f.x[k], weight[k]);
    four_store_halves(static_cast<uint16_t *>(a.out), first, count, weight);
    four_store_halves(a.master_low, first, count, low);
}

/* Stores elements of a state. f gets the values as they are stored. */
static __device__ void store_state(const struct optimizer_args &a, int state, uint64_t first, uint32_t count,
                                   four &f) {
    if (a.state_dtype == DTYPE_F32) {
        four_store(a.state[state], DTYPE_F32, first, count, f);
        return;
    }
    /* A key costs as much as three elements. All threads share that of the call's first element, except beyond the end of a block of
     * 2^32 elements: it depends on no thread, so a warp computes it once. */
    uint16_t x[4];
    uint64_t at = a.first + first, key_of = a.rounding_key + (uint64_t)state;
    uint32_t key = block_key(key_of, a.first >> 32);
    if (at >> 32 != a.first >> 32) key = block_key(key_of, at >> 32);
    for (uint32_t k = 0; k < 4; k++, at++) {
        if (k && (uint32_t)at == 0) key = block_key(key_of, at >> 32);
        x[k] = (uint16_t)(stochastic_sum_of_result(f.x[k], mix_bits((uint32_t)at ^ key)) >> 16);
        f.x[k] = f32_from_bf16(x[k]);
    }
    four_store_halves(static_cast<uint16_t *>(a.state[state]), first, count, x);
}

/* ---- split masters, with gradients and states in bf16 ----
 *
 * Four elements in two words of each array. With a branch on a type or on an alignment for each access, instructions would take
 * longer than memory. */

static __device__ uint32_t *words_of(const void *halves, uint64_t first) {
    return reinterpret_cast<uint32_t *>(reinterpret_cast<uintptr_t>(halves) + 2 * first);
}
static __device__ uint2 two_words(const void *halves, uint64_t first) {
    return *reinterpret_cast<const uint2 *>(words_of(halves, first));
}
static __device__ void put_two_words(void *halves, uint64_t first, const uint32_t (&word)[2]) {
    *reinterpret_cast<uint2 *>(words_of(halves, first)) = make_uint2(word[0], word[1]);
}
static __device__ uint32_t upper_halves(uint32_t x, uint32_t y) { return x >> 16 | (y & 0xffff0000); }
static __device__ uint32_t lower_halves(uint32_t x, uint32_t y) { return (x & 0xffff) | y << 16; }

template <int states>
static __device__ bool is_narrow(const struct optimizer_args &a, uint64_t first, uint32_t count) {
    uintptr_t places = reinterpret_cast<uintptr_t>(a.out) | reinterpret_cast<uintptr_t>(a.master_low) |
                       reinterpret_cast<uintptr_t>(a.gradient);
    for (int s = 0; s < states; s++) places |= reinterpret_cast<uintptr_t>(a.state[s]);
    return a.master_low && !a.average && a.gradient_dtype == DTYPE_BF16 &&
           (states == 0 || a.state_dtype == DTYPE_BF16) && count == 4 && places % sizeof(uint2) == 0 &&
           (a.first + first + 3) >> 32 == a.first >> 32;
}

template <element_function element, int states>
static __device__ void update_narrow(const struct optimizer_step_argument &argument, uint64_t first) {
    const struct optimizer_args &a = argument.args;
    uint2 weight = two_words(a.out, first), low = two_words(a.master_low, first),
          gradient = two_words(a.gradient, first), state[OPTIMIZER_STATES_MAX];
    uint32_t key[OPTIMIZER_STATES_MAX], new_weight[2], new_low[2], new_state[OPTIMIZER_STATES_MAX][2];
    for (int s = 0; s < states; s++) {
        state[s] = two_words(a.state[s], first);
        /* depends on no thread: a warp computes it once */
        key[s] = block_key(a.rounding_key + (uint64_t)s, a.first >> 32);
    }
    for (uint32_t pair = 0; pair < 2; pair++) {
        uint32_t kept[2], rounded[2], random[OPTIMIZER_STATES_MAX][2];
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t k = 2 * pair + i, at = (uint32_t)(a.first + first) + k;
            float master = master_of(four_half(weight, k), four_half(low, k)),
                  moment[OPTIMIZER_STATES_MAX] = {};
            for (int s = 0; s < states; s++) moment[s] = f32_from_bf16(four_half(state[s], k));
            element(&master, &moment[0], &moment[1], f32_from_bf16(four_half(gradient, k)) * a.gradient_scale,
                    argument.scalars.value);
            kept[i] = bits_of(kept_master(master)), rounded[i] = bf16_sum_of_result(kept[i]);
            for (int s = 0; s < states; s++)
                random[s][i] = stochastic_sum_of_result(moment[s], mix_bits(at ^ key[s]));
        }
        new_weight[pair] = upper_halves(rounded[0], rounded[1]);
        new_low[pair] = lower_halves(kept[0], kept[1]);
        for (int s = 0; s < states; s++) new_state[s][pair] = upper_halves(random[s][0], random[s][1]);
    }
    put_two_words(a.out, first, new_weight), put_two_words(a.master_low, first, new_low);
    for (int s = 0; s < states; s++) put_two_words(a.state[s], first, new_state[s]);
}

/* ---- all formats ---- */

/* MEASURED: norms have been taken before. The states were updated then, and the gradient was read. */
enum update_part { WHOLE, MEASURED };

template <element_function element, int states, update_part part = WHOLE>
static __device__ void update(const struct optimizer_step_argument &argument) {
    const struct optimizer_args &a = argument.args;
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, a.count);
    if (!count) return;
    if (part == WHOLE && is_narrow<states>(a, first, count))
        return update_narrow<element, states>(argument, first);
    const read_four r = read<states>(a, first, count, part == WHOLE);
    four gradient = {}, master = master_from(a, r.master), state[OPTIMIZER_STATES_MAX] = {};
    if (part == WHOLE) gradient = four_widened(r.gradient, a.gradient_dtype);
    for (int s = 0; s < states; s++) state[s] = four_widened(r.state[s], a.state_dtype);
    for (uint32_t k = 0; k < 4; k++)
        element(&master.x[k], &state[0].x[k], &state[1].x[k], gradient.x[k] * a.gradient_scale,
                argument.scalars.value);
    store_master(a, first, count, master);
    for (int s = 0; s < states && part == WHOLE; s++) store_state(a, s, first, count, state[s]);
}

/* ---- norms of whole tensors ---- */

static constexpr uint32_t TILE_ELEMENTS = 1024, WARP = 32;

template <typename array> static __device__ array *moved(array *base, uint32_t dtype, uint64_t first) {
    uint64_t bytes = first * (dtype == DTYPE_F32 ? 4 : 2);
    return reinterpret_cast<array *>(reinterpret_cast<uintptr_t>(base) + bytes);
}

/* The arrays of elements from `first` on. */
static __device__ struct optimizer_args args_from(struct optimizer_args a, uint64_t first) {
    if (a.master_low)
        a.out = moved(a.out, DTYPE_BF16, first), a.master_low += first;
    else
        a.master += first;
    for (int s = 0; s < OPTIMIZER_STATES_MAX; s++) a.state[s] = moved(a.state[s], a.state_dtype, first);
    a.gradient = moved(a.gradient, a.gradient_dtype, first);
    a.first += first;
    return a;
}

/* Updates the states of four elements; takes their weights and directions, which are zeros where there are no elements. */
template <element_function before, element_function direction, int states>
static __device__ void measure_four(const struct optimizer_args &a, const float *scalars, uint64_t first,
                                    uint32_t count, four &weight, four &moves) {
    const read_four r = read<states>(a, first, count, true);
    four gradient = four_widened(r.gradient, a.gradient_dtype), state[OPTIMIZER_STATES_MAX] = {};
    weight = master_from(a, r.master);
    for (int s = 0; s < states; s++) state[s] = four_widened(r.state[s], a.state_dtype);
    for (uint32_t k = 0; k < 4; k++) {
        moves.x[k] = weight.x[k];
        before(&moves.x[k], &state[0].x[k], &state[1].x[k], gradient.x[k] * a.gradient_scale, scalars);
    }
    for (int s = 0; s < states; s++) store_state(a, s, first, count, state[s]);
    for (uint32_t k = 0; k < 4; k++) {
        direction(&moves.x[k], &state[0].x[k], &state[1].x[k], 0, scalars);
        if (k >= count) moves.x[k] = 0;
    }
}

/* One block of the grid per block of elements, tile by tile: a small tile leaves room for more blocks, whose loads hide the chains of
 * additions. The first sixteen threads of one warp add squares of weights, those of another one squares of directions. What another call
 * had of the first block comes first. */
template <element_function before, element_function direction, int states>
static __device__ void measure(const struct optimizer_measure_argument &argument) {
    __shared__ float tile[2][TILE_ELEMENTS];
    uint64_t at = blockIdx.x * (uint64_t)NORM_BLOCK_ELEMENTS, all = argument.args.count,
             first = blockIdx.x ? at - argument.skip : 0, end = at + NORM_BLOCK_ELEMENTS - argument.skip;
    uint32_t count = (uint32_t)((end < all ? end : all) - first), warp = threadIdx.x / WARP,
             lane = threadIdx.x % WARP, blocks = gridDim.x - (argument.ends != nullptr),
             held = blockIdx.x ? 0 : argument.held, into = argument.ends == argument.begins ? held : 0;
    const struct optimizer_args a = args_from(argument.args, first);
    bool cuts = blockIdx.x == blocks, adds = warp < 2 && lane < NORM_LANES;
    double sum = 0;
    if (adds && held && !cuts)
        sum = norm_lane(0, warp ? argument.begins->direction : argument.begins->weights, lane, held);
    for (uint32_t done = 0; done < count; done += TILE_ELEMENTS) {
        __syncthreads();
        for (uint32_t i = threadIdx.x * 4; i < TILE_ELEMENTS; i += NORM_THREADS * 4) {
            four weight = {}, moves = {};
            uint32_t here = four_count(done + i, count);
            if (here)
                measure_four<before, direction, states>(a, argument.scalars.value, done + i, here, weight,
                                                        moves);
            for (uint32_t k = 0; k < 4; k++) tile[0][i + k] = weight.x[k], tile[1][i + k] = moves.x[k];
            if (!cuts) continue;
            four_store(argument.ends->weights + into, DTYPE_F32, done + i, here, weight);
            four_store(argument.ends->direction + into, DTYPE_F32, done + i, here, moves);
        }
        __syncthreads();
        if (adds) sum = norm_lane(sum, tile[warp], (lane - held) % NORM_LANES, TILE_ELEMENTS);
    }
    if (adds && !cuts) norm_of_lanes(sum, lane, &argument.sums[warp * blocks + blockIdx.x], NORM_ONE_HALF);
}

KERNEL(adamw_step, 256, struct optimizer_step_argument, a) { update<adamw_element, 2>(a); }
KERNEL(adam_step, 256, struct optimizer_step_argument, a) { update<adam_element, 2>(a); }
KERNEL(lion_step, 256, struct optimizer_step_argument, a) { update<lion_element, 1>(a); }
KERNEL(adagrad_step, 256, struct optimizer_step_argument, a) { update<adagrad_element, 1>(a); }
KERNEL(muon_step, 256, struct optimizer_step_argument, a) { update<muon_apply, 0>(a); }
KERNEL(muon_momentum_step, 256, struct optimizer_step_argument, a) { update<muon_momentum, 1>(a); }
KERNEL(lamb_step, 256, struct optimizer_step_argument, a) { update<lamb_apply, 2, MEASURED>(a); }
KERNEL(lamb_norms, NORM_THREADS, struct optimizer_measure_argument, a) {
    measure<lamb_moments, lamb_direction, 2>(a);
}

KERNEL(sgd_step, 256, struct optimizer_step_argument, a) {
    if (a.scalars.value[SGD_MOMENTUM] == 0)
        update<sgd_plain, 0>(a);
    else if (a.scalars.value[SGD_NESTEROV] != 0)
        update<sgd_nesterov, 1>(a);
    else
        update<sgd_momentum, 1>(a);
}
