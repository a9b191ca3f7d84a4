/* Blockwise codes: the definition element by element, the bound of the error, what is not finite, sizes that fill no
 * block, parts, types; the same bits on all instruction sets. fp8: all 256 codes, and what lies between them. */
#include "kernels/quantize.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/cast.h"
#include "kernels/quantize_element.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

enum { MOST = 5 * QUANTIZE_BLOCK + 77, CODE_BYTES = 3 * MOST };

static float source[MOST], back[MOST], other[MOST];
static uint8_t code[CODE_BYTES], expected[CODE_BYTES];

static float random_value(uint64_t *state) {
    float sign = random_u64(state) & 1 ? 1 : -1;
    return sign * ldexpf(1 + (float)(random_u64(state) % 1000) / 1000, (int)(random_u64(state) % 24) - 12);
}

static void make_source(uint64_t seed) {
    uint64_t state = seed;
    for (int i = 0; i < MOST; i++) source[i] = random_value(&state);
    for (int i = QUANTIZE_BLOCK; i < 2 * QUANTIZE_BLOCK; i++) source[i] = 0; /* a block of zeros */
}

static const float largest_of[CODE_FORMATS] = {0, 7, 127, 448};

/* The nearest number with 4 significant bits, not below 2^-9: ties to even. */
static float nearest_e4m3(float x) {
    int exponent;
    frexpf(x, &exponent); /* from 0.5 to 1 */
    float unit = ldexpf(1, (exponent < -5 ? -5 : exponent) - 4);
    return nearbyintf(x / unit) * unit;
}

/* From the header's words: the nearest code times the block's scale, ties to even. */
static float by_definition(const float *x, uint32_t i, uint32_t count, enum code_format format) {
    float most = 0, largest = largest_of[format];
    uint32_t first = i / QUANTIZE_BLOCK * QUANTIZE_BLOCK;
    for (uint32_t k = first; k < first + QUANTIZE_BLOCK && k < count; k++)
        if (fabsf(x[k]) > most) most = fabsf(x[k]);
    if (most == 0) return 0;
    float scaled = x[i] * (largest / most);
    return (format == CODE_FP8_E4M3 ? nearest_e4m3(scaled) : nearbyintf(scaled)) * (most / largest);
}

static float error_bound(float x, float most, enum code_format format) {
    float unit = most / largest_of[format];
    return format == CODE_FP8_E4M3 ? fmaxf(fabsf(x) / 16, unit / 1024) : unit / 2;
}

static void codes(void) {
    static const uint32_t counts[] = {0, 1, 2, 15, 16, 255, 256, 257, 512, 1000, MOST};
    for (enum code_format format = CODE_INT4; format < CODE_FORMATS; format++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            uint32_t count = counts[c], blocks = (count + 255) / 256;
            make_source(c + 1);
            memset(code, 0xaa, sizeof code);
            quantize(code, source, DTYPE_F32, count, format);
            uint64_t bytes = quantize_bytes(count, format);
            CHECK_INT(bytes, (4 * blocks + (count * (format == CODE_INT4 ? 4 : 8) + 7) / 8 + 63) / 64 * 64);
            CHECK_INT(code[bytes], 0xaa);
            dequantize(back, DTYPE_F32, code, count, format);
            for (uint32_t i = 0; i < count; i++) {
                float most = 0;
                for (uint32_t k = i / 256 * 256; k < i / 256 * 256 + 256 && k < count; k++)
                    most = fmaxf(most, fabsf(source[k]));
                if (!CHECK_DOUBLE(back[i], by_definition(source, i, count, format), 0)) return;
                CHECK(fabsf(back[i] - source[i]) <= 1.0001f * error_bound(source[i], most, format));
            }
        }
}

static void parts(void) {
    for (enum code_format format = CODE_INT4; format < CODE_FORMATS; format++) {
        make_source(99);
        quantize(code, source, DTYPE_F32, MOST, format);
        dequantize(back, DTYPE_F32, code, MOST, format);
        memset(other, 0, sizeof other);
        dequantize_part(other, code, MOST, format, 2 * QUANTIZE_BLOCK, 300, false);
        CHECK_BYTES(other, back + 2 * QUANTIZE_BLOCK, 300 * sizeof *other);
        dequantize_part(other, code, MOST, format, 2 * QUANTIZE_BLOCK, 300, true);
        for (int i = 0; i < 300; i++) CHECK_DOUBLE(other[i], 2 * back[2 * QUANTIZE_BLOCK + i], 0);
        CHECK_DOUBLE(other[300], 0, 0);
    }
}

static void round_trip(enum code_format format) {
    quantize(code, source, DTYPE_F32, MOST, format);
    dequantize(back, DTYPE_F32, code, MOST, format);
}

static void not_finite(enum code_format format) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int v = 0; v < 3; v++) {
        make_source(5);
        source[3 * QUANTIZE_BLOCK + 7] = values[v];
        round_trip(format);
        for (uint32_t i = 0; i < MOST; i++) CHECK_INT(isnan(back[i]) != 0, i / QUANTIZE_BLOCK == 3);
    }
}

/* Equal magnitudes, from nothing to the largest numbers: each comes back, or below 2^-119 as zero. */
static void extremes(enum code_format format) {
    static const struct {
        float magnitude, back;
    } rows[] = {{0x1p-149f, 0},
                {0x1p-130f, 0},
                {0x1.fffffep-120f, 0},
                {0x1p-119f, 0x1p-119f},
                {0x1.8p127f, 0x1.8p127f}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (int i = 0; i < MOST; i++) source[i] = i % 2 ? rows[r].magnitude : -rows[r].magnitude;
        round_trip(format);
        for (int i = 0; i < MOST; i++)
            if (!CHECK_DOUBLE(fabsf(back[i]), rows[r].back, 1e-6 * rows[r].back)) break;
    }
}

