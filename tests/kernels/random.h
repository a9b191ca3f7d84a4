/* Numbers from a seed, for tests: splitmix64, and floats of every kind. */
#ifndef ZERO_TESTS_KERNELS_RANDOM_H
#define ZERO_TESTS_KERNELS_RANDOM_H

#include <stdint.h>
#include <string.h>

#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15) /* what one number adds to the state */

static inline uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += RANDOM_STEP);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static inline float random_uniform(uint64_t *state) {
    return (float)(int32_t)(random_u64(state) >> 32) * 0x1p-31f;
}

/* Bits of a number of type fp32: one in eight special (zeros, denormals, the largest, inf, quiet and
 * signalling NaN), the others with any exponent or, half of them, one near 1. Draws one number. */
static inline uint32_t random_f32_bits(uint64_t *state) {
    static const uint32_t special[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000,
                                       0x3f800000, 0x7f7fffff, 0x7f800000, 0x7fc00000,
                                       0x7fc12345, 0x7f812345, 0x7fffffff, 0x33800000};
    uint64_t r = random_u64(state);
    uint32_t low = (uint32_t)r, sign = low & 0x80000000;
    if ((r >> 32 & 7) == 0) return sign | special[(r >> 40) % (sizeof special / sizeof *special)];
    if (r >> 35 & 1) return low;
    return sign | (low & 0x007fffff) | (uint32_t)(117 + (r >> 40) % 20) << 23;
}

static inline float random_f32(uint64_t *state) {
    uint32_t bits = random_f32_bits(state);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
