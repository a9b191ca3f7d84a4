#include "kernels/quantize.h"

#include <string.h>

#include "engine/base/numbers/float_env.h"
#include "kernels/cast.h"
#include "kernels/quantize_element.h"

const char *code_format_name(enum code_format format) {
    static const char *const names[CODE_FORMATS] = {"none", "int4", "int8", "fp8_e4m3"};
    return names[format];
}

uint64_t quantize_bytes(uint64_t count, enum code_format format) {
    return quantize_code_bytes(count, format);
}

/* ---- loops, once per instruction set ---- */

#define MOST_LOOP(name, attribute)                                                                           \
    attribute static uint32_t name(const float *restrict source, uint32_t count) {                           \
        uint32_t most = 0;                                                                                   \
        for (uint32_t i = 0; i < count; i++) {                                                               \
            uint32_t bits = magnitude_bits(source[i]);                                                       \
            most = bits > most ? bits : most;                                                                \
        }                                                                                                    \
        return most;                                                                                         \
    }

#define CODE_LOOP(name, attribute, format)                                                                   \
    attribute static void name(int8_t *restrict code, const float *restrict source, float inverse,           \
                               uint32_t count) {                                                             \
        for (uint32_t i = 0; i < count; i++) code[i] = quantize_code_of(source[i], inverse, format);         \
    }

#define VALUE_LOOP(name, attribute, format)                                                                  \
    attribute static void name(float *restrict target, const int8_t *restrict code, float scale, bool add,   \
                               uint32_t count) {                                                             \
        if (add)                                                                                             \
            for (uint32_t i = 0; i < count; i++)                                                             \
                target[i] = canonical(target[i] + quantize_value_of(code[i], scale, format));                \
        else                                                                                                 \
            for (uint32_t i = 0; i < count; i++) target[i] = quantize_value_of(code[i], scale, format);      \
    }

/* Two codes of 4 bits share a byte; the earlier code is in the lower half. Each step is a simple loop of its own,
 * because compilers vectorize simple loops. */
#define PACK_LOOP(name, attribute)                                                                           \
    attribute static void name(uint8_t *restrict out, const int8_t *restrict code, uint32_t bytes) {         \
        uint8_t low[QUANTIZE_BLOCK / 2], high[QUANTIZE_BLOCK / 2];                                           \
        for (uint32_t i = 0; i < bytes; i++)                                                                 \
            low[i] = (uint8_t)code[2 * i], high[i] = (uint8_t)code[2 * i + 1];                               \
        for (uint32_t i = 0; i < bytes; i++) out[i] = (uint8_t)((low[i] & 15) | high[i] << 4);               \
    }

#define UNPACK_LOOP(name, attribute)                                                                         \
    attribute static void name(int8_t *restrict code, const uint8_t *restrict in, uint32_t bytes) {          \
        int8_t low[QUANTIZE_BLOCK / 2], high[QUANTIZE_BLOCK / 2];                                            \
        for (uint32_t i = 0; i < bytes; i++) low[i] = quantize_extend(in[i] & 15);                           \
        for (uint32_t i = 0; i < bytes; i++) high[i] = quantize_extend(in[i] >> 4);                          \
        for (uint32_t i = 0; i < bytes; i++) code[2 * i] = low[i], code[2 * i + 1] = high[i];                \
    }

