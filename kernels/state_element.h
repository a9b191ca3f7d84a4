/* The formats of state_format.h for one element; for CPUs and CUDA. */
#pragma once

#include "engine/base/numbers/convert.h"

/* The master that is kept. Of the fp32 numbers that round to a bf16 weight, an even weight has one too many for 16 bits: the
 * one halfway to its neighbor of larger magnitude. That one moves by one unit of fp32 towards zero. */
KERNEL_INLINE float kept_master(float x) {
    uint32_t u = bits_of(x);
    return float_of(u - ((u & 0x1ffff) == 0x8000));
}

/* `low` is signed, so that it can lower a weight that was rounded up. */
KERNEL_INLINE float master_of(uint16_t weight, uint16_t low) {
    return float_of(((uint32_t)weight << 16) + (uint32_t)(int32_t)(int16_t)low);
}

KERNEL_INLINE uint16_t low_of(float master, uint16_t weight) {
    return (uint16_t)(bits_of(master) - ((uint32_t)weight << 16));
}

/* Chris Wellons's lowbias32: mixes 32 bits well with two multiplications; it works in every lane of a vector. */
KERNEL_INLINE uint32_t mix_bits(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* The key of a block of 2^32 elements. */
KERNEL_INLINE uint32_t block_key(uint64_t key, uint64_t block) {
    return mix_bits(mix_bits(mix_bits((uint32_t)key) ^ (uint32_t)(key >> 32)) + (uint32_t)block);
}

KERNEL_INLINE uint16_t bf16_stochastic_of(float x, uint32_t random) {
    uint32_t u = bits_of(x), magnitude = u & 0x7fffffff;
    uint32_t rounded = (u + (random & 0xffff)) >> 16, special = u >> 16 | (magnitude > 0x7f800000 ? 0x40 : 0);
    return (uint16_t)(magnitude >= 0x7f800000 ? special : rounded);
}

/* The same as bf16_stochastic_of and bf16_from_f32 in the upper half of 32 bits, for results of arithmetic: infinities and the canonical
 * NaN have no bits that a rounding could carry into the upper half. */
KERNEL_INLINE uint32_t stochastic_sum_of_result(float x, uint32_t random) {
    return bits_of(x) + (random & 0xffff);
}
KERNEL_INLINE uint32_t bf16_sum_of_result(uint32_t u) { return u + 0x7fff + (u >> 16 & 1); }
