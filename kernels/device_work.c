#include "kernels/device_work.h"

#include <stddef.h>
#include <string.h>

#include "engine/base/integer.h"
#include "engine/base/limits.h"
#include "engine/base/numbers/float_env.h"
#include "engine/device/kernel.h"
#include "kernels/cast.h"
#include "kernels/matrix_step.h"
#include "kernels/norm.h"
#include "kernels/orthogonalize.h"
#include "kernels/quantize.h"
#include "kernels/span.h"

KERNEL_FATBIN(cast_fatbin);
KERNEL_FATBIN(norm_fatbin);
KERNEL_FATBIN(optimizer_fatbin);
KERNEL_FATBIN(orthogonalize_fatbin);
KERNEL_FATBIN(quantize_fatbin);

enum { THREADS = 256, NORM_THREADS = 128, PRODUCT_THREADS = 128, STEP_ELEMENTS = 1024 };

#define ROW(row, file, function, blocks)                                                                     \
    const struct kernel kernel_##row = {.name = #row,                                                        \
                                        .fatbin = file##_fatbin,                                             \
                                        .run = function,                                                     \
                                        .grid = blocks,                                                      \
                                        .argument_bytes = sizeof(struct row##_argument)}

static uint32_t rows_of(uint32_t rows) { return rows ? rows : 1; }

/* Each row has blocks of its own. */
static struct kernel_grid grid_of_rows(uint64_t count, uint32_t each, uint32_t rows) {
    struct kernel_grid grid = kernel_grid_of(count, THREADS, each);
    grid.blocks *= rows_of(rows);
    return grid;
}

/* ---- casts ---- */

static void cast_step(void *target, enum dtype to, const void *source, enum dtype from, float factor,
                      uint64_t count) {
    float wide[STEP_ELEMENTS];
    if (factor == 0) {
        cast(target, to, source, from, count);
        return;
    }
    cast(wide, DTYPE_F32, source, from, count);
    span_scale(wide, factor, count);
    cast(target, to, wide, DTYPE_F32, count);
}

/* In place, element i is written at or below the address where it was read, so ascending order loses nothing. */
static void run_cast(void *argument) {
    const struct cast_scaled_argument *a = argument;
    enum dtype to = (enum dtype)a->target_dtype, from = (enum dtype)a->source_dtype;
    float step[STEP_ELEMENTS];
    uint64_t target_step = a->target_step ? a->target_step : a->count;
    for (uint32_t row = 0; row < rows_of(a->rows); row++)
        for (uint64_t i = 0; i < a->count; i += STEP_ELEMENTS) {
            uint64_t n = min64(a->count - i, STEP_ELEMENTS);
            cast_step(step, to, (const uint8_t *)a->source + (row * a->step + i) * dtype_bytes(from), from,
                      a->factor, n);
            memcpy((uint8_t *)a->target + (row * target_step + i) * dtype_bytes(to), step,
                   n * dtype_bytes(to));
        }
}

static struct kernel_grid grid_cast(const void *argument) {
    const struct cast_scaled_argument *a = argument;
    return grid_of_rows(a->count, 4, a->rows);
}

ROW(cast_scaled, cast, run_cast, grid_cast);

/* ---- norms ---- */

static void run_norm_blocks(void *argument) {
    const struct norm_blocks_argument *a = argument;
    enum dtype dtype = (enum dtype)a->dtype;
    for (uint64_t i = 0; i < a->count; i += NORM_BLOCK_ELEMENTS)
        a->sums[i / NORM_BLOCK_ELEMENTS] = norm_block((const uint8_t *)a->elements + i * dtype_bytes(dtype),
                                                      dtype, min64(a->count - i, NORM_BLOCK_ELEMENTS));
}

/* Sixteen threads per block of elements. */
static struct kernel_grid grid_norm_blocks(const void *argument) {
    return kernel_grid_of(((const struct norm_blocks_argument *)argument)->count, NORM_THREADS,
                          NORM_BLOCK_ELEMENTS / 16);
}

static double add_in_order(double sum, const double *sums, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) sum += sums[i];
    return sum == sum ? sum : __builtin_nan("");
}

static void run_norm_total(void *argument) {
    const struct norm_total_argument *a = argument;
    double (*volatile call)(double, const double *, uint64_t) =
        add_in_order; /* volatile: prevents inlining (float_env.h) */
    float_env saved = float_env_enter();
    *a->total = call(a->add ? *a->total : 0, a->sums, a->count);
    float_env_leave(saved);
}

static struct kernel_grid grid_norm_total(const void *argument) {
    return (struct kernel_grid){.blocks = 1, .threads = NORM_THREADS};
}

ROW(norm_blocks, norm, run_norm_blocks, grid_norm_blocks);
ROW(norm_total, norm, run_norm_total, grid_norm_total);

/* ---- codes ---- */

static void run_quantize(void *argument) {
    const struct quantize_codes_argument *a = argument;
    enum dtype dtype = (enum dtype)a->dtype;
    enum code_format format = (enum code_format)a->format;
    for (uint32_t row = 0; row < rows_of(a->rows); row++)
        quantize((uint8_t *)a->code + row * quantize_bytes(a->count, format),
                 (const uint8_t *)a->source + row * a->step * dtype_bytes(dtype), dtype, a->count, format);
}