#define LOOPS(isa, attribute)                                                                                \
    MOST_LOOP(most_##isa, attribute)                                                                         \
    CODE_LOOP(code_int_##isa, attribute, CODE_INT8)                                                          \
    CODE_LOOP(code_fp8_##isa, attribute, CODE_FP8_E4M3)                                                      \
    VALUE_LOOP(value_int_##isa, attribute, CODE_INT8)                                                        \
    VALUE_LOOP(value_fp8_##isa, attribute, CODE_FP8_E4M3)                                                    \
    PACK_LOOP(pack_##isa, attribute)                                                                         \
    UNPACK_LOOP(unpack_##isa, attribute)

ISA_EACH(LOOPS)

typedef void (*code_fn)(int8_t *restrict, const float *restrict, float, uint32_t);
typedef void (*value_fn)(float *restrict, const int8_t *restrict, float, bool, uint32_t);

static uint32_t (*const find_most[KERNEL_ISAS])(const float *restrict, uint32_t) = ISA_TABLE(most);
static const code_fn make_code[CODE_FORMATS][KERNEL_ISAS] = {[CODE_INT4] = ISA_TABLE(code_int),
                                                             [CODE_INT8] = ISA_TABLE(code_int),
                                                             [CODE_FP8_E4M3] = ISA_TABLE(code_fp8)};
static const value_fn make_value[CODE_FORMATS][KERNEL_ISAS] = {[CODE_INT4] = ISA_TABLE(value_int),
                                                               [CODE_INT8] = ISA_TABLE(value_int),
                                                               [CODE_FP8_E4M3] = ISA_TABLE(value_fp8)};
static void (*const pack[KERNEL_ISAS])(uint8_t *restrict, const int8_t *restrict, uint32_t) = ISA_TABLE(pack);
static void (*const unpack[KERNEL_ISAS])(int8_t *restrict, const uint8_t *restrict,
                                         uint32_t) = ISA_TABLE(unpack);

/* ---- blocks ---- */

static void encode_block(enum kernel_isa isa, void *scale_out, uint8_t *out, const float *source,
                         uint32_t count, enum code_format format) {
    int8_t code[QUANTIZE_BLOCK + 1]; /* with an odd count, the upper half of the last byte is 0 */
    struct quantize_scale s = quantize_scale_of(find_most[isa](source, count), format);
    if (s.inverse != 0)
        make_code[format][isa](code, source, s.inverse, count);
    else
        memset(code, 0, count);
    memcpy(scale_out, &s.scale, sizeof s.scale);
    if (code_bits(format) == 8)
        memcpy(out, code, count);
    else
        code[count] = 0, pack[isa](out, code, (count + 1) / 2);
}

static void decode_block(enum kernel_isa isa, float *target, const void *scale_in, const uint8_t *in,
                         uint32_t count, enum code_format format, bool add) {
    int8_t code[QUANTIZE_BLOCK];
    _Static_assert(QUANTIZE_BLOCK % 2 == 0, "codes come in pairs");
    float scale;
    memcpy(&scale, scale_in, sizeof scale);
    if (code_bits(format) == 8)
        memcpy(code, in, count);
    else
        unpack[isa](code, in, (count + 1) / 2);
    make_value[format][isa](target, code, scale, add, count);
}

static uint32_t count_at(uint64_t first, uint64_t end) {
    return end - first < QUANTIZE_BLOCK ? (uint32_t)(end - first) : QUANTIZE_BLOCK;
}

/* The addresses of a block's scale and elements in the code. */
static uint8_t *scale_at(const void *code, uint64_t first) {
    return (uint8_t *)code + first / QUANTIZE_BLOCK * sizeof(float);
}

static uint8_t *elements_at(const void *code, uint64_t count, enum code_format format, uint64_t first) {
    return (uint8_t *)code + quantize_elements_at(count) + first * code_bits(format) / 8;
}

static void encode(enum kernel_isa isa, void *code, const void *source, enum dtype dtype, uint64_t count,
                   enum code_format format) {
    float block[QUANTIZE_BLOCK];
    for (uint64_t first = 0; first < count; first += QUANTIZE_BLOCK) {
        uint32_t n = count_at(first, count);
        const void *from = (const uint8_t *)source + first * dtype_bytes(dtype);
        if (dtype != DTYPE_F32) cast_isa(isa, block, DTYPE_F32, from, dtype, n), from = block;
        encode_block(isa, scale_at(code, first), elements_at(code, count, format, first), from, n, format);
    }
    uint64_t used = quantize_used_bytes(count, format);
    memset((uint8_t *)code + used, 0, quantize_bytes(count, format) - used);
}

static void decode(enum kernel_isa isa, float *target, const void *code, uint64_t count,
                   enum code_format format, uint64_t first, uint64_t n, bool add) {
    for (uint64_t at = first; at < first + n; at += QUANTIZE_BLOCK)
        decode_block(isa, target + (at - first), scale_at(code, at), elements_at(code, count, format, at),
                     count_at(at, first + n), format, add);
}

void quantize_isa(enum kernel_isa isa, void *code, const float *source, uint64_t count,
                  enum code_format format) {
    encode(isa, code, source, DTYPE_F32, count, format);
}

void dequantize_isa(enum kernel_isa isa, float *target, const void *code, uint64_t count,
                    enum code_format format) {
    decode(isa, target, code, count, format, 0, count, false);
}

void quantize(void *code, const void *source, enum dtype dtype, uint64_t count, enum code_format format) {
    void (*volatile call)(enum kernel_isa, void *, const void *, enum dtype, uint64_t, enum code_format) =
        encode; /* volatile: prevents inlining (float_env.h) */
    float_env saved = float_env_enter();
    call(kernel_isa(), code, source, dtype, count, format);
    float_env_leave(saved);
}

void dequantize(void *target, enum dtype dtype, const void *code, uint64_t count, enum code_format format) {
    float block[QUANTIZE_BLOCK];
    float_env saved = float_env_enter();
    if (dtype == DTYPE_F32) decode(kernel_isa(), target, code, count, format, 0, count, false);
    for (uint64_t first = 0; dtype != DTYPE_F32 && first < count; first += QUANTIZE_BLOCK) {
        uint32_t n = count_at(first, count);
        decode(kernel_isa(), block, code, count, format, first, n, false);
        cast_isa(kernel_isa(), (uint8_t *)target + first * dtype_bytes(dtype), dtype, block, DTYPE_F32, n);
    }
    float_env_leave(saved);
}

void dequantize_part(float *target, const void *code, uint64_t count, enum code_format format, uint64_t first,
                     uint64_t n, bool add) {
    float_env saved = float_env_enter();
    decode(kernel_isa(), target, code, count, format, first, n, add);
    float_env_leave(saved);
}
