/* Blockwise codes: the definition element by element, the bound of the error, what is not finite, sizes that fill no
 * block, parts, types; the same bits on all instruction sets. */
#include "kernels/quantize.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/cast.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

enum { MOST = 5 * QUANTIZE_BLOCK + 77, CODE_BYTES = 3 * MOST };

static float source[MOST], back[MOST], other[MOST];
static uint8_t code[CODE_BYTES], expected[CODE_BYTES];

static float random_value(uint64_t *state) {
    float sign = random_u64(state) & 1 ? 1 : -1;
    return sign * ldexpf(1 + (float)(random_u64(state) % 1000) / 1000, (int)(random_u64(state) % 12) - 6);
}

static void make_source(uint64_t seed) {
    uint64_t state = seed;
    for (int i = 0; i < MOST; i++) source[i] = random_value(&state);
    for (int i = QUANTIZE_BLOCK; i < 2 * QUANTIZE_BLOCK; i++) source[i] = 0; /* a block of zeros */
}

/* From the header's words: the nearest multiple of the block's scale, ties to even. */
static float by_definition(const float *x, uint32_t i, uint32_t count, uint32_t bits) {
    float most = 0, largest = bits == 8 ? 127 : 7;
    uint32_t first = i / QUANTIZE_BLOCK * QUANTIZE_BLOCK;
    for (uint32_t k = first; k < first + QUANTIZE_BLOCK && k < count; k++)
        if (fabsf(x[k]) > most) most = fabsf(x[k]);
    return most > 0 ? nearbyintf(x[i] * (largest / most)) * (most / largest) : 0;
}

static void codes(void) {
    static const uint32_t counts[] = {0, 1, 2, 15, 16, 255, 256, 257, 512, 1000, MOST};
    for (uint32_t bits = 4; bits <= 8; bits += 4)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            uint32_t count = counts[c], blocks = (count + 255) / 256;
            make_source(c + 1);
            memset(code, 0xaa, sizeof code);
            quantize(code, source, DTYPE_F32, count, bits);
            uint64_t bytes = quantize_bytes(count, bits);
            CHECK_INT(bytes, (4 * blocks + (count * bits + 7) / 8 + 63) / 64 * 64);
            CHECK_INT(code[bytes], 0xaa);
            dequantize(back, DTYPE_F32, code, count, bits);
            for (uint32_t i = 0; i < count; i++) {
                float most = 0;
                for (uint32_t k = i / 256 * 256; k < i / 256 * 256 + 256 && k < count; k++)
                    most = fmaxf(most, fabsf(source[k]));
                if (!CHECK_DOUBLE(back[i], by_definition(source, i, count, bits), 0)) return;
                CHECK(fabsf(back[i] - source[i]) <= 0.5001f * most / (bits == 8 ? 127 : 7));
            }
        }
}

static void parts(void) {
    for (uint32_t bits = 4; bits <= 8; bits += 4) {
        make_source(99);
        quantize(code, source, DTYPE_F32, MOST, bits);
        dequantize(back, DTYPE_F32, code, MOST, bits);
        memset(other, 0, sizeof other);
        dequantize_part(other, code, MOST, bits, 2 * QUANTIZE_BLOCK, 300, false);
        CHECK_BYTES(other, back + 2 * QUANTIZE_BLOCK, 300 * sizeof *other);
        dequantize_part(other, code, MOST, bits, 2 * QUANTIZE_BLOCK, 300, true);
        for (int i = 0; i < 300; i++) CHECK_DOUBLE(other[i], 2 * back[2 * QUANTIZE_BLOCK + i], 0);
        CHECK_DOUBLE(other[300], 0, 0);
    }
}

static void not_finite(void) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int v = 0; v < 3; v++) {
        make_source(5);
        source[3 * QUANTIZE_BLOCK + 7] = values[v];
        quantize(code, source, DTYPE_F32, MOST, 8);
        dequantize(back, DTYPE_F32, code, MOST, 8);
        for (uint32_t i = 0; i < MOST; i++) CHECK_INT(isnan(back[i]) != 0, i / QUANTIZE_BLOCK == 3);
    }
    for (int i = 0; i < MOST; i++) source[i] = 0x1p-130f;
    quantize(code, source, DTYPE_F32, MOST, 8);
    dequantize(back, DTYPE_F32, code, MOST, 8);
    for (int i = 0; i < MOST; i++) CHECK_DOUBLE(back[i], 0, 0);
    for (int i = 0; i < MOST; i++) source[i] = i % 2 ? 0x1.fffffep127f : -0x1.fffffep127f;
    quantize(code, source, DTYPE_F32, MOST, 4);
    dequantize(back, DTYPE_F32, code, MOST, 4);
    for (int i = 0; i < MOST; i++) CHECK_DOUBLE(back[i] / source[i], 1, 1e-6);
}

static void types(void) {
    static uint16_t narrow[MOST], narrow_back[MOST];
    for (enum dtype dtype = DTYPE_BF16; dtype <= DTYPE_F16; dtype++) {
        make_source(11);
        cast(narrow, dtype, source, DTYPE_F32, MOST);
        cast(source, DTYPE_F32, narrow, dtype, MOST);
        quantize(expected, source, DTYPE_F32, MOST, 8);
        quantize(code, narrow, dtype, MOST, 8);
        CHECK_BYTES(code, expected, quantize_bytes(MOST, 8));
        dequantize(back, DTYPE_F32, code, MOST, 8);
        cast(narrow, dtype, back, DTYPE_F32, MOST);
        dequantize(narrow_back, dtype, code, MOST, 8);
        CHECK_BYTES(narrow_back, narrow, sizeof narrow);
    }
}

static void instruction_sets(void) {
    for (uint64_t seed = 1; seed <= 50; seed++)
        for (uint32_t bits = 4; bits <= 8; bits += 4)
            for (int isa = KERNEL_SCALAR; isa < KERNEL_ISAS; isa++) {
                uint32_t count = MOST - (uint32_t)(seed * 13 % 600);
                check_seed(seed);
                if (!kernel_isa_present((enum kernel_isa)isa)) continue;
                make_source(seed);
                quantize_isa(KERNEL_SCALAR, expected, source, count, bits);
                quantize_isa((enum kernel_isa)isa, code, source, count, bits);
                CHECK_BYTES(code, expected, quantize_bytes(count, bits));
                dequantize_isa(KERNEL_SCALAR, back, code, count, bits);
                dequantize_isa((enum kernel_isa)isa, other, code, count, bits);
                CHECK_BYTES(other, back, count * sizeof *back);
            }
}

int main(void) {
    codes();
    parts();
    not_finite();
    types();
    instruction_sets();
    return check_end();
}
