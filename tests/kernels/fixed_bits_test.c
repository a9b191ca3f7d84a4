/* Every processor gives these bits: a hash of each kernel's results over fixed seeds, of numbers of every kind (denormals, inf
 * and NaN included). The tests beside this one compare instruction sets of one processor; these constants compare processors. An
 * intended change of a kernel's bits changes its constant here, and breaks the promise that old runs repeat. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "engine/comm/ordered.h"
#include "kernels/average.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/norm.h"
#include "kernels/orthogonalize.h"
#include "kernels/quantize.h"
#include "kernels/span.h"
#include "kernels/state_format.h"
#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 2 * NORM_BLOCK_ELEMENTS + 77, SEEDS = 8 };

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
static float source[COUNT], wide[COUNT];
static uint16_t half[COUNT], other_half[COUNT];
static _Alignas(ALIGN_BYTES) uint8_t code[4 * COUNT], input[2][4 * COUNT];

/* Odd seeds: finite numbers, because a sum with a NaN shows no order. */
static void fill(float *array, uint64_t seed) {
    uint64_t state = seed;
    for (int i = 0; i < COUNT; i++) array[i] = seed % 2 ? random_uniform(&state) : random_f32(&state);
}

static void casts(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int d = 1; d < 3; d++) {
            fill(source, seed);
            cast_isa(isa, half, dtypes[d], source, DTYPE_F32, COUNT);
            cast_isa(isa, other_half, dtypes[3 - d], half, dtypes[d], COUNT);
            checksum_add(sum, half, sizeof half), checksum_add(sum, other_half, sizeof other_half);
            for (int i = 0; i < COUNT; i++)
                half[i] = (uint16_t)((uint64_t)i + seed * COUNT); /* all numbers */
            cast_isa(isa, wide, DTYPE_F32, half, dtypes[d], COUNT);
            checksum_add(sum, wide, sizeof wide);
        }
}

static void one_format(enum kernel_isa isa, enum code_format format, struct checksum_stream *sum) {
    quantize_isa(isa, code, source, COUNT, format);
    dequantize_isa(isa, wide, code, COUNT, format);
    checksum_add(sum, code, quantize_bytes(COUNT, format)), checksum_add(sum, wide, sizeof wide);
}

static void codes(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (enum code_format format = CODE_INT4; format <= CODE_INT8; format++) {
            fill(source, seed);
            one_format(isa, format, sum);
        }
}

/* Smaller elements of some seeds reach fp8's denormals. */
static void fp8(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        fill(source, seed);
        for (int i = 0; i < COUNT && seed % 4 == 1; i++) source[i] = ldexpf(source[i], -(i % 16));
        one_format(isa, CODE_FP8_E4M3, sum);
    }
}

static void norms(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int d = 0; d < 3; d++) {
            fill(source, seed);
            for (int i = 0; i < COUNT; i++)
                if (source[i] - source[i] != 0)
                    source[i] = 0x1p-140f; /* inf and NaN, but for the seed below */
            if (seed == 2) source[9] = float_of(0x7f812345);
            cast(code, dtypes[d], source, DTYPE_F32, NORM_BLOCK_ELEMENTS);
            double norm = norm_block_isa(isa, code, dtypes[d], NORM_BLOCK_ELEMENTS - seed);
            checksum_add(sum, &norm, sizeof norm);
        }
}

static void state_formats(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        fill(source, seed);
        bf16_stochastic_isa(isa, half, source, COUNT, seed * 0x9e3779b97f4a7c15u, UINT32_MAX - 1000);
        checksum_add(sum, half, sizeof half);
        master_keep_isa(isa, source, COUNT);
        master_split_isa(isa, half, other_half, source, COUNT);
        master_join_isa(isa, wide, half, other_half, COUNT);
        checksum_add(sum, source, sizeof source), checksum_add(sum, half, sizeof half);
        checksum_add(sum, other_half, sizeof other_half), checksum_add(sum, wide, sizeof wide);
    }
}

static void averages(enum kernel_isa isa, struct checksum_stream *sum) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        fill(source, seed), fill(wide, seed + 2);
        average_move_isa(isa, source, wide, seed < 4 ? 0.01f : 0.9f, COUNT);
        checksum_add(sum, source, sizeof source);
    }
}

static void orthogonal(enum kernel_isa isa, struct checksum_stream *sum) {
    static const uint64_t shapes[][2] = {{1, 9}, {13, 7}, {33, 70}, {70, 33}};
    static _Alignas(64) float scratch[3 * COUNT];
    for (uint64_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct orthogonalize_options o = {.steps = 5, .eps = 1e-7f, .scale = 0.7f, .bf16 = bf16};
            fill(source, 2 * s + 1);
            orthogonalize_isa(isa, source, shapes[s][0], shapes[s][1], &o, scratch, 2);
            checksum_add(sum, source, shapes[s][0] * shapes[s][1] * sizeof *source);
        }
}

