/* Norms: the stated order literally, a long double sum, every type and instruction set, inf and NaN. */
#include "kernels/norm.h"

#include <math.h>

#include "engine/base/limits.h"
#include "kernels/cast.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

enum { ELEMENTS = 5 * NORM_BLOCK_ELEMENTS + 77 };

static float values[ELEMENTS + 3], wide[ELEMENTS];
static uint16_t half[ELEMENTS + 3];

/* norm.h's sentence, element by element. */
static double block_as_stated(const float *x, uint64_t count) {
    double lane[16] = {0};
    for (uint64_t i = 0; i < count; i++) lane[i % 16] += (double)x[i] * (double)x[i];
    for (int k = 0; k < 8; k++) lane[k] += lane[k + 8];
    for (int k = 0; k < 4; k++) lane[k] += lane[k + 4];
    for (int k = 0; k < 2; k++) lane[k] += lane[k + 2];
    return lane[0] + lane[1];
}

static int same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

static void fill(uint64_t seed, int any) {
    check_seed(seed);
    for (int i = 0; i < ELEMENTS + 3; i++) values[i] = any ? random_f32(&seed) : random_uniform(&seed);
}

static void order_is_as_stated(enum kernel_isa isa) {
    fill(11, 0);
    for (uint64_t count = 0; count <= NORM_BLOCK_ELEMENTS; count += count < 70 ? 1 : 503)
        for (int offset = 0; offset < 3; offset++)
            CHECK(same_bits(norm_block_isa(isa, values + offset, DTYPE_F32, count),
                            block_as_stated(values + offset, count)));
    static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
    for (int h = 0; h < 2; h++)
        for (uint64_t count = 0; count <= NORM_BLOCK_ELEMENTS; count += count < 70 ? 1 : 503) {
            cast(half + 1, halves[h], values, DTYPE_F32, NORM_BLOCK_ELEMENTS);
            cast(wide, DTYPE_F32, half + 1, halves[h], NORM_BLOCK_ELEMENTS);
            CHECK(same_bits(norm_block_isa(isa, half + 1, halves[h], count), block_as_stated(wide, count)));
        }
}

static void any_bits_agree_with_scalar(enum kernel_isa isa) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        fill(seed, 1);
        for (int i = 0; seed % 2 && i < ELEMENTS; i++) /* finite, or nearly every block sums to NaN */
            if (!isfinite(values[i])) values[i] = 1e-40f;
        double scalar = norm_block_isa(KERNEL_SCALAR, values, DTYPE_F32, NORM_BLOCK_ELEMENTS - seed);
        CHECK(same_bits(norm_block_isa(isa, values, DTYPE_F32, NORM_BLOCK_ELEMENTS - seed), scalar));
        CHECK(seed % 2 ? isfinite(scalar) : isnan(scalar));
    }
}

static void infinity_and_nan_pass(enum kernel_isa isa) {
    static const uint64_t one_nan = 0x7ff8000000000000;
    double nan;
    memcpy(&nan, &one_nan, sizeof nan);
    for (uint64_t at = 0; at < 40; at++) {
        fill(5, 0);
        values[at] = -INFINITY;
        CHECK(same_bits(norm_block_isa(isa, values, DTYPE_F32, 40), INFINITY));
        values[(at + 7) % 40] = -NAN;
        CHECK(same_bits(norm_block_isa(isa, values, DTYPE_F32, 40), nan));
    }
}

/* 20,557 additions of positive doubles in five trees: the error is far below count * 2^-53 = 2.3e-12. */
static void span_is_blocks_in_order(void) {
    fill(13, 0);
    long double sum = 0;
    for (int i = 0; i < ELEMENTS; i++) sum += (long double)values[i] * values[i];
    double blocks = 0;
    for (uint64_t i = 0; i < ELEMENTS; i += NORM_BLOCK_ELEMENTS) {
        uint64_t left = ELEMENTS - i;
        blocks += norm_block(values + i, DTYPE_F32, left < NORM_BLOCK_ELEMENTS ? left : NORM_BLOCK_ELEMENTS);
    }
    CHECK(same_bits(norm_more(0, values, DTYPE_F32, ELEMENTS), blocks));
    CHECK_DOUBLE(blocks, (double)sum, 2.3e-12);
    CHECK(same_bits(norm_more(0, values, DTYPE_F32, 0), 0.0));
    cast(half, DTYPE_BF16, values, DTYPE_F32, ELEMENTS);
    cast(wide, DTYPE_F32, half, DTYPE_BF16, ELEMENTS);
    CHECK(same_bits(norm_more(0, half, DTYPE_BF16, ELEMENTS), norm_more(0, wide, DTYPE_F32, ELEMENTS)));
}

int main(void) {
    for (int isa = 0; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present((enum kernel_isa)isa)) {
            fprintf(stderr, "%s: not on this CPU, skipped\n", kernel_isa_name((enum kernel_isa)isa));
            continue;
        }
        order_is_as_stated((enum kernel_isa)isa);
        any_bits_agree_with_scalar((enum kernel_isa)isa);
        infinity_and_nan_pass((enum kernel_isa)isa);
    }
    span_is_blocks_in_order();
    return check_end();
}
