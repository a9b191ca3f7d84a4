/* The inside of the GPT: its units, and what their forward and backward passes share. A unit's functions call
 * zero_*_begin and _end around themselves; between those the slots' pointers are valid. */
#ifndef ZERO_TOOLS_GPT_MODEL_H
#define ZERO_TOOLS_GPT_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/gpt/activations.h"
#include "tools/gpt/gpt.h"
#include "tools/gpt/kernels.h"
#include "tools/gpt/matmul.h"

enum embedding_param { TOKEN_WEIGHT, POSITION_WEIGHT, EMBEDDING_PARAMS };
enum block_param {
    NORM1_WEIGHT,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECT_WEIGHT,
    PROJECT_BIAS,
    NORM2_WEIGHT,
    NORM2_BIAS,
    WIDEN_WEIGHT,
    WIDEN_BIAS,
    NARROW_WEIGHT,
    NARROW_BIAS,
    BLOCK_PARAMS
};
enum head_param { FINAL_WEIGHT, FINAL_BIAS, HEAD_WEIGHT, HEAD_PARAMS };
enum { UNIT_PARAMS_MAX = BLOCK_PARAMS };

/* A parameter between begin and end, as the arithmetic sees it: where the engine has it, or an fp32 copy. */
struct view {
    const void *param; /* fp32; bf16 compute: of matrices, bf16 */
    float *grad;       /* in backward; NULL: frozen */
    int add;           /* 0: grad is overwritten */
};

struct unit {
    zero_unit *handle;
    zero_slot slot[UNIT_PARAMS_MAX]; /* indexed by the enums above */
    struct view view[UNIT_PARAMS_MAX];
    uint64_t count[UNIT_PARAMS_MAX];
    bool matrix[UNIT_PARAMS_MAX];
    uint32_t params;
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
    uint32_t batch, threads;
    bool bf16; /* compute: products of bf16 in fp32; all else is fp32 */
    const struct kernels *kernels;
    struct unit embedding, head, *blocks;
    struct activations activations;
    struct pass pass;
    atomic_int failed; /* a matrix product had no memory */
};

struct gpt_config gpt_complete(const struct gpt_config *config); /* defaults filled in */

/* Adds the units and their parameters to the engine. */
zero_status declare_units(struct gpt *gpt);

/* view.c: the engine's begin and end, and the views in between. */
zero_status unit_forward_begin(struct gpt *gpt, struct unit *unit);
zero_status unit_backward_begin(struct gpt *gpt, struct unit *unit);
zero_status unit_backward_end(struct gpt *gpt, struct unit *unit);

/* product.c: c[rows][n] = beta c + a[rows][k] weight, in the type of compute. */
struct matrix weight_of(const struct gpt *gpt, const struct view *view, uint64_t ld, enum transpose form);
void product(struct gpt *gpt, uint32_t thread, uint32_t rows, uint32_t n, uint32_t k, const float *a,
             struct matrix weight, float beta, float *c, uint64_t ldc);

/* embedding.c: residual[0] from tokens; the gradients from the residual stream's gradient. */
zero_status embedding_forward(struct gpt *gpt);
zero_status embedding_backward(struct gpt *gpt, const float *gradient);

/* block.c: residual[index] -> residual[index + 1]; `gradient` of the latter -> *out_gradient of the former, in the
 * other of activations.gradient. Backward consumes saved[index]. */
zero_status block_forward(struct gpt *gpt, uint32_t index);
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

/* partial.c: gradients that are sums over all rows. A tile adds up its own rows from 0; then the tiles are added in
 * order, so that neither the schedule nor the number of threads matters. */
struct partial {
    const struct view *view;
    uint32_t first, count; /* elements of a tile's partial sums */
};
void partial_clear(const struct gpt *gpt, uint32_t tile, uint64_t count);
void partial_finish(const struct gpt *gpt, const struct partial *partials, uint32_t count);

#endif