/* These choose their instructions themselves. */
static void sums(enum kernel_isa isa, struct checksum_stream *sum) {
    (void)isa;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        fill(source, seed), fill(wide, seed + 2);
        span_scale(source, 1.0f / 3, COUNT);
        span_add(source, wide, COUNT);
        checksum_add(sum, source, sizeof source);
        for (int d = 0; d < 3; d++) {
            const void *inputs[] = {input[0], input[1], input[0]};
            enum dtype target = seed < 4 ? dtypes[d] : DTYPE_F32;
            cast(input[0], dtypes[d], source, DTYPE_F32, COUNT);
            cast(input[1], dtypes[d], wide, DTYPE_F32, COUNT);
            cast(code, target, wide, DTYPE_F32, COUNT);
            ordered_sum(&(struct ordered){.inputs = inputs,
                                          .input_count = 3,
                                          .dtype = dtypes[d],
                                          .target_dtype = target,
                                          .target = code,
                                          .count = COUNT,
                                          .add = seed % 4 > 1});
            checksum_add(sum, code, COUNT * dtype_bytes(target));
        }
    }
}

/* Two steps of one optimizer, with every parameter and type of gradient. */
static void updates(const struct optimizer *optimizer, enum kernel_isa isa, struct checksum_stream *sum) {
    for (int form = 0; form < PARAM_FORMS; form++)
        for (int d = 0; d < 3; d++)
            for (int any = 0; any < 2; any++) {
                struct optimizer_params params = params_of(optimizer, form);
                struct optimizer_scalars scalars;
                struct shard s = shard_new(COUNT, 1);
                shard_fill(&s, (uint64_t)(form + 1), dtypes[d], any);
                for (uint64_t step = 1; step <= 2; step++) {
                    optimizer_prepare(optimizer, &params, step * 50, &scalars);
                    shard_update(&s, optimizer, isa, &scalars, dtypes[d], dtypes[(d + 1) % 3], 0, COUNT, 1);
                }
                uint32_t states =
                    optimizer->scope == SCOPE_MATRIX ? 0 : optimizer_states_used(optimizer, &params);
                checksum_add(sum, s.master + 1, COUNT * sizeof(float));
                for (uint32_t k = 0; k < states; k++)
                    checksum_add(sum, s.state[k] + 1, COUNT * sizeof(float));
                uint32_t bytes = dtype_bytes(dtypes[(d + 1) % 3]);
                checksum_add(sum, (char *)s.out + bytes, COUNT * (size_t)bytes);
                shard_free(&s);
            }
}

static const struct {
    const char *name;
    void (*run)(enum kernel_isa isa, struct checksum_stream *sum); /* NULL: the optimizer of this name */
    uint64_t expected;
} kernels[] = {
    {"casts", casts, 0xbd37f35bf8cb5955},
    {"codes", codes, 0xff74eccc6a047150},
    {"fp8", fp8, 0xeaf9563357f9d35f},
    {"norms", norms, 0xde3bca8c47aa4ce5},
    {"state formats", state_formats, 0xa2906db4172a914a},
    {"averages", averages, 0x643b921193921f8c},
    {"orthogonalize", orthogonal, 0x1ccadd46afa632da},
    {"sums", sums, 0xaaf1c1e521878219},
    {"adamw", NULL, 0x541f094798635706},
    {"adam", NULL, 0x54c45f9a61d1b18d},
    {"sgd", NULL, 0xb63dca82a541958f},
    {"lion", NULL, 0x4762f3f65d2e8e37},
    {"adagrad", NULL, 0x38851b2fcb595d48},
    {"muon", NULL, 0x39725270ece84ba1},
    {"lamb", NULL, 0xee57318445799427},
};

enum { KERNELS = sizeof kernels / sizeof *kernels };

static void compare(enum kernel_isa isa, int k) {
    struct checksum_stream sum;
    const struct optimizer *optimizer = kernels[k].run ? NULL : optimizer_find(kernels[k].name);
    checksum_begin(&sum);
    if (kernels[k].run) kernels[k].run(isa, &sum);
    if (optimizer) updates(optimizer, isa, &sum);
    if (optimizer && optimizer->before) updates(optimizer->before, isa, &sum);
    if (optimizer && optimizer->direction) updates(optimizer->direction, isa, &sum);
    uint64_t actual = checksum_end(&sum);
    if (actual == kernels[k].expected) return;
    check_fail(__FILE__, __LINE__);
    fprintf(stderr, "%s, %s: the hash of the results is 0x%016" PRIx64 ", expected 0x%016" PRIx64 "\n",
            kernels[k].name, kernel_isa_name(isa), actual, kernels[k].expected);
}

static void every_optimizer_has_a_row(void) {
    for (const struct optimizer *const *each = optimizers; *each; each++) {
        int rows = 0;
        for (int k = 0; k < KERNELS; k++)
            rows += !kernels[k].run && strcmp(kernels[k].name, (*each)->name) == 0;
        if (!CHECK_INT(rows, 1)) fprintf(stderr, "  %s\n", (*each)->name);
    }
}

int main(void) {
    every_optimizer_has_a_row();
    for (int isa = 0; isa < KERNEL_ISAS; isa++)
        for (int k = 0; k < KERNELS && kernel_isa_present((enum kernel_isa)isa); k++)
            compare((enum kernel_isa)isa, k);
    return check_end();
}
