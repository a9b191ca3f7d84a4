/* Optimizer updates in one pass over memory: four elements per thread. The element functions are those of the CPU;
 * --fmad=false keeps their arithmetic. */
#include "kernels/work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/adagrad.h"
#include "kernels/adam.h"
#include "kernels/adamw.h"
#include "kernels/average.h"
#include "kernels/four.cuh"
#include "kernels/lion.h"
#include "kernels/muon.h"
#include "kernels/sgd.h"
#include "kernels/state_element.h"

typedef void element_function(float *weight, float *state0, float *state1, float gradient, const float *s);

static __device__ four load_master(const struct optimizer_args &a, uint64_t first, uint32_t count) {
    if (!a.master_low) return four_load(a.master, DTYPE_F32, first, count);
    uint2 weight = four_load_halves(static_cast<const uint16_t *>(a.out), first, count);
    uint2 low = four_load_halves(a.master_low, first, count);
    four f;
    for (uint32_t k = 0; k < 4; k++) f.x[k] = master_of(four_half(weight, k), four_half(low, k));
    return f;
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
    for (uint32_t k = 0; k < 4; k++) weight[k] = bf16_from_f32(f.x[k]), low[k] = low_of(f.x[k], weight[k]);
    four_store_halves(static_cast<uint16_t *>(a.out), first, count, weight);
    four_store_halves(a.master_low, first, count, low);
}

static __device__ void store_state(const struct optimizer_args &a, int state, uint64_t first, uint32_t count,
                                   const four &f) {
    if (a.state_dtype == DTYPE_F32) {
        four_store(a.state[state], DTYPE_F32, first, count, f);
        return;
    }
    /* the four share a key, except where a block of 2^32 elements ends: a key costs as much as three elements */
    uint16_t x[4];
    uint64_t at = a.first + first, key_of = a.rounding_key + (uint64_t)state;
    uint32_t key = block_key(key_of, at >> 32);
    for (uint32_t k = 0; k < 4; k++, at++) {
        if (k && (uint32_t)at == 0) key = block_key(key_of, at >> 32);
        x[k] = bf16_stochastic_of(f.x[k], mix_bits((uint32_t)at ^ key));
    }
    four_store_halves(static_cast<uint16_t *>(a.state[state]), first, count, x);
}

template <element_function element, int states>
static __device__ void update(const struct optimizer_step_argument &argument) {
    const struct optimizer_args &a = argument.args;
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, a.count);
    if (!count) return;
    four gradient = four_load(a.gradient, a.gradient_dtype, first, count),
         master = load_master(a, first, count);
    four state[OPTIMIZER_STATES_MAX] = {};
    for (int s = 0; s < states; s++) state[s] = four_load(a.state[s], a.state_dtype, first, count);
    for (uint32_t k = 0; k < 4; k++)
        element(&master.x[k], &state[0].x[k], &state[1].x[k], gradient.x[k] * a.gradient_scale,
                argument.scalars.value);
    store_master(a, first, count, master);
    for (int s = 0; s < states; s++) store_state(a, s, first, count, state[s]);
}

KERNEL(adamw_step, 256, struct optimizer_step_argument, a) { update<adamw_element, 2>(a); }
KERNEL(adam_step, 256, struct optimizer_step_argument, a) { update<adam_element, 2>(a); }
KERNEL(lion_step, 256, struct optimizer_step_argument, a) { update<lion_element, 1>(a); }
KERNEL(adagrad_step, 256, struct optimizer_step_argument, a) { update<adagrad_element, 1>(a); }
KERNEL(muon_step, 256, struct optimizer_step_argument, a) { update<muon_apply, 0>(a); }
KERNEL(muon_momentum_step, 256, struct optimizer_step_argument, a) { update<muon_momentum, 1>(a); }

KERNEL(sgd_step, 256, struct optimizer_step_argument, a) {
    if (a.scalars.value[SGD_MOMENTUM] == 0)
        update<sgd_plain, 0>(a);
    else if (a.scalars.value[SGD_NESTEROV] != 0)
        update<sgd_nesterov, 1>(a);
    else
        update<sgd_momentum, 1>(a);
}
