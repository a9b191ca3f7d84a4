/* Every fp16 and bf16 number, roundings at and around the half-way points, NaN and infinity; then the speed.
 */
#include "engine/comm/ordered.h"

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/limits.h"
#include "engine/device/kernel.h"
#include "kernels/ordered_sum.h"
#include "tests/check.h"
#include "tests/float_control.h"
#include "tests/kernels/random.h"

static float run_one(enum dtype from, uint32_t bits) {
    float out;
    const void *input = &bits;
    ordered_sum(&(struct ordered){.inputs = &input,
                                  .input_count = 1,
                                  .dtype = from,
                                  .target_dtype = DTYPE_F32,
                                  .target = &out,
                                  .count = 1});
    return out;
}

/* With two inputs of a narrow type one rounding is seen: a + b. */
static uint16_t run_two(enum dtype dtype, uint16_t a, uint16_t b) {
    uint16_t out;
    const void *inputs[] = {&a, &b};
    ordered_sum(&(struct ordered){.inputs = inputs,
                                  .input_count = 2,
                                  .dtype = dtype,
                                  .target_dtype = dtype,
                                  .target = &out,
                                  .count = 1});
    return out;
}

static float f16_value(uint32_t bits) {
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
    double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                   : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                  : ldexp(mantissa, -24);
    return (float)(bits & 0x8000 ? -value : value);
}

