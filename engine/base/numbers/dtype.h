/* Element types of parameters, gradients and messages; for C, C++ and CUDA. */
#pragma once

#include <stdint.h>

#include "engine/base/numbers/element.h"

/* The first three are numbered as zero_dtype is. */
enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_U8, DTYPES };

KERNEL_INLINE uint32_t dtype_bytes(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_U8 ? 1 : 2;
}

/* The names of a type. */
struct dtype_row {
    const char *name;  /* in messages, and in the configuration */
    const char *torch; /* in PyTorch and transformers; NULL: nothing computes in this type */
    const char *safetensors;
};
extern const struct dtype_row dtype_rows[DTYPES];

static inline const char *dtype_name(enum dtype dtype) { return dtype_rows[dtype].name; }
