/* The element-wise and row-wise arithmetic of the GPT: everything that is not a matrix product. One source file,
 * kernels.inc, is compiled for several instruction sets; each compilation has a table. Arrays are row-major,
 * [rows][columns], without gaps unless a stride is given. Pure functions: any thread, nothing allocated. Different
 * tables agree to rounding, not to bits; one table always gives the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum norm_kind { LAYER_NORM, RMS_NORM, NORM_KINDS };
enum mlp_kind { GELU, SWIGLU, MLP_KINDS };

/* LayerNorm, row by row: y = (x - mean) * rstd * gain + bias. RMSNorm (Zhang and Sennrich 2019) has neither mean nor
 * bias, and computes rstd from x itself. */
struct norm_kernels {
    bool centred; /* the norm has a mean and a bias; else these arguments are NULL */

    /* also writes each row's mean and reciprocal standard deviation */
    void (*forward)(float *y, float *mean, float *rstd, const float *x, const float *gain, const float *bias,
                    uint32_t rows, uint32_t columns, float epsilon);
    /* computes the same y from the statistics that forward wrote */
    void (*recompute)(float *y, const float *x, const float *mean, const float *rstd, const float *gain,
                      const float *bias, uint32_t rows, uint32_t columns);
    /* dx = skip + the gradient through the norm, where skip is the gradient of the path around the norm (NULL: none).
     * Adds to dgain and dbias. */
    void (*backward)(float *dx, float *dgain, float *dbias, const float *skip, const float *dy,
                     const float *x, const float *mean, const float *rstd, const float *gain, uint32_t rows,
                     uint32_t columns);
};

/* The activation of an MLP, between its products. GELU, in tanh's form. SwiGLU (Shazeer 2020): x is [rows][2 columns],
 * gate and value side by side, y = gate / (1 + e^-gate) * value; it has no bias (NULL). */
struct mlp_kernels {
    /* x += bias, then y = activation(x), [rows][columns] */
    void (*forward)(float *y, float *x, const float *bias, uint32_t rows, uint32_t columns);
    /* Overwrites x, the input, with its gradient, and y, the output's gradient, with the output. Adds to dbias. */
    void (*backward)(float *x, float *y, float *dbias, uint32_t rows, uint32_t columns);
};

struct kernels {
    const char *name;

    void (*add)(float *y, const float *a, const float *b, size_t count); /* y = a + b; y may be a or b */
    void (*scale_add)(float *y, const float *x, float beta,
                      size_t count); /* y = beta y + x; beta 0 reads no y */

    void (*widen)(float *y, const uint16_t *x, size_t count);       /* from bf16, exact */
    void (*narrow)(uint16_t *y, const float *x, size_t count);      /* to bf16, to nearest even */
    void (*widen_fp16)(float *y, const uint16_t *x, size_t count);  /* exact */
    void (*narrow_fp16)(uint16_t *y, const float *x, size_t count); /* half to even; too large: infinity */

    /* y = x + bias in every row; y may be x. Rows of x and y are `stride` apart, also in column_sums. */
    void (*bias_add)(float *y, const float *x, const float *bias, uint32_t rows, uint32_t columns,
                     uint32_t stride);
    void (*column_sums)(float *sums, const float *x, uint32_t rows, uint32_t columns,
                        uint32_t stride); /* adds to sums */

    struct norm_kernels norm[NORM_KINDS];
    struct mlp_kernels mlp[MLP_KINDS];

    /* Rotates each of `heads` heads, of 2 * half columns side by side: pair (i, half + i) by the angle with cosine[i]
     * and sine[i]. `back`: by the negative angle. */
    void (*rotate)(float *x, const float *cosine, const float *sine, uint32_t heads, uint32_t half,
                   bool back);

    /* Row r of scores sees the last `window` of the columns 0 ... first + r: these become probabilities, the others 0.
     * lse: for each row, the logarithm of the sum of exponentials. */
    void (*softmax)(float *scores, float *lse, uint32_t stride, uint32_t first, uint32_t rows,
                    uint32_t columns, uint32_t window);
    /* p: scores become probabilities, by lse; dp: the gradient of the probabilities becomes the gradient of the scores.
     * dots: for each row, the sum of the output times its gradient. */
    void (*softmax_backward)(float *p, float *dp, const float *lse, const float *dots, uint32_t stride,
                             uint32_t first, uint32_t rows, uint32_t columns, uint32_t window);
    /* dots[r] = sum over columns of a[r] * b[r]; rows are `stride` apart */
    void (*row_dots)(float *dots, const float *a, const float *b, uint32_t stride, uint32_t rows,
                     uint32_t columns);

    /* y[columns][rows] = transpose of x[rows][columns]; ldx, ldy: elements from one row to the next. `streamed`: past the
     * caches where lines are whole, for a result that is too large for them. */
    void (*transpose)(float *y, uint64_t ldy, const float *x, uint64_t ldx, uint32_t rows, uint32_t columns,
                      bool streamed);

    /* One row of logits: returns -log softmax(x)[target]; x becomes its gradient times `scale` */
    double (*cross_entropy)(float *x, uint32_t columns, uint32_t target, float scale);
    /* The same of a row in several parts. First, for each part: the largest logit so far, and the sum of exponentials of
     * the logits less that one, go on (-infinity and 0 before the first part). Overwrites x. */
    void (*softmax_part)(float *x, uint32_t columns, float *most, float *total);
    /* Then, for each part: x = e^(x - most) * factor, which is softmax(x) where factor is 1 / total. */
    void (*softmax_of)(float *x, uint32_t columns, float most, float factor);
};

/* Tables that this processor can run, slowest first; NULL past the last. */
const struct kernels *kernels_at(uint32_t index);
const struct kernels *kernels_best(void);
