/* The arithmetic of quantize.h on the scale of a block and on one element; for CPUs and CUDA. */
#ifndef ZERO_KERNELS_QUANTIZE_ELEMENT_H
#define ZERO_KERNELS_QUANTIZE_ELEMENT_H

#include "engine/base/convert.h"
#include "engine/base/limits.h"
#include "kernels/quantize.h"

/* ---- sizes and offsets in a code of `count` elements, in bytes ---- */

KERNEL_INLINE uint64_t quantize_blocks_of(uint64_t count) {
    return (count + QUANTIZE_BLOCK - 1) / QUANTIZE_BLOCK;
}

KERNEL_INLINE uint64_t quantize_element_bytes(uint64_t count, uint32_t bits) {
    return (count * bits + 7) / 8;
}

KERNEL_INLINE uint64_t quantize_elements_at(uint64_t count) {
    return quantize_blocks_of(count) * sizeof(float);
}

KERNEL_INLINE uint64_t quantize_used_bytes(uint64_t count, uint32_t bits) {
    return quantize_elements_at(count) + quantize_element_bytes(count, bits);
}

KERNEL_INLINE uint64_t quantize_code_bytes(uint64_t count, uint32_t bits) {
    return (quantize_used_bytes(count, bits) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* ---- arithmetic ---- */

struct quantize_scale {
    float scale, inverse; /* inverse is 0: every code is 0 */
};

/* As integers, the bits of magnitudes have the order of the magnitudes; inf and NaN are above all finite numbers. */
KERNEL_INLINE uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffff; }

/* `most`: the bits of the largest magnitude. Below 2^-120 the inverse of a scale could overflow. */
KERNEL_INLINE struct quantize_scale quantize_scale_of(uint32_t most, uint32_t bits) {
    struct quantize_scale s = {0, 0};
    float largest = bits == 8 ? 127.0f : 7.0f;
    if (most >= 0x7f800000)
        s.scale = float_of(0x7fc00000);
    else if (float_of(most) >= 0x1p-120f)
        s.scale = float_of(most) / largest, s.inverse = largest / float_of(most);
    return s;
}

/* Adding 1.5 * 2^23 rounds a float to an integer: no bits below 1 remain. */
KERNEL_INLINE int8_t quantize_code_of(float x, float inverse) {
    float whole = x * inverse + 0x1.8p23f;
    return (int8_t)(int32_t)(whole - 0x1.8p23f);
}

KERNEL_INLINE float quantize_value_of(int8_t code, float scale) { return canonical((float)code * scale); }

/* The value of a 4-bit code, with its sign. */
KERNEL_INLINE int8_t quantize_extend(uint32_t half) { return (int8_t)((int32_t)(half ^ 8) - 8); }

#endif
