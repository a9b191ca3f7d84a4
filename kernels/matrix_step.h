/* A step of an optimizer's work on a whole matrix (optimizer.h): arithmetic on fp32 arrays, row by row. The host runs the steps of
 * orthogonalize.c; the GPU's kernels are in orthogonalize.cu and norm.cu. Both use the element functions below, and have the same bits. */
#pragma once

#include <math.h>
#include <stdbool.h>

#include "engine/base/numbers/convert.h"

enum matrix_step_kind {
    MATRIX_CAST,      /* out = a in bf16 */
    MATRIX_SQUARES,   /* out = sums of squares of blocks of a, in double (norm.h) */
    MATRIX_TOTAL,     /* out = their sum, in order */
    MATRIX_NORMALIZE, /* out = a / max(|a|, alpha); b: the total */
    MATRIX_TRANSPOSE, /* out = alpha * a^T */
    MATRIX_SCALE,     /* out = alpha * a */
    MATRIX_PRODUCT    /* out = alpha * a b + beta * d; without d: out = a b */
};

/* What a block of a GPU's threads makes: a square of a transposed matrix, a tile of a product. */
enum { MATRIX_SQUARE_SIDE = 32, MATRIX_TILE_ROWS = 64, MATRIX_TILE_COLUMNS = 128 };

struct matrix_step {
    const void *a, *b, *d;
    void *out;
    uint64_t rows, columns; /* of a; of a product: of out */
    uint64_t inner;         /* of a product */
    float alpha, beta;
    uint32_t kind;
    bool bf16; /* results are rounded to bf16; MATRIX_SQUARES: a is bf16 */
};

KERNEL_INLINE float matrix_rounded(float x, bool bf16) { return bf16 ? f32_from_bf16(bf16_from_f32(x)) : x; }

/* The norm that divides, of the sum of squares. */
KERNEL_INLINE float matrix_norm(double total, float least, bool bf16) {
    float norm = matrix_rounded((float)sqrt(total), bf16);
    return norm < least ? matrix_rounded(least, bf16) : norm;
}

KERNEL_INLINE float matrix_normal(float x, float norm, bool bf16) {
    return matrix_rounded(matrix_rounded(x, bf16) / norm, bf16);
}

KERNEL_INLINE float matrix_scaled(float x, float factor) { return canonical(factor * x); }

/* An element of a product, of its chain of multiply-adds. */
KERNEL_INLINE float matrix_finished(const struct matrix_step *s, uint64_t at, float sum) {
    const float *d = (const float *)s->d;
    return matrix_rounded(d ? fmaf(s->alpha, sum, s->beta * d[at]) : sum, s->bf16);
}
