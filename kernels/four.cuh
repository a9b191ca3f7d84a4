/* Four neighboring elements of an array as fp32, in one load or store if the array is aligned to four elements. In
 * most kernels, each thread has four elements. All threads have the same types, so branches on a type cost almost
 * nothing compared with memory access. Loops have constant bounds: an array that is indexed in another way would go
 * to memory. */
#ifndef ZERO_KERNELS_FOUR_CUH
#define ZERO_KERNELS_FOUR_CUH

#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/dtype.h"

struct four {
    float x[4];
};

KERNEL_INLINE float element_load(const void *array, uint32_t dtype, uint64_t i) {
    if (dtype == DTYPE_F32) return static_cast<const float *>(array)[i];
    uint16_t x = static_cast<const uint16_t *>(array)[i];
    return dtype == DTYPE_BF16 ? f32_from_bf16(x) : f32_from_f16(x);
}

/* An element as it is in memory, of T bits, as fp32. */
template <typename T> KERNEL_INLINE float element_widened(T bits, uint32_t dtype) {
    if (sizeof(T) == 4) return float_of(bits);
    return dtype == DTYPE_BF16 ? f32_from_bf16((uint16_t)bits) : f32_from_f16((uint16_t)bits);
}

/* The 16 bits of bf16 or fp16. */
KERNEL_INLINE uint16_t narrow_of(float x, uint32_t dtype) {
    return dtype == DTYPE_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
}

KERNEL_INLINE void element_store(void *array, uint32_t dtype, uint64_t i, float x) {
    if (dtype == DTYPE_F32)
        static_cast<float *>(array)[i] = x;
    else
        static_cast<uint16_t *>(array)[i] = narrow_of(x, dtype);
}

/* The value of x after rounding to the type. */
KERNEL_INLINE float rounded_to(float x, uint32_t dtype) {
    if (dtype == DTYPE_F32) return x;
    uint16_t n = narrow_of(x, dtype);
    return dtype == DTYPE_BF16 ? f32_from_bf16(n) : f32_from_f16(n);
}

/* True if elements first .. first + 3 can be moved at once; `first` is a multiple of four. */
KERNEL_INLINE bool four_whole(const void *array, uint32_t bytes, uint32_t count) {
    return count == 4 && reinterpret_cast<uintptr_t>(array) % (4 * bytes) == 0;
}

KERNEL_INLINE uint2 four_load_halves(const uint16_t *array, uint64_t first, uint32_t count) {
    if (four_whole(array, 2, count)) return *reinterpret_cast<const uint2 *>(array + first);
    uint32_t x[4] = {};
    for (uint32_t k = 0; k < 4; k++)
        if (k < count) x[k] = array[first + k];
    return make_uint2(x[0] | x[1] << 16, x[2] | x[3] << 16);
}

KERNEL_INLINE void four_store_halves(uint16_t *array, uint64_t first, uint32_t count, const uint16_t *x) {
    if (four_whole(array, 2, count)) {
        *reinterpret_cast<uint2 *>(array + first) =
            make_uint2(x[0] | (uint32_t)x[1] << 16, x[2] | (uint32_t)x[3] << 16);
    } else {
        for (uint32_t k = 0; k < 4; k++)
            if (k < count) array[first + k] = x[k];
    }
}

KERNEL_INLINE uint16_t four_half(uint2 x, uint32_t k) {
    return (uint16_t)((k < 2 ? x.x : x.y) >> (k % 2 * 16));
}

/* Four elements as they are in memory. fp32: a word each; 16 bits: two words. A thread that loads several fours loads all of them before it
 * widens the first: it would wait there for the load. */
struct four_bits {
    uint4 word;
};

/* Loads elements first .. first + count - 1 and zeros for the rest; `first` is a multiple of four. */
KERNEL_INLINE four_bits four_fetch(const void *array, uint32_t dtype, uint64_t first, uint32_t count) {
    if (dtype != DTYPE_F32) {
        uint2 x = four_load_halves(static_cast<const uint16_t *>(array), first, count);
        return {make_uint4(x.x, x.y, 0, 0)};
    }
    const uint32_t *in = static_cast<const uint32_t *>(array) + first;
    if (four_whole(array, 4, count)) return {*reinterpret_cast<const uint4 *>(in)};
    uint32_t x[4] = {};
    for (uint32_t k = 0; k < 4; k++)
        if (k < count) x[k] = in[k];
    return {make_uint4(x[0], x[1], x[2], x[3])};
}

KERNEL_INLINE four four_widened(const four_bits &bits, uint32_t dtype) {
    const uint4 &w = bits.word;
    if (dtype == DTYPE_F32) return {{float_of(w.x), float_of(w.y), float_of(w.z), float_of(w.w)}};
    uint2 x = make_uint2(w.x, w.y);
    four f;
    if (dtype == DTYPE_BF16)
        for (uint32_t k = 0; k < 4; k++) f.x[k] = f32_from_bf16(four_half(x, k));
    else
        for (uint32_t k = 0; k < 4; k++) f.x[k] = f32_from_f16(four_half(x, k));
    return f;
}

KERNEL_INLINE four four_load(const void *array, uint32_t dtype, uint64_t first, uint32_t count) {
    return four_widened(four_fetch(array, dtype, first, count), dtype);
}

KERNEL_INLINE void four_store(void *array, uint32_t dtype, uint64_t first, uint32_t count, const four &f) {
    if (dtype == DTYPE_F32) {
        float *out = static_cast<float *>(array) + first;
        if (four_whole(array, 4, count)) {
            *reinterpret_cast<float4 *>(out) = make_float4(f.x[0], f.x[1], f.x[2], f.x[3]);
        } else {
            for (uint32_t k = 0; k < 4; k++)
                if (k < count) out[k] = f.x[k];
        }
        return;
    }
    uint16_t x[4];
    if (dtype == DTYPE_BF16)
        for (uint32_t k = 0; k < 4; k++) x[k] = bf16_from_f32(f.x[k]);
    else
        for (uint32_t k = 0; k < 4; k++) x[k] = f16_from_f32(f.x[k]);
    four_store_halves(static_cast<uint16_t *>(array), first, count, x);
}

/* How many of the four elements from `first` on exist; 0 beyond the end. */
KERNEL_INLINE uint32_t four_count(uint64_t first, uint64_t count) {
    return first >= count ? 0 : count - first < 4 ? (uint32_t)(count - first) : 4;
}

#endif
