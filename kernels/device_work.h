/* The work that devices do on arrays, as kernels (engine/device/kernel.h): casts, norms, codes, sums, updates. The
 * host runs the functions of this folder; the GPU's kernels (*.cu) give the same bits.
 *
 * Arguments are plain data: pointers into memory that the device reaches, sizes in elements, types as enum dtype. */
#pragma once

#include "kernels/optimizer.h"
#include "kernels/tensor_norms.h"

struct kernel;

/* target[i] = source[i] * factor, in fp32, rounded to the target's type. factor 0: only the cast. Target and source
 * may begin at the same address if their types are equally wide; on the host also if the target is narrower. Several `rows` of
 * `count` elements begin `step` elements apart in the source, and `target_step` in the target. */
struct cast_scaled_argument {
    void *target;
    const void *source;
    uint64_t count, step, target_step; /* target_step 0: count */
    float factor;
    uint32_t target_dtype, source_dtype;
    uint32_t rows; /* 0: one */
};
extern const struct kernel kernel_cast_scaled;

/* norm_blocks: the sum of squares of each block of NORM_BLOCK_ELEMENTS (norm.h). norm_total: the sum of these sums,
 * in order, by one thread. `add`: goes on from the total's content. */
struct norm_blocks_argument {
    const void *elements;
    double *sums;
    uint64_t count;
    uint32_t dtype;
};
struct norm_total_argument {
    const double *sums;
    double *total;
    uint64_t count; /* number of sums */
    uint32_t add;
};
extern const struct kernel kernel_norm_blocks, kernel_norm_total;

/* See quantize.h. Several `rows` of `count` elements begin `step` elements apart; each has a code of its own, and the codes follow one
 * another. rows 0: one. */
struct quantize_codes_argument {
    void *code;
    const void *source;
    uint64_t count, step;
    uint32_t dtype, format; /* enum code_format */
    uint32_t rows;
};
struct dequantize_codes_argument {
    void *target;
    const void *code;
    uint64_t count, step;
    uint32_t dtype, format; /* enum code_format */
    uint32_t rows;
};
/* Adds the decoded elements of the members of each node in order, then those of the nodes, in fp32, and rounds once. Each member's
 * code has `count` elements. `add`: adds to the target's content, too. */
struct dequantize_sum_argument {
    void *target;
    const void *codes; /* the members' codes, one after another */
    uint64_t count;
    uint32_t members, dtype, format, add;
    uint32_t node_members; /* adjacent ones of each node; 0: all are of one node */
};
extern const struct kernel kernel_quantize_codes, kernel_dequantize_codes, kernel_dequantize_sum;

/* sum[i] = gradient[i], or sum[i] + gradient[i] in fp32, rounded. */
struct gradient_take_argument {
    void *sum;
    const void *gradient;
    uint64_t count;
    uint32_t dtype, add;
};
extern const struct kernel kernel_gradient_take;

/* Runs optimizer_update; `scalars` replaces args.scalars. */
struct optimizer_step_argument {
    struct optimizer_args args;
    struct optimizer_scalars scalars;
    const struct optimizer *optimizer; /* used only on the host */
};
/* The kernel for a row of `optimizers`, or for the row `before` of one. NULL: the program brings the optimizer, so no device has it. */
const struct kernel *kernel_optimizer_step(const struct optimizer *optimizer);

/* Runs tensor_norms_measure_blocks: the first part of the update of an optimizer that needs norms of whole tensors. kernel_norm_total
 * then adds up the sums. */
struct optimizer_measure_argument {
    struct optimizer_args args;
    struct optimizer_scalars scalars;
    const struct optimizer *optimizer; /* used only on the host */
    double *sums;
    struct tensor_cut *begins, *ends;
    uint32_t held, skip;
};
/* The kernel for a row of `optimizers` of scope TENSOR. NULL: there is none. */
const struct kernel *kernel_optimizer_measure(const struct optimizer *optimizer);

/* Steps of whole matrices (matrix_step.h) that only these have. */
extern const struct kernel kernel_matrix_normalize, kernel_matrix_scale, kernel_matrix_transpose,
    kernel_matrix_product;
/* The kernel of a step, and its argument; out_argument has room for any. */
struct matrix_step;
enum { MATRIX_ARGUMENT_BYTES = 128 };
const struct kernel *matrix_step_kernel(const struct matrix_step *step, void *out_argument);

/* All kernels of this header except those of the optimizers. */
enum { WORK_KERNELS = 11 };
extern const struct kernel *const work_kernels[WORK_KERNELS];
