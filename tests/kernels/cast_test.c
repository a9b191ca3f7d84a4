/* Casts: every 16-bit value widens and comes back; rounding of bf16 and fp16; the undo formula; all
 * instruction sets. */
#include "kernels/cast.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/isa.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

enum { VALUES = 65536, RANDOMS = 1 << 20 };

static uint16_t half[VALUES], back[VALUES];
static float wide[VALUES];
static float randoms[RANDOMS];
static uint16_t narrowed[RANDOMS], expected[RANDOMS];

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static int is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

/* The value of fp16 bits by the standard's definition. */
static double f16_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* Nearest fp16 by search: of the two neighbours the nearer, on a tie the even one. */
static uint16_t f16_nearest(float x) {
    uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    double magnitude = fabs((double)x);
    if (magnitude >= 65520) return sign | 0x7c00; /* halfway between the largest and the next power of two */
    uint16_t low = 0, high = 0x7c00;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (f16_value(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - f16_value(low), above = (high == 0x7c00 ? 65536 : f16_value(high)) - magnitude;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static void every_half_widens_and_returns(enum kernel_isa isa) {
    for (int i = 0; i < VALUES; i++) half[i] = (uint16_t)i;
    cast_isa(isa, wide, DTYPE_F32, half, DTYPE_BF16, VALUES);
    cast_isa(isa, back, DTYPE_BF16, wide, DTYPE_F32, VALUES);
    for (int i = 0; i < VALUES; i++) {
        uint32_t u = (uint32_t)i << 16;
        if (!CHECK_INT(bits_of(wide[i]), u)) return;
        if (!CHECK_INT(back[i], is_nan(u) ? i | 0x40 : i)) return;
    }
    cast_isa(isa, wide, DTYPE_F32, half, DTYPE_F16, VALUES);
    cast_isa(isa, back, DTYPE_F16, wide, DTYPE_F32, VALUES);
    for (int i = 0; i < VALUES; i++) {
        int nan = (i & 0x7fff) > 0x7c00;
        double value = f16_value((uint16_t)i);
        if (!CHECK(nan ? wide[i] != wide[i] : wide[i] == value && !signbit(wide[i]) == !signbit(value)))
            return;
        if (!CHECK_INT(back[i], nan ? i | 0x200 : i)) return;
    }
}

static void bf16_rounds_to_nearest_even(enum kernel_isa isa) {
    static const struct {
        uint32_t from, to;
    } cases[] = {
        {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0xbf808000, 0xbf80}, /* ties go to even */
        {0x00008000, 0x0000}, {0x00007fff, 0x0000}, {0x80000000, 0x8000},
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0x7f7fffff, 0x7f80},
        {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, /* overflow: inf */
        {0x7fffffff, 0x7fff}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},
        {0x7fc00000, 0x7fc0}, /* NaN stays one */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x = float_of(cases[i].from);
        uint16_t w;
        cast_isa(isa, &w, DTYPE_BF16, &x, DTYPE_F32, 1);
        CHECK_INT(w, cases[i].to);
    }
    cast_isa(isa, narrowed, DTYPE_BF16, randoms, DTYPE_F32, RANDOMS);
    for (int i = 0; i < RANDOMS; i++) {
        uint32_t u = bits_of(randoms[i]), down = u >> 16, rest = u & 0xffff;
        bool up = rest > 0x8000 || (rest == 0x8000 && down % 2 == 1);
        if (!is_nan(u) && !CHECK_INT(narrowed[i], (uint16_t)(down + up))) return;
    }
}

static void f16_rounds_to_nearest_even(enum kernel_isa isa) {
    cast_isa(isa, narrowed, DTYPE_F16, randoms, DTYPE_F32, RANDOMS);
    for (int i = 0; i < RANDOMS; i++) {
        uint32_t u = bits_of(randoms[i]);
        uint16_t want = is_nan(u) ? (u >> 16 & 0x8000) | 0x7e00 | (u >> 13 & 0x3ff) : f16_nearest(randoms[i]);
        if (!CHECK_INT(narrowed[i], want)) return;
    }
}

/* bf16 to fp16 and back are the two steps through fp32, at every length around the step of the loop. */
static void halves_go_through_fp32(enum kernel_isa isa) {
    for (int i = 0; i < VALUES; i++) half[i] = (uint16_t)(i * 40503u);
    static const enum dtype pairs[][2] = {{DTYPE_BF16, DTYPE_F16}, {DTYPE_F16, DTYPE_BF16}};
    for (int p = 0; p < 2; p++)
        for (uint64_t count = 1022; count < 1028; count++) {
            cast_isa(isa, wide, DTYPE_F32, half, pairs[p][0], count);
            cast_isa(isa, expected, pairs[p][1], wide, DTYPE_F32, count);
            back[count] = 0x5555;
            cast_isa(isa, back, pairs[p][1], half, pairs[p][0], count);
            CHECK_BYTES(back, expected, count * 2);
            CHECK_INT(back[count], 0x5555);
        }
}

static void equal_types_are_copied(enum kernel_isa isa) {
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        memset(back, 0, sizeof back);
        cast_isa(isa, back, (enum dtype)dtype, randoms, (enum dtype)dtype, 1000);
        CHECK_BYTES(back, randoms, 1000 * dtype_bytes((enum dtype)dtype));
        CHECK_INT(((uint8_t *)back)[1000 * dtype_bytes((enum dtype)dtype)], 0);
        cast_isa(isa, NULL, (enum dtype)dtype, NULL, (enum dtype)dtype, 0);
    }
}

int main(void) {
    uint64_t seed = 7;
    check_seed(seed);
    for (int i = 0; i < RANDOMS; i++) randoms[i] = random_f32(&seed);
    for (int k = 0; k < RANDOMS / 2; k++) /* every exponent of fp16 and its ties */
        randoms[k] = float_of((bits_of(randoms[k]) & 0x807ff000) | (uint32_t)(98 + k % 50) << 23);
    for (int isa = 0; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present((enum kernel_isa)isa)) {
            fprintf(stderr, "%s: not on this CPU, skipped\n", kernel_isa_name((enum kernel_isa)isa));
            continue;
        }
        every_half_widens_and_returns((enum kernel_isa)isa);
        bf16_rounds_to_nearest_even((enum kernel_isa)isa);
        f16_rounds_to_nearest_even((enum kernel_isa)isa);
        halves_go_through_fp32((enum kernel_isa)isa);
        equal_types_are_copied((enum kernel_isa)isa);
    }
    return check_end();
}
