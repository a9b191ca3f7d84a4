/* How near the kernels come to the GPU memory's speed.
 *
 * Counted bytes are those that the arithmetic needs: what is read once and what is written once. The bound is the GPU's own copy of an
 * array (read and written), in the same run: a kernel's fraction is its bytes per second over the copy's. Times are the GPU's
 * events around `rounds` launches in a row, after one that is not timed; the median of five such. Arrays hold random numbers:
 * on zeros memory and arithmetic take less power, and may be faster.
 *   cuda_kernels_bench [--elements N] [--rounds N] [--json FILE]     67,108,864 elements, 20 rounds; JSON: an array, appended */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "kernels/device_work.h"
#include "kernels/matrix_step.h"
#include "kernels/ordered_sum.h"
#include "kernels/quantize.h"
#include "tests/cuda/gpu.h"
#include "tests/kernels/random.h"

enum { TAKES = 5, ARRAYS = 6, RANKS = 4, PATTERN = 1 << 20 };

static struct {
    uint64_t count;
    int rounds;
    FILE *json;
    CUdeviceptr array[ARRAYS]; /* each of `count` fp32 */
    CUevent begin, end;
    double copy_bytes_per_second;
    bool any;
} bench = {.count = 64 << 20, .rounds = 20};

/* ---- what is measured ---- */

struct measured {
    const char *name;
    const struct kernel *kernel; /* NULL: the copy */
    const void *argument;
    double bytes_per_element;
};

static void start(const struct measured *m) {
    if (m->kernel)
        gpu_launch(m->kernel, m->argument);
    else
        gpu_must(gpu_driver()->cuMemcpyAsync(bench.array[1], bench.array[0], bench.count * sizeof(float),
                                             gpu_stream()),
                 "the copy");
}

static double take_seconds(const struct measured *m) {
    const struct cuda_driver *d = gpu_driver();
    float milliseconds = 0;
    gpu_must(d->cuEventRecord(bench.begin, gpu_stream()), "an event");
    for (int r = 0; r < bench.rounds; r++) start(m);
    gpu_must(d->cuEventRecord(bench.end, gpu_stream()), "an event");
    gpu_must(d->cuEventSynchronize(bench.end), "waiting for an event");
    gpu_must(d->cuEventElapsedTime(&milliseconds, bench.begin, bench.end), "the time between events");
    return (double)milliseconds * 1e-3 / bench.rounds;
}

/* 0: it is no product. */
static double flops_of(const struct measured *m) {
    const struct matrix_step *s = m->argument;
    return m->kernel == &kernel_matrix_product ? 2 * (double)s->rows * (double)s->columns * (double)s->inner
                                               : 0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct measured *m) {
    double seconds[TAKES];
    start(m);
    for (int t = 0; t < TAKES; t++) seconds[t] = take_seconds(m);
    qsort(seconds, TAKES, sizeof *seconds, ascending);
    double s = seconds[TAKES / 2], bytes_per_second = m->bytes_per_element * (double)bench.count / s;
    if (!m->kernel) bench.copy_bytes_per_second = bytes_per_second;
    double fraction = bytes_per_second / bench.copy_bytes_per_second;
    printf("%-34s %6.2f bytes/element %10.1f us %9.1f GB/s  %.3f of a copy", m->name, m->bytes_per_element,
           s * 1e6, bytes_per_second * 1e-9, fraction);
    if (flops_of(m) > 0) printf("  %.2f TFLOP/s", flops_of(m) / s * 1e-12);
    putchar('\n');
    if (!bench.json) return;
    fprintf(bench.json,
            "%s{\"name\": \"%s\", \"elements\": %llu, \"bytes_per_element\": %.4f, \"seconds\": %.9f, "
            "\"bytes_per_second\": %.6g, \"fraction_of_copy\": %.4f, \"flops_per_second\": %.6g}",
            bench.any ? ",\n  " : "[", m->name, (unsigned long long)bench.count, m->bytes_per_element, s,
            bytes_per_second, fraction, flops_of(m) / s);
    bench.any = true;
}

static void *array(int index) { return (void *)(uintptr_t)bench.array[index]; }

/* ---- optimizers ---- */

struct format {
    const char *name;
    enum dtype gradient, state;
    bool split, out;
};

