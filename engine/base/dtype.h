/* Element types of parameters, gradients and messages; for C, C++ and CUDA. */
#ifndef ZERO_ENGINE_BASE_DTYPE_H
#define ZERO_ENGINE_BASE_DTYPE_H

#include <stdint.h>

#include "engine/base/element.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_U8, DTYPES };

KERNEL_INLINE uint32_t dtype_bytes(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_U8 ? 1 : 2;
}

static inline const char *dtype_name(enum dtype dtype) {
    static const char *const names[DTYPES] = {"fp32", "bf16", "fp16", "u8"};
    return names[dtype];
}

#endif
