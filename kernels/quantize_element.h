/* The arithmetic of quantize.h on the scale of a block and on one element; for CPUs and CUDA. A loop gives a constant
 * format, so that compilers turn it into vector code. */
#pragma once

#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "kernels/quantize.h"

/* ---- the formats (enum code_format) ---- */

KERNEL_INLINE uint32_t code_bits(uint32_t format) { return format == CODE_INT4 ? 4 : 8; }

KERNEL_INLINE float code_largest(uint32_t format) {
    return format == CODE_INT4 ? 7.0f : format == CODE_INT8 ? 127.0f : 448.0f;
}

/* Rounds to nearest, half to even. Magnitudes above 448 become 448. */
KERNEL_INLINE uint8_t fp8_e4m3_from_f32(float x) {
    uint32_t sign = bits_of(x) >> 24 & 0x80;
    int32_t magnitude = (int32_t)(bits_of(x) & 0x7fffffff);
    uint32_t m = (uint32_t)magnitude;
    uint32_t normal = (m - (120u << 23) + 0x7ffff + (m >> 20 & 1)) >> 20;
    /* The unit in the last place of 2^14 equals the unit of fp8's denormals, so the addition rounds correctly. */
    uint32_t denormal = bits_of(float_of(m) + 0x1p14f) - (141u << 23);
    uint32_t fp8 = magnitude < 121 << 23 ? denormal : normal;
    fp8 = magnitude > 0x43e00000 ? 0x7e : fp8;
    fp8 = magnitude > 0x7f800000 ? 0x7f : fp8;
    return (uint8_t)(fp8 | sign);
}

/* Exact. */
KERNEL_INLINE float f32_from_fp8_e4m3(uint8_t fp8) {
    const uint32_t tiny = 121u << 23; /* 2^-6, the smallest normal fp8 */
    int32_t magnitude = fp8 & 0x7f;
    uint32_t shifted = (uint32_t)magnitude << 20;
    uint32_t normal = shifted + (120u << 23);
    uint32_t denormal = bits_of(float_of(shifted + tiny) - float_of(tiny));
    uint32_t u = magnitude < 8 ? denormal : normal;
    u = magnitude == 0x7f ? 0x7fc00000 : u;
    return float_of(u | (uint32_t)(fp8 & 0x80) << 24);
}

/* ---- sizes and offsets in a code of `count` elements, in bytes ---- */

KERNEL_INLINE uint64_t quantize_blocks_of(uint64_t count) {
    return (count + QUANTIZE_BLOCK - 1) / QUANTIZE_BLOCK;
}

KERNEL_INLINE uint64_t quantize_element_bytes(uint64_t count, uint32_t format) {
    return (count * code_bits(format) + 7) / 8;
}

KERNEL_INLINE uint64_t quantize_elements_at(uint64_t count) {
    return quantize_blocks_of(count) * sizeof(float);
}

KERNEL_INLINE uint64_t quantize_used_bytes(uint64_t count, uint32_t format) {
    return quantize_elements_at(count) + quantize_element_bytes(count, format);
}

KERNEL_INLINE uint64_t quantize_code_bytes(uint64_t count, uint32_t format) {
    return (quantize_used_bytes(count, format) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* ---- arithmetic ---- */

struct quantize_scale {
    float scale, inverse; /* inverse is 0: every code is 0 */
};

/* As integers, the bits of magnitudes have the order of the magnitudes; inf and NaN are above all finite numbers. */
KERNEL_INLINE uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffff; }

/* `most`: the bits of the largest magnitude. Below 2^-119 the inverse of a scale could overflow. */
KERNEL_INLINE struct quantize_scale quantize_scale_of(uint32_t most, uint32_t format) {
    struct quantize_scale s = {0, 0};
    float largest = code_largest(format);
    if (most >= 0x7f800000)
        s.scale = float_of(0x7fc00000);
    else if (float_of(most) >= 0x1p-119f)
        s.scale = float_of(most) / largest, s.inverse = largest / float_of(most);
    return s;
}

/* Of integers: adding 1.5 * 2^23 rounds a float to an integer, because no bits below 1 remain. The last bits of the sum are its code. */
KERNEL_INLINE int8_t quantize_code_of(float x, float inverse, uint32_t format) {
    float scaled = x * inverse;
    if (format == CODE_FP8_E4M3) return (int8_t)fp8_e4m3_from_f32(scaled);
    return (int8_t)bits_of(scaled + 0x1.8p23f);
}

KERNEL_INLINE float quantize_value_of(int8_t code, float scale, uint32_t format) {
    float x = format == CODE_FP8_E4M3 ? f32_from_fp8_e4m3((uint8_t)code) : (float)code;
    return canonical(x * scale);
}

/* The value of a 4-bit code, with its sign. */
KERNEL_INLINE int8_t quantize_extend(uint32_t half) { return (int8_t)((int32_t)(half ^ 8) - 8); }