static const struct format formats[] = {
    {"fp32", DTYPE_F32, DTYPE_F32, false, false},
    {"bf16 gradient and out", DTYPE_BF16, DTYPE_F32, false, true},
    {"split masters", DTYPE_BF16, DTYPE_F32, true, false},
    {"split masters, bf16 states", DTYPE_BF16, DTYPE_BF16, true, false},
};

static void measure_optimizer(const struct optimizer *optimizer, const struct format *f) {
    struct optimizer_params params = optimizer->defaults;
    params.momentum = 0.9;
    uint32_t states = optimizer->scope != SCOPE_MATRIX ? optimizer->state_count : 0;
    struct optimizer_step_argument a = {.args = {.count = bench.count,
                                                 .state_dtype = f->state,
                                                 .gradient = array(3),
                                                 .gradient_dtype = f->gradient,
                                                 .gradient_scale = 1,
                                                 .out = f->split || f->out ? array(4) : NULL,
                                                 .out_dtype = DTYPE_BF16},
                                        .optimizer = optimizer};
    if (f->split)
        a.args.master_low = array(0);
    else
        a.args.master = array(0);
    for (uint32_t k = 0; k < states; k++) a.args.state[k] = array(1 + (int)k);
    optimizer_prepare(optimizer, &params, 1, &a.scalars);
    char name[64];
    snprintf(name, sizeof name, "%s, %s", optimizer->name, f->name);
    measure(&(struct measured){name, kernel_optimizer_step(optimizer), &a,
                               dtype_bytes(f->gradient) + 8 + (f->out ? 2 : 0) +
                                   2 * dtype_bytes(f->state) * states});
}

static void measure_optimizers(void) {
    for (const struct optimizer *const *each = optimizers; *each; each++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) measure_optimizer(*each, &formats[f]);
}

/* ---- the others ---- */

static void measure_casts(void) {
    struct cast_scaled_argument narrow = {
        .target = array(1), .source = array(0), .count = bench.count, .target_dtype = DTYPE_BF16};
    struct cast_scaled_argument wide = {
        .target = array(1), .source = array(0), .count = bench.count, .source_dtype = DTYPE_BF16};
    struct cast_scaled_argument scale = {
        .target = array(0), .source = array(0), .count = bench.count, .factor = 1.5f};
    struct gradient_take_argument take = {
        .sum = array(0), .gradient = array(1), .count = bench.count, .dtype = DTYPE_BF16, .add = true};
    measure(&(struct measured){"cast fp32 to bf16", &kernel_cast_scaled, &narrow, 6});
    measure(&(struct measured){"cast bf16 to fp32", &kernel_cast_scaled, &wide, 6});
    measure(&(struct measured){"scale fp32 in place", &kernel_cast_scaled, &scale, 8});
    measure(&(struct measured){"add bf16 gradient", &kernel_gradient_take, &take, 6});
}