static void run_dequantize(void *argument) {
    const struct dequantize_codes_argument *a = argument;
    enum dtype dtype = (enum dtype)a->dtype;
    enum code_format format = (enum code_format)a->format;
    for (uint32_t row = 0; row < rows_of(a->rows); row++)
        dequantize((uint8_t *)a->target + row * a->step * dtype_bytes(dtype), dtype,
                   (const uint8_t *)a->code + row * quantize_bytes(a->count, format), a->count, format);
}

static void run_dequantize_sum(void *argument) {
    enum { PART_ELEMENTS = 4 * QUANTIZE_BLOCK };
    const struct dequantize_sum_argument *a = argument;
    enum dtype dtype = (enum dtype)a->dtype;
    enum code_format format = (enum code_format)a->format;
    uint64_t bytes = quantize_bytes(a->count, format);
    uint32_t each = a->node_members ? a->node_members : a->members;
    float sum[PART_ELEMENTS], before[PART_ELEMENTS];
    for (uint64_t first = 0; first < a->count; first += PART_ELEMENTS) {
        uint64_t n = min64(a->count - first, PART_ELEMENTS);
        uint8_t *out = (uint8_t *)a->target + first * dtype_bytes(dtype);
        for (uint32_t m = 0; m < a->members; m++) {
            dequantize_part(m < each ? sum : before, (const uint8_t *)a->codes + m * bytes, a->count, format,
                            first, n, m % each > 0);
            if (m >= each && (m + 1) % each == 0) span_add(sum, before, n);
        }
        if (a->add) cast(before, DTYPE_F32, out, dtype, n), span_add(sum, before, n);
        cast(out, dtype, sum, DTYPE_F32, n);
    }
}

/* One warp per block of codes. */
static struct kernel_grid grid_quantize(const void *argument) {
    const struct quantize_codes_argument *a = argument;
    return grid_of_rows(a->count, 8, a->rows);
}

static struct kernel_grid grid_dequantize(const void *argument) {
    const struct dequantize_codes_argument *a = argument;
    return grid_of_rows(a->count, 8, a->rows);
}

static struct kernel_grid grid_dequantize_sum(const void *argument) {
    return kernel_grid_of(((const struct dequantize_sum_argument *)argument)->count, THREADS, 8);
}

ROW(quantize_codes, quantize, run_quantize, grid_quantize);
ROW(dequantize_codes, quantize, run_dequantize, grid_dequantize);
ROW(dequantize_sum, quantize, run_dequantize_sum, grid_dequantize_sum);

/* ---- gradients of the program ---- */

static void run_gradient_take(void *argument) {
    const struct gradient_take_argument *a = argument;
    enum dtype dtype = (enum dtype)a->dtype;
    float left[STEP_ELEMENTS], right[STEP_ELEMENTS];
    for (uint64_t at = 0; at < a->count; at += STEP_ELEMENTS) {
        uint64_t n = min64(a->count - at, STEP_ELEMENTS), skip = at * dtype_bytes(dtype);
        cast(right, DTYPE_F32, (const uint8_t *)a->gradient + skip, dtype, n);
        if (a->add) cast(left, DTYPE_F32, (const uint8_t *)a->sum + skip, dtype, n);
        if (a->add) span_add(right, left, n);
        cast((uint8_t *)a->sum + skip, dtype, right, DTYPE_F32, n);
    }
}

static struct kernel_grid grid_gradient_take(const void *argument) {
    return kernel_grid_of(((const struct gradient_take_argument *)argument)->count, THREADS, 4);
}

ROW(gradient_take, cast, run_gradient_take, grid_gradient_take);

/* ---- whole matrices ---- */

static void run_matrix_step(void *argument) { matrix_step_run(argument, 1); }

static uint64_t parts(uint64_t count, uint64_t of) { return (count + of - 1) / of; }

static struct kernel_grid grid_matrix(const void *argument) {
    const struct matrix_step *s = argument;
    return kernel_grid_of(s->rows * s->columns, THREADS, 4);
}

static struct kernel_grid grid_transpose(const void *argument) {
    const struct matrix_step *s = argument;
    uint64_t squares = parts(s->rows, MATRIX_SQUARE_SIDE) * parts(s->columns, MATRIX_SQUARE_SIDE);
    return (struct kernel_grid){.blocks = (uint32_t)squares, .threads = THREADS};
}

static struct kernel_grid grid_product(const void *argument) {
    const struct matrix_step *s = argument;
    uint64_t tiles = parts(s->rows, MATRIX_TILE_ROWS) * parts(s->columns, MATRIX_TILE_COLUMNS);
    return (struct kernel_grid){.blocks = (uint32_t)tiles, .threads = PRODUCT_THREADS};
}

#define MATRIX_ROW(row, blocks)                                                                              \
    const struct kernel kernel_##row = {.name = #row,                                                        \
                                        .fatbin = orthogonalize_fatbin,                                      \
                                        .run = run_matrix_step,                                              \
                                        .grid = blocks,                                                      \
                                        .argument_bytes = sizeof(struct matrix_step)}

