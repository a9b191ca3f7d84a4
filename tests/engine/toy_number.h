/* Elements of a type, one by one, in the reference conversions. */
#ifndef ZERO_TESTS_ENGINE_TOY_NUMBER_H
#define ZERO_TESTS_ENGINE_TOY_NUMBER_H

#include "engine/base/numbers/convert.h"
#include "engine/zero.h"

static inline float toy_load(zero_dtype dtype, const void *array, uint64_t i) {
    if (dtype == ZERO_F32) return ((const float *)array)[i];
    uint16_t bits = ((const uint16_t *)array)[i];
    return dtype == ZERO_BF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

static inline void toy_store(zero_dtype dtype, void *array, uint64_t i, float x) {
    if (dtype == ZERO_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = dtype == ZERO_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
}

/* To the type and back. */
static inline float toy_round(zero_dtype dtype, float x) {
    float out;
    toy_store(dtype, &out, 0, x);
    return toy_load(dtype, &out, 0);
}

#endif
