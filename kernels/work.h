/* What the engine has devices do with arrays, as kernels (engine/device/kernel.h): casts, norms, codes, sums, updates. The
 * host's functions are those of this folder; a GPU's (work.cu) give the same bits.
 *
 * Arguments are plain: pointers into memory that the device reaches, sizes in elements, types as enum dtype. */
#ifndef ZERO_KERNELS_WORK_H
#define ZERO_KERNELS_WORK_H

#include "kernels/optimizer.h"

struct kernel;

/* target[i] = source[i] * factor, in fp32, rounded to the target's type; factor 0: the cast alone. The target may begin
 * where the source does, if the types are equally wide; on the host also if it is narrower. */
struct cast_scaled_argument {
    void *target;
    const void *source;
    uint64_t count;
    float factor;
    uint32_t target_dtype, source_dtype;
};
extern const struct kernel kernel_cast_scaled;

/* The sums of squares of blocks of NORM_BLOCK_ELEMENTS (norm.h), and of those the sum, in order, by one thread. */
struct norm_blocks_argument {
    const void *elements;
    double *sums;
    uint64_t count;
    uint32_t dtype;
};
struct norm_total_argument {
    const double *sums;
    double *total;
    uint64_t count; /* of sums */
};
extern const struct kernel kernel_norm_blocks, kernel_norm_total;

/* quantize.h. */
struct quantize_codes_argument {
    void *code;
    const void *source;
    uint64_t count;
    uint32_t dtype, bits;
};
struct dequantize_codes_argument {
    void *target;
    const void *code;
    uint64_t count;
    uint32_t dtype, bits;
};
/* The sum of the members' codes, each of `count` elements, in order, in fp32, rounded once; `add`: onto an fp32 target. */
struct dequantize_sum_argument {
    void *target;
    const void *codes; /* one after another */
    uint64_t count;
    uint32_t members, dtype, bits, add;
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

/* optimizer_update; `scalars` are what args.scalars stands for. */
struct optimizer_step_argument {
    struct optimizer_args args;
    struct optimizer_scalars scalars;
    const struct optimizer *optimizer; /* the host's alone */
};
/* Of a row of `optimizers`. NULL: the host program's own, which no device has. */
const struct kernel *kernel_optimizer_step(const struct optimizer *optimizer);

/* All of this header but the optimizers'. */
enum { WORK_KERNELS = 7 };
extern const struct kernel *const work_kernels[WORK_KERNELS];

#endif