MATRIX_ROW(matrix_normalize, grid_matrix);
MATRIX_ROW(matrix_scale, grid_matrix);
MATRIX_ROW(matrix_transpose, grid_transpose);
MATRIX_ROW(matrix_product, grid_product);

union matrix_argument {
    struct matrix_step step;
    struct cast_scaled_argument cast;
    struct norm_blocks_argument squares;
    struct norm_total_argument total;
};
_Static_assert(sizeof(union matrix_argument) <= MATRIX_ARGUMENT_BYTES, "there is room for each");

static const struct kernel *argument_of(const struct matrix_step *s, union matrix_argument *a) {
    static const struct kernel *const own[] = {[MATRIX_NORMALIZE] = &kernel_matrix_normalize,
                                               [MATRIX_SCALE] = &kernel_matrix_scale,
                                               [MATRIX_TRANSPOSE] = &kernel_matrix_transpose,
                                               [MATRIX_PRODUCT] = &kernel_matrix_product};
    uint64_t count = s->rows * s->columns;
    switch ((enum matrix_step_kind)s->kind) {
    case MATRIX_CAST:
        a->cast = (struct cast_scaled_argument){
            .target = s->out, .source = s->a, .count = count, .target_dtype = DTYPE_BF16};
        return &kernel_cast_scaled;
    case MATRIX_SQUARES:
        a->squares = (struct norm_blocks_argument){s->a, s->out, count, s->bf16 ? DTYPE_BF16 : DTYPE_F32};
        return &kernel_norm_blocks;
    case MATRIX_TOTAL:
        a->total = (struct norm_total_argument){.sums = s->a, .total = s->out, .count = count};
        return &kernel_norm_total;
    default:
        a->step = *s;
        return own[s->kind];
    }
}

const struct kernel *matrix_step_kernel(const struct matrix_step *step, void *out_argument) {
    union matrix_argument argument;
    const struct kernel *kernel = argument_of(step, &argument);
    memcpy(out_argument, &argument, kernel->argument_bytes);
    return kernel;
}

/* ---- updates ---- */

static void run_optimizer(void *argument) {
    struct optimizer_step_argument *a = argument;
    a->args.scalars = &a->scalars;
    optimizer_update(a->optimizer, &a->args);
}

static struct kernel_grid grid_optimizer(const void *argument) {
    return kernel_grid_of(((const struct optimizer_step_argument *)argument)->args.count, THREADS, 4);
}

#define OPTIMIZER_ROW(optimizer)                                                                             \
    {                                                                                                        \
        .name = #optimizer "_step", .fatbin = optimizer_fatbin, .run = run_optimizer,                        \
        .grid = grid_optimizer, .argument_bytes = sizeof(struct optimizer_step_argument)                     \
    }

/* The kernels of optimizers, by their names in `optimizers`. */
struct optimizer_kernel {
    const char *optimizer;
    struct kernel kernel;
};

static const struct kernel *kernel_of(const struct optimizer *optimizer, const struct optimizer_kernel *rows,
                                      size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].optimizer, optimizer->name) == 0) return &rows[i].kernel;
    return NULL;
}

static const struct optimizer_kernel steps[] = {
#define OPTIMIZER(name) {#name, OPTIMIZER_ROW(name)},
#include "kernels/optimizers.def"
    {"muon's momentum", OPTIMIZER_ROW(muon_momentum)},
};

const struct kernel *kernel_optimizer_step(const struct optimizer *optimizer) {
    return kernel_of(optimizer, steps, sizeof steps / sizeof *steps);
}

static void run_measure(void *argument) {
    struct optimizer_measure_argument *a = argument;
    a->args.scalars = &a->scalars;
    tensor_norms_measure_blocks(a->optimizer, &a->args, a->skip, a->begins, a->held, a->ends, a->sums);
}

/* One block of the grid per block of elements. */
static struct kernel_grid grid_measure(const void *argument) {
    const struct optimizer_measure_argument *a = argument;
    return (struct kernel_grid){.blocks = (uint32_t)tensor_norms_blocks(a->skip, a->args.count),
                                .threads = NORM_THREADS};
}

static const struct optimizer_kernel measures[] = {
    {"lamb",
     {.name = "lamb_norms",
      .fatbin = optimizer_fatbin,
      .run = run_measure,
      .grid = grid_measure,
      .argument_bytes = sizeof(struct optimizer_measure_argument)}},
};

const struct kernel *kernel_optimizer_measure(const struct optimizer *optimizer) {
    return kernel_of(optimizer, measures, sizeof measures / sizeof *measures);
}

/* ---- all ---- */

const struct kernel *const work_kernels[WORK_KERNELS] = {
    &kernel_cast_scaled,      &kernel_norm_blocks,      &kernel_norm_total,     &kernel_quantize_codes,
    &kernel_dequantize_codes, &kernel_dequantize_sum,   &kernel_gradient_take,  &kernel_matrix_normalize,
    &kernel_matrix_scale,     &kernel_matrix_transpose, &kernel_matrix_product,
};
