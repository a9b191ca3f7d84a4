/* The memory of one forward and backward: one allocation, cut up by one function, which also gives its size.
 * In sizes below: rows = batch * context; tile rows are handled by one task, so that they stay in its cache. */
#ifndef ZERO_TOOLS_GPT_ACTIVATIONS_H
#define ZERO_TOOLS_GPT_ACTIVATIONS_H

#include <stdint.h>

#include "tools/gpt/architecture.h"
#include "tools/gpt/gpt.h"

enum {
    TILE_ROWS_MAX =
        128,         /* with inner = 4 * width = 1,536, a tile of the MLP's middle is 768 KiB: below the L2 */
    QUERY_ROWS = 64, /* attention works on strips of scores of this many queries */
    HEAD_TILES = 8,  /* at least: the head's logits live for this many tiles at a time */
    PANEL_ROWS = 192 /* of a weight's gradient, per task: as fast as the whole product, and balances */
};

/* Of each row, for the norm's backward; mean: where the kind of norm has one. */
struct statistics {
    float *mean, *rstd; /* [rows] */
};

/* What a block's forward leaves for its backward. */
struct saved {
    float *middle; /* [rows][width]: the residual stream between attention and MLP */
    float *qkv;    /* [rows][qkv]; the backward puts its gradient here */
    float *mixed;  /* [rows][query]: attention's output, before its projection */
    float *
        wide; /* [rows][wide]: before the MLP's activation, bias included; the backward puts its gradient here */
    float *lse; /* [batch][heads][context] */
    struct statistics norm1, norm2;
};

struct arena {
    uint64_t bytes;
    void *memory;
};

/* Where blocks are computed again, config.recompute at a time, what enters the first of those is a checkpoint; all else
 * that blocks leave has that many places, which such segments share. */
struct activations {
    struct arena device, cpu; /* cpu: checkpoints, where they are there */
    float **residual;         /* [layers + 1][rows][width]: what enters block i; the last enters the head */
    struct saved *saved;      /* [layers] */
    float *cosine, *sine;     /* [context][head_width / 2]: of rotary positions; else NULL */
    struct statistics norm;   /* the head's */
    double *row_loss;         /* [rows] */

    /* scratch of one unit at a time */
    float *gradient[2];         /* [rows][width]: of the residual stream, in turn */
    float *mixed_gradient;      /* [rows][query] */
    float *norm1, *norm2;       /* [rows][width] */
    float *inner;               /* [rows][inner]: after the MLP's activation */
    float *turned[PROJECTIONS]; /* fp32, fp16: a block's weights, transposed */
    float *logits;              /* [head rows][vocab]; then their gradient */
    float *partial; /* [tiles][partial_stride]: a tile's sums for biases and norms, added in order of tiles */
    float *strips;  /* per thread: strip_elements */

    /* bf16 and fp16; else NULL */
    float *wide_params; /* of one unit at a time: its vectors; fp16: all of it */
    float *wide_grads;  /* and all its gradients */

    /* bf16 alone; else NULL */
    uint16_t *operands; /* per thread: operand_elements, a product's left factor */
    uint16_t *rounded;  /* right factors of weights' gradients: all rows of as many as one phase has */

    uint32_t rows, tile_rows, tiles, head_rows;
    uint32_t strip_stride;
    uint64_t partial_stride, strip_elements, operand_elements;
};

/* ZERO_E_MEMORY; `config` is complete and valid. */
zero_status activations_create(struct activations *out, const struct gpt_config *config, uint32_t batch,
                               uint32_t threads, zero_dtype compute);
void activations_destroy(struct activations *activations);

#endif
