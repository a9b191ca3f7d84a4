/* The inside of the GPT: its units, and what their forward and backward passes share. A unit's functions call
 * zero_*_begin and _end around themselves; between those the slots' pointers are valid. */
#ifndef ZERO_TOOLS_GPT_MODEL_H
#define ZERO_TOOLS_GPT_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/gpt/activations.h"
#include "tools/gpt/architecture.h"
#include "tools/gpt/gpt.h"
#include "tools/gpt/kernels.h"
#include "tools/gpt/matmul.h"

/* A parameter: what it is, and between begin and end where the arithmetic sees it: where the engine has it, or an fp32
 * copy. One that the architecture has not has no elements. */
struct view {
    uint32_t rows, columns;
    uint64_t count;
    bool matrix;
    uint32_t sums_at; /* of vectors: in a tile's partial sums */

    const void *param; /* fp32; of matrices as the engine has them: those of bf16, and the embedding's */
    float *grad;       /* in backward; NULL: frozen */
    int add;           /* 0: grad is overwritten */
};

struct unit {
    zero_unit *handle;
    zero_slot slot[UNIT_PARAMS_MAX]; /* indexed by architecture.h's enums */
    struct view view[UNIT_PARAMS_MAX];
    uint32_t sums; /* elements of all vectors */
};

/* One micro-step's batch: `batch` sequences of `length` tokens, rows = batch * length. */
struct pass {
    uint32_t batch, length, rows, tiles;
    const int32_t *tokens, *targets; /* targets: NULL when only logits are wanted */
    float loss_scale;                /* of the gradient of the mean loss */
};

struct gpt {
    zero_engine *engine;
    struct gpt_config config;
    const struct architecture *architecture;
    uint32_t batch, threads;
    bool bf16; /* compute: products of bf16 in fp32; all else is fp32, of fp16 the products too */
    const struct kernels *kernels;
    void (*widen)(float *y, const uint16_t *x,
                  size_t count); /* what the engine has in 16 bits; NULL: it has fp32 */
    void (*narrow)(uint16_t *y, const float *x, size_t count);
    struct unit embedding, head, *blocks;
    struct activations activations;
    struct pass pass;
    atomic_int failed; /* a matrix product had no memory */
};

/* Adds the units and their parameters to the engine. */
zero_status declare_units(struct gpt *gpt);

/* view.c: the engine's begin and end, and the views in between. */
zero_status unit_forward_begin(struct gpt *gpt, struct unit *unit);
zero_status unit_backward_begin(struct gpt *gpt, struct unit *unit);
zero_status unit_backward_end(struct gpt *gpt, struct unit *unit);

/* product.c: c[rows][n] = beta c + a[rows][k] weight, in the type of compute; rows of a are lda apart. */
struct matrix weight_of(const struct gpt *gpt, const struct view *view, enum transpose form);
void product(struct gpt *gpt, uint32_t thread, uint32_t rows, uint32_t n, uint32_t k, const float *a,
             uint64_t lda, struct matrix weight, float beta, float *c, uint64_t ldc);

/* norm.c: a norm's parameters, and the statistics that its forward leaves for the backward. Rows are those from `first`
 * on; the arrays begin there. `sums`: of the rows' tile. */
struct norm {
    const struct view *weight, *bias;
    const struct statistics *statistics;
};
void norm_forward(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, const float *x,
                  float *y);
void norm_again(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, const float *x,
                float *y);
void norm_backward(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, float *sums,
                   const float *skip, const float *dy, const float *x, float *dx);

/* embedding.c: residual[0] from tokens; the gradients from the residual stream's gradient. */
zero_status embedding_forward(struct gpt *gpt);
zero_status embedding_backward(struct gpt *gpt, const float *gradient);

/* block.c: residual[index] -> residual[index + 1]; `gradient` of the latter -> *out_gradient of the former, in the
 * other of activations.gradient. Backward consumes saved[index]. */
zero_status block_forward(struct gpt *gpt, uint32_t index);
zero_status block_recompute(struct gpt *gpt, uint32_t index,
                            bool output); /* false: leaves saved[index] alone */
zero_status block_backward(struct gpt *gpt, uint32_t index, float *gradient, float **out_gradient);

/* head.c: the loss is computed tile group by tile group, so logits of all rows never exist. In training that
 * happens in the backward, where the gradients can be written at once; the forward then is empty. */
zero_status head_evaluate(struct gpt *gpt, double *out_loss);
zero_status head_backward(struct gpt *gpt, double *out_loss, float **out_gradient);
zero_status head_logits(struct gpt *gpt, float *out_logits); /* of the last row */

/* Where tile `index` lies: its first row, and how many rows of the pass it has. */
static inline uint32_t tile_first(const struct gpt *gpt, uint32_t index) {
    return index * gpt->activations.tile_rows;
}
static inline uint32_t tile_rows(const struct gpt *gpt, uint32_t index) {
    uint32_t left = gpt->pass.rows - tile_first(gpt, index);
    return left < gpt->activations.tile_rows ? left : gpt->activations.tile_rows;
}
static inline float *tile_partial(const struct gpt *gpt, uint32_t index) {
    return gpt->activations.partial + index * gpt->activations.partial_stride;
}

/* partial.c: gradients of vectors, which are sums over all rows. A tile adds up its own rows from 0; then the tiles are
 * added in order, so that neither the schedule nor the number of threads matters. */
void partial_clear(const struct gpt *gpt, const struct unit *unit, uint32_t tile);
void partial_finish(const struct gpt *gpt, const struct unit *unit);

/* Where a vector's sums lie in its tile's; NULL: the architecture has no such vector. */
static inline float *sums_of(float *sums, const struct view *view) {
    return view->count ? sums + view->sums_at : NULL;
}

#endif