static void types(enum code_format format) {
    static uint16_t narrow[MOST], narrow_back[MOST];
    for (enum dtype dtype = DTYPE_BF16; dtype <= DTYPE_F16; dtype++) {
        make_source(11);
        cast(narrow, dtype, source, DTYPE_F32, MOST);
        cast(source, DTYPE_F32, narrow, dtype, MOST);
        quantize(expected, source, DTYPE_F32, MOST, format);
        quantize(code, narrow, dtype, MOST, format);
        CHECK_BYTES(code, expected, quantize_bytes(MOST, format));
        dequantize(back, DTYPE_F32, code, MOST, format);
        cast(narrow, dtype, back, DTYPE_F32, MOST);
        dequantize(narrow_back, dtype, code, MOST, format);
        CHECK_BYTES(narrow_back, narrow, sizeof narrow);
    }
}

static void instruction_sets(void) {
    for (uint64_t seed = 1; seed <= 50; seed++)
        for (enum code_format format = CODE_INT4; format < CODE_FORMATS; format++)
            for (int isa = KERNEL_SCALAR; isa < KERNEL_ISAS; isa++) {
                uint32_t count = MOST - (uint32_t)(seed * 13 % 600);
                check_seed(seed);
                if (!kernel_isa_present((enum kernel_isa)isa)) continue;
                make_source(seed);
                quantize_isa(KERNEL_SCALAR, expected, source, count, format);
                quantize_isa((enum kernel_isa)isa, code, source, count, format);
                CHECK_BYTES(code, expected, quantize_bytes(count, format));
                dequantize_isa(KERNEL_SCALAR, back, code, count, format);
                dequantize_isa((enum kernel_isa)isa, other, code, count, format);
                CHECK_BYTES(other, back, count * sizeof *back);
            }
}

/* ---- fp8, by the table of OFP8: seeeemmm, bias 7 ---- */

static float e4m3(uint32_t c) {
    uint32_t e = c >> 3 & 15, m = c & 7;
    float x = (c & 0x7f) == 0x7f ? NAN : e ? ldexpf(1 + (float)m / 8, (int)e - 7) : ldexpf((float)m, -9);
    return c & 0x80 ? -x : x;
}

static void all_256_codes(void) {
    CHECK_DOUBLE(e4m3(0x7e), 448, 0);
    CHECK_DOUBLE(e4m3(0x08), 0x1p-6, 0);
    CHECK_DOUBLE(e4m3(0x01), 0x1p-9, 0);
    for (uint32_t c = 0; c < 256; c++) {
        float x = f32_from_fp8_e4m3((uint8_t)c), expected = e4m3(c);
        CHECK_INT(isnan(x) != 0, (c & 0x7f) == 0x7f);
        if (!isnan(x)) CHECK_BYTES(&x, &expected, sizeof x); /* -0 has its sign */
        CHECK_INT(fp8_e4m3_from_f32(x), c);
    }
}

/* The nearest code of x and of -x. */
static void nearest(float x, uint32_t c) {
    if (!CHECK_INT(fp8_e4m3_from_f32(x), c) || !CHECK_INT(fp8_e4m3_from_f32(-x), c | 0x80))
        fprintf(stderr, "  of %a\n", (double)x);
}

static void between_codes(void) {
    for (uint32_t c = 0; c < 0x7e; c++) {
        float middle = (e4m3(c) + e4m3(c + 1)) / 2;
        nearest(middle, c + (c & 1)); /* to the even one */
        nearest(nextafterf(middle, 0), c);
        nearest(nextafterf(middle, INFINITY), c + 1);
        nearest(nextafterf(e4m3(c + 1), 0), c + 1);
        nearest(nextafterf(e4m3(c), INFINITY), c);
    }
    nearest(0x1p-149f, 0);
    static const float above[] = {449, 463.9f, 464, 480, 512, 0x1p20f, 0x1.fffffep127f, INFINITY};
    for (size_t i = 0; i < sizeof above / sizeof *above; i++) nearest(above[i], 0x7e);
}

/* A block whose largest magnitude is 448 has the scale 1: its codes are those of its elements, on every instruction set. */
static void fp8_of_a_block(void) {
    for (int isa = KERNEL_SCALAR; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present((enum kernel_isa)isa)) continue;
        for (uint32_t i = 0; i < QUANTIZE_BLOCK; i++) {
            float middle = (e4m3(i / 2) + e4m3(i / 2 + 1)) / 2;
            source[i] = i < 252 ? nextafterf(middle, i % 2 ? 0 : INFINITY) : 0x1p-140f;
            if (i / 2 % 5 == 0) source[i] = i % 2 ? -middle : e4m3(i / 2);
        }
        source[255] = -448;
        quantize_isa((enum kernel_isa)isa, code, source, QUANTIZE_BLOCK, CODE_FP8_E4M3);
        dequantize_isa((enum kernel_isa)isa, back, code, QUANTIZE_BLOCK, CODE_FP8_E4M3);
        for (uint32_t i = 0; i < QUANTIZE_BLOCK; i++) {
            CHECK_INT(code[sizeof(float) + i], fp8_e4m3_from_f32(source[i]));
            CHECK_DOUBLE(back[i], e4m3(code[sizeof(float) + i]), 0);
        }
    }
}

int main(void) {
    codes();
    parts();
    for (enum code_format format = CODE_INT4; format < CODE_FORMATS; format++) {
        not_finite(format);
        extremes(format);
        types(format);
    }
    instruction_sets();
    all_256_codes();
    between_codes();
    fp8_of_a_block();
    return check_end();
}