static float bf16_value(uint32_t bits) {
    float value;
    bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool same(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

static void every_number(void) {
    uint32_t wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        wrong += !same(run_one(DTYPE_F16, bits), f16_value(bits));
        wrong += !same(run_one(DTYPE_BF16, bits), bf16_value(bits));
        /* back again: + 0 changes no number but -0, and keeps NaN a NaN */
        uint16_t h = run_two(DTYPE_F16, (uint16_t)bits, 0), b = run_two(DTYPE_BF16, (uint16_t)bits, 0);
        wrong += !same(f16_value(h), bits == 0x8000 ? 0 : f16_value(bits));
        wrong += !same(bf16_value(b), bits == 0x8000 ? 0 : bf16_value(bits));
    }
    CHECK_INT(wrong, 0);
}

static uint16_t f16_power(int exponent) {
    return (uint16_t)(exponent >= -14 ? (exponent + 15) << 10 : 1 << (exponent + 24));
}

/* A number plus half its spacing, and a little more or less: sums of three fp16 numbers that fp32 holds
 * exactly. */
static void f16_rounds_half_to_even(void) {
    uint32_t wrong = 0;
    for (int exponent = -4; exponent <= 15; exponent++)
        for (uint32_t mantissa = 0; mantissa < 1024; mantissa++)
            for (int little = -1; little <= 1; little++)
                for (int negative = 0; negative < 2; negative++) {
                    uint16_t s = negative ? 0x8000 : 0, number = (uint16_t)((exponent + 15) << 10 | mantissa),
                             out;
                    uint16_t half = f16_power(exponent - 11), tiny = f16_power(exponent - 20), zero = 0;
                    uint16_t parts[3] = {number | s, half | s,
                                         (uint16_t)(tiny | (little < 0 ? s ^ 0x8000 : s))};
                    const void *inputs[3] = {&parts[0], &parts[1], little ? (void *)&parts[2] : &zero};
                    ordered_sum(&(struct ordered){.inputs = inputs,
                                                  .input_count = 3,
                                                  .dtype = DTYPE_F16,
                                                  .target_dtype = DTYPE_F16,
                                                  .target = &out,
                                                  .count = 1});
                    uint16_t up = little > 0 || (little == 0 && mantissa & 1);
                    wrong += out != (s | (number + up));
                }
    CHECK_INT(wrong, 0);
}

static void bf16_rounds_half_to_even(void) {
    /* 1 + 2^-8 lies half-way between 1 and 1 + 2^-7 */
    CHECK_INT(run_two(DTYPE_BF16, 0x3f80, 0x3b80), 0x3f80);
    CHECK_INT(run_two(DTYPE_BF16, 0xbf80, 0xbb80), 0xbf80);
    CHECK_INT(run_two(DTYPE_BF16, 0x3f81, 0x3b80), 0x3f82);
    CHECK_INT(run_two(DTYPE_BF16, 0x7f80, 0xff80) & 0x7fc0, 0x7fc0); /* inf - inf: a quiet NaN */
    CHECK_INT(run_two(DTYPE_BF16, 0x7f7f, 0x7f7f), 0x7f80);
    CHECK_INT(run_two(DTYPE_F16, 0x7bff, 0x7bff), 0x7c00);
    CHECK_INT(run_two(DTYPE_F16, 0x7c00, 0xfc00) & 0x7e00, 0x7e00);
}

/* The order shows: (2^24 + 1) + 1 = 2^24, but (1 + 1) + 2^24 = 2^24 + 2. */
static void rank_order(void) {
    float big = 0x1p24f, one = 1, out, added = 5;
    const void *inputs[] = {&big, &one, &one}, *reverse[] = {&one, &one, &big};
    struct ordered sum = {.inputs = inputs, .input_count = 3, .target = &out, .count = 1};
    ordered_sum(&sum);
    CHECK_DOUBLE(out, 0x1p24, 0);
    sum.inputs = reverse;
    ordered_sum(&sum);
    CHECK_DOUBLE(out, 0x1p24 + 2, 0);
    sum.inputs = inputs, sum.add = true, sum.target = &added;
    ordered_sum(&sum);
    CHECK_DOUBLE(added, 0x1p24 + 4, 0); /* 5 + 2^24, half to even */
}

/* What depends on the environment: denormals of all three types, sums that round, an added target. */
static void sum_all(uint8_t *out) {
    enum { COUNT = NORM_BLOCK_ELEMENTS + 37, INPUTS = 3 };
    static const enum dtype dtypes[][2] = {{DTYPE_F32, DTYPE_F32},
                                           {DTYPE_BF16, DTYPE_BF16},
                                           {DTYPE_BF16, DTYPE_F32},
                                           {DTYPE_F16, DTYPE_F16},
                                           {DTYPE_F16, DTYPE_F32}};
    static uint32_t words[INPUTS][COUNT];
    const void *inputs[INPUTS] = {words[0], words[1], words[2]};
    uint32_t random = 1;
    for (uint32_t m = 0; m < INPUTS; m++)
        for (uint32_t i = 0; i < COUNT; i++) {
            random = random * 1664525 + 1013904223;
            words[m][i] = i % 2 ? random & 0x83ff83ff : (random & 0x83ff8fff) | 0x3c003c00;
        }
    for (uint32_t d = 0; d < 5; d++)
        for (int add = 0; add < 2; add++, out += COUNT * sizeof(float)) {
            memcpy(out, words[0], COUNT * sizeof(float));
            ordered_sum(&(struct ordered){.inputs = inputs,
                                          .input_count = INPUTS,
                                          .dtype = dtypes[d][0],
                                          .target_dtype = dtypes[d][1],
                                          .target = out,
                                          .count = COUNT,
                                          .add = add});
        }
}

static void environment_of_the_host(void) {
    enum { BYTES = 10 * (NORM_BLOCK_ELEMENTS + 37) * sizeof(float) };
    uint8_t *plain = malloc(BYTES), *strange = malloc(BYTES);
    static const int modes[] = {FE_TOWARDZERO, FE_UPWARD};
    sum_all(plain);
    for (int i = 0; i < 2; i++) {
        fesetround(modes[i]);
        uint64_t before = float_control(), flushing = before | FLOAT_CONTROL_FLUSHES;
        float_control_set(flushing);
        sum_all(strange);
        CHECK_INT(float_control(), flushing);
        float_control_set(before);
        CHECK_INT(fegetround(), modes[i]);
        fesetround(FE_TONEAREST);
        CHECK_BYTES(strange, plain, BYTES);
    }
    free(plain), free(strange);
}

static void speed(enum dtype dtype, enum dtype target_dtype) {
    enum { COUNT = 4 << 20, INPUTS = 2 };
    /* Starts that differ modulo 4,096, else the arrays alias in the cache. */
    char *block = malloc((size_t)(INPUTS + 1) * (COUNT * 4 + 4096)), *inputs[INPUTS];
    char *target = block + INPUTS * (COUNT * 4 + 1344);
    memset(block, 0, (size_t)(INPUTS + 1) * (COUNT * 4 + 4096));
    uint64_t best = UINT64_MAX,
             bytes = COUNT * ((uint64_t)INPUTS * dtype_bytes(dtype) + dtype_bytes(target_dtype));
    for (int i = 0; i < INPUTS; i++) inputs[i] = block + i * (COUNT * 4 + 1344);
    for (int round = 0; round < 10; round++) {
        uint64_t begin = clock_now_ns();
        ordered_sum(&(struct ordered){.inputs = (const void *const *)inputs,
                                      .input_count = INPUTS,
                                      .dtype = dtype,
                                      .target_dtype = target_dtype,
                                      .target = target,
                                      .count = COUNT});
        uint64_t took = clock_now_ns() - begin;
        if (took < best) best = took;
    }
    printf("sum of 2 x %s into %s: %.2f G elements/s, %.1f GB/s\n", dtype_name(dtype),
           dtype_name(target_dtype), (double)COUNT / (double)best, (double)bytes / (double)best);
    free(block);
}

/* The kernel's host function, over numbers of every kind. */
static void kernel_agrees(uint32_t ranks, enum dtype dtype, enum dtype target_dtype, bool add) {
    enum { RANKS = 4, COUNT = NORM_BLOCK_ELEMENTS + 77 };
    static float in[RANKS][COUNT], out[2][COUNT];
    const void *inputs[RANKS];
    uint64_t seed = 5;
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < COUNT; i++) in[r][i] = random_f32(&seed);
        inputs[r] = in[r];
    }
    for (int i = 0; i < COUNT; i++) out[0][i] = out[1][i] = random_f32(&seed);
    ordered_sum(&(struct ordered){.inputs = inputs,
                                  .input_count = ranks,
                                  .node_inputs = ranks == RANKS ? 2 : 0,
                                  .dtype = dtype,
                                  .target_dtype = target_dtype,
                                  .target = out[0],
                                  .count = COUNT,
                                  .add = add});
    kernel_ordered_sum.run(&(struct ordered_sum_argument){.input = {in[0], in[1], in[2], in[3]},
                                                          .count = COUNT,
                                                          .target = out[1],
                                                          .input_count = ranks,
                                                          .node_inputs = ranks == RANKS ? 2 : 0,
                                                          .dtype = dtype,
                                                          .target_dtype = target_dtype,
                                                          .add = add});
    CHECK_BYTES(out[0], out[1], sizeof out[0]);
}