static void measure_norms(void) {
    struct norm_blocks_argument fp32 = {.elements = array(0), .sums = array(1), .count = bench.count};
    struct norm_blocks_argument bf16 = fp32;
    bf16.dtype = DTYPE_BF16;
    struct norm_total_argument total = {.sums = array(1),
                                        .total = array(2),
                                        .count =
                                            (bench.count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS};
    double sum = (double)sizeof(double) / NORM_BLOCK_ELEMENTS;
    measure(&(struct measured){"norm fp32", &kernel_norm_blocks, &fp32, 4 + sum});
    measure(&(struct measured){"norm bf16", &kernel_norm_blocks, &bf16, 2 + sum});
    measure(&(struct measured){"norm, total", &kernel_norm_total, &total, sum});
}

static void measure_sums(void) {
    struct ordered_sum_argument a = {.input = {array(0), array(1), array(2), array(3)},
                                     .count = bench.count,
                                     .target = array(4),
                                     .input_count = RANKS,
                                     .dtype = DTYPE_BF16,
                                     .target_dtype = DTYPE_BF16};
    measure(&(struct measured){"ordered sum of 4, bf16", &kernel_ordered_sum, &a, 2 * (RANKS + 1)});
    a.sums = array(5);
    measure(
        &(struct measured){"ordered sum of 4, bf16, with norm", &kernel_ordered_sum, &a, 2 * (RANKS + 1)});
    a.dtype = a.target_dtype = DTYPE_F32;
    measure(
        &(struct measured){"ordered sum of 4, fp32, with norm", &kernel_ordered_sum, &a, 4 * (RANKS + 1)});
}

static void measure_codes(void) {
    static const struct {
        enum code_format format;
        const char *to, *from;
    } rows[] = {{CODE_INT8, "bf16 to 8-bit codes", "8-bit codes to bf16"},
                {CODE_INT4, "bf16 to 4-bit codes", "4-bit codes to bf16"},
                {CODE_FP8_E4M3, "bf16 to fp8 codes", "fp8 codes to bf16"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct quantize_codes_argument q = {.code = array(1),
                                            .source = array(0),
                                            .count = bench.count,
                                            .dtype = DTYPE_BF16,
                                            .format = rows[i].format};
        struct dequantize_codes_argument d = {.target = array(0),
                                              .code = array(1),
                                              .count = bench.count,
                                              .dtype = DTYPE_BF16,
                                              .format = rows[i].format};
        double bytes = 2 + (double)quantize_bytes(bench.count, rows[i].format) / (double)bench.count;
        measure(&(struct measured){rows[i].to, &kernel_quantize_codes, &q, bytes});
        measure(&(struct measured){rows[i].from, &kernel_dequantize_codes, &d, bytes});
    }
}

/* Muon's product, of square matrices; its bytes are those of one element of an array on average. */
static void measure_products(void) {
    enum { SIDE_MAX = 4096 };
    uint64_t side = (uint64_t)sqrt((double)bench.count);
    if (side > SIDE_MAX) side = SIDE_MAX;
    struct matrix_step product = {.kind = MATRIX_PRODUCT,
                                  .a = array(0),
                                  .b = array(1),
                                  .d = array(2),
                                  .out = array(3),
                                  .rows = side,
                                  .columns = side,
                                  .inner = side,
                                  .alpha = 0.5f,
                                  .beta = -0.5f};
    char name[64];
    snprintf(name, sizeof name, "product of matrices, side %d", (int)side);
    double elements = (double)(side * side);
    measure(&(struct measured){name, &kernel_matrix_product, &product, 16 * elements / (double)bench.count});
}

/* ---- the program ---- */

/* Random bf16 in [0, 1), the same again and again: two of them are an fp32 in [0, 1). */
static CUdeviceptr new_array(void) {
    static uint16_t pattern[PATTERN];
    const struct cuda_driver *d = gpu_driver();
    CUdeviceptr array;
    uint64_t seed = 1, bytes = bench.count * sizeof(float);
    for (int i = 0; i < PATTERN; i++) {
        float x = fabsf(random_uniform(&seed));
        memcpy(&pattern[i], (char *)&x + 2, 2);
    }
    gpu_must(d->cuMemAlloc(&array, bytes), "an array");
    for (uint64_t at = 0; at < bytes; at += sizeof pattern)
        gpu_must(d->cuMemcpyAsync(array + at, (CUdeviceptr)(uintptr_t)pattern,
                                  bytes - at < sizeof pattern ? bytes - at : sizeof pattern, gpu_stream()),
                 "filling it");
    gpu_wait();
    return array;
}

static int usage(void) {
    fprintf(stderr, "usage: cuda_kernels_bench [--elements N] [--rounds N] [--json FILE]\n");
    return 2;
}

static bool read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--elements") == 0)
            bench.count = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            bench.rounds = atoi(value);
        else if (strcmp(argv[i], "--json") == 0 && *value)
            bench.json = fopen(value, "a");
        else
            return false;
        if (!bench.count || bench.rounds < 1 || (strcmp(argv[i], "--json") == 0 && !bench.json)) return false;
    }
    return true;
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv)) return usage();
    gpu_open();
    const struct cuda_driver *d = gpu_driver();
    for (int k = 0; k < ARRAYS; k++) bench.array[k] = new_array();
    gpu_must(d->cuEventCreate(&bench.begin, 0), "an event");
    gpu_must(d->cuEventCreate(&bench.end, 0), "an event");
    printf("%s, %llu elements\n", gpu_name(), (unsigned long long)bench.count);
    measure(&(struct measured){.name = "copy", .bytes_per_element = 8});
    measure_optimizers();
    measure_casts();
    measure_norms();
    measure_sums();
    measure_codes();
    measure_products();
    if (bench.json) fprintf(bench.json, "]\n"), fclose(bench.json);
    d->cuEventDestroy(bench.begin), d->cuEventDestroy(bench.end);
    for (int k = 0; k < ARRAYS; k++) d->cuMemFree(bench.array[k]);
    gpu_close();
    return 0;
}
