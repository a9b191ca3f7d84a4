/* Converts arrays between fp32, bf16 and fp16.
 *
 * fp32 -> bf16 and fp32 -> fp16 are IEEE round to nearest even; NaN becomes a quiet NaN. Widening is exact. bf16 <-> fp16 goes through fp32. Equal types are copied; u8 converts to no other type.
 *
 * Source and target must not overlap. They need no alignment beyond that of an element. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "kernels/isa.h"

void cast(void *target, enum dtype target_dtype, const void *source, enum dtype source_dtype, uint64_t count);

/* The same on one instruction set, in the caller's floating-point environment (float_env.h): for kernels and tests. */
void cast_isa(enum kernel_isa isa, void *target, enum dtype target_dtype, const void *source,
              enum dtype source_dtype, uint64_t count);
