#include "kernels/cast.h"

#include <string.h>

#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/float_env.h"

enum {
    STEP_ELEMENTS = 1024
}; /* of one step of bf16 <-> fp16: the fp32 copy stays in the first-level cache */

#define CAST_LOOP(name, attribute, from, to, convert)                                                        \
    attribute static void name(void *restrict target, const void *restrict source, uint64_t count) {         \
        to *restrict out = target;                                                                           \
        const from *restrict in = source;                                                                    \
        for (uint64_t i = 0; i < count; i++) out[i] = convert(in[i]);                                        \
    }

#define CAST_LOOPS(isa, attribute)                                                                           \
    CAST_LOOP(f32_from_bf16_##isa, attribute, uint16_t, float, f32_from_bf16)                                \
    CAST_LOOP(f32_from_f16_##isa, attribute, uint16_t, float, f32_from_f16)                                  \
    CAST_LOOP(bf16_from_f32_##isa, attribute, float, uint16_t, bf16_from_f32)                                \
    CAST_LOOP(f16_from_f32_##isa, attribute, float, uint16_t, f16_from_f32)

ISA_EACH(CAST_LOOPS)

typedef void cast_loop(void *restrict target, const void *restrict source, uint64_t count);

static cast_loop *const widen[DTYPES][KERNEL_ISAS] = {
    [DTYPE_BF16] = ISA_TABLE(f32_from_bf16), [DTYPE_F16] = ISA_TABLE(f32_from_f16)};
static cast_loop *const narrow[DTYPES][KERNEL_ISAS] = {
    [DTYPE_BF16] = ISA_TABLE(bf16_from_f32), [DTYPE_F16] = ISA_TABLE(f16_from_f32)};

static void cast_half(enum kernel_isa isa, uint16_t *target, enum dtype target_dtype, const uint16_t *source,
                      enum dtype source_dtype, uint64_t count) {
    float step[STEP_ELEMENTS];
    for (uint64_t i = 0; i < count; i += STEP_ELEMENTS) {
        uint64_t n = count - i < STEP_ELEMENTS ? count - i : STEP_ELEMENTS;
        widen[source_dtype][isa](step, source + i, n);
        narrow[target_dtype][isa](target + i, step, n);
    }
}

void cast_isa(enum kernel_isa isa, void *target, enum dtype target_dtype, const void *source,
              enum dtype source_dtype, uint64_t count) {
    if (target_dtype == source_dtype) {
        if (count) memcpy(target, source, count * dtype_bytes(source_dtype));
    } else if (target_dtype == DTYPE_F32) {
        widen[source_dtype][isa](target, source, count);
    } else if (source_dtype == DTYPE_F32) {
        narrow[target_dtype][isa](target, source, count);
    } else {
        cast_half(isa, target, target_dtype, source, source_dtype, count);
    }
}

void cast(void *target, enum dtype target_dtype, const void *source, enum dtype source_dtype,
          uint64_t count) {
    float_env saved = float_env_enter();
    cast_isa(kernel_isa(), target, target_dtype, source, source_dtype, count);
    float_env_leave(saved);
}
