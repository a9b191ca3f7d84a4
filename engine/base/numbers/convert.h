/* Converts one element from and to fp32, for CPUs and CUDA. There are no branches, so compilers turn loops over these
 * functions into vector code. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "engine/base/numbers/element.h"

KERNEL_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

KERNEL_INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The canonical NaN. If several operands are NaN, the result's bits depend on the machine and on the order of the
 * operands, which the compiler chooses. Therefore every result of arithmetic that is NaN becomes this NaN. */
KERNEL_INLINE float canonical(float x) { return x == x ? x : float_of(0x7fc00000); }

KERNEL_INLINE double canonical_f64(double x) {
    const uint64_t nan = UINT64_C(0x7ff8000000000000);
    double one;
    memcpy(&one, &nan, sizeof one);
    return x == x ? x : one;
}

KERNEL_INLINE float f32_from_bf16(uint16_t bf16) { return float_of((uint32_t)bf16 << 16); }

/* Rounds to nearest, half to even. A NaN keeps its upper bits and becomes quiet. */
KERNEL_INLINE uint16_t bf16_from_f32(float x) {
    uint32_t u = bits_of(x);
    int32_t magnitude = (int32_t)(u & 0x7fffffff);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = (u >> 16) | 0x40;
    return (uint16_t)(magnitude > 0x7f800000 ? quiet : rounded);
}

/* Exact; a signalling NaN becomes quiet. */
KERNEL_INLINE float f32_from_f16(uint16_t f16) {
    const uint32_t tiny = 113u << 23; /* 2^-14, the smallest normal fp16 */
    int32_t magnitude = f16 & 0x7fff;
    uint32_t shifted = (uint32_t)magnitude << 13;
    uint32_t normal = shifted + (112u << 23);
    uint32_t special = shifted + (224u << 23);
    uint32_t quiet = special | 0x400000;
    uint32_t denormal = bits_of(float_of(shifted + tiny) - float_of(tiny));
    uint32_t u = magnitude < 0x0400 ? denormal : normal;
    u = magnitude >= 0x7c00 ? special : u;
    u = magnitude > 0x7c00 ? quiet : u;
    return float_of(u | (uint32_t)(f16 & 0x8000) << 16);
}

/* Rounds to nearest, half to even. Overflow becomes infinity. A NaN keeps its upper bits and becomes quiet. */
KERNEL_INLINE uint16_t f16_from_f32(float x) {
    uint32_t sign = bits_of(x) >> 16 & 0x8000;
    int32_t magnitude = (int32_t)(bits_of(x) & 0x7fffffff);
    uint32_t m = (uint32_t)magnitude;
    uint32_t normal = (m - (112u << 23) + 0xfff + (m >> 13 & 1)) >> 13;
    /* The unit in the last place of 0.5 equals the unit of fp16's denormals, so the addition rounds correctly. */
    uint32_t denormal = bits_of(float_of(m) + 0.5f) - (126u << 23);
    uint32_t quiet = 0x7e00 | (m >> 13 & 0x3ff);
    uint32_t f16 = magnitude < 113 << 23 ? denormal : normal;
    f16 = magnitude >= 143 << 23 ? 0x7c00 : f16;
    f16 = magnitude > 0x7f800000 ? quiet : f16;
    return (uint16_t)(f16 | sign);
}