/* One rank's sum may be its input. A NaN becomes the one NaN. */
static void in_place(void) {
    enum { COUNT = NORM_BLOCK_ELEMENTS + 77 };
    static float x[COUNT], expected[COUNT];
    const void *input = x;
    uint64_t seed = 6;
    for (int i = 0; i < COUNT; i++) x[i] = random_f32(&seed);
    memcpy(&x[3], &(uint32_t){0xffc12345}, sizeof *x);
    struct ordered sum = {.inputs = &input,
                          .input_count = 1,
                          .dtype = DTYPE_F32,
                          .target_dtype = DTYPE_F32,
                          .target = expected,
                          .count = COUNT};
    ordered_sum(&sum);
    CHECK_BYTES(&expected[3], &(uint32_t){0x7fc00000}, sizeof *expected);
    sum.target = x;
    ordered_sum(&sum);
    CHECK_BYTES(x, expected, sizeof x);
}

int main(void) {
    kernel_agrees(1, DTYPE_F32, DTYPE_F32, false);
    kernel_agrees(1, DTYPE_F32, DTYPE_F32, true);
    kernel_agrees(1, DTYPE_BF16, DTYPE_F32, true);
    in_place();
    kernel_agrees(3, DTYPE_F32, DTYPE_F32, false);
    kernel_agrees(4, DTYPE_F32, DTYPE_F32, true);
    kernel_agrees(3, DTYPE_BF16, DTYPE_BF16, false);
    kernel_agrees(4, DTYPE_F16, DTYPE_F16, false);
    kernel_agrees(3, DTYPE_BF16, DTYPE_F32, true);
    kernel_agrees(4, DTYPE_BF16, DTYPE_BF16, true);
    kernel_agrees(3, DTYPE_F16, DTYPE_F16, true);
    every_number();
    f16_rounds_half_to_even();
    bf16_rounds_half_to_even();
    rank_order();
    environment_of_the_host();
    speed(DTYPE_F32, DTYPE_F32);
    speed(DTYPE_BF16, DTYPE_BF16);
    speed(DTYPE_BF16, DTYPE_F32);
    speed(DTYPE_F16, DTYPE_F16);
    return check_end();
}
