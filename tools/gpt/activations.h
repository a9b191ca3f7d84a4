/* The memory of one forward and backward. One function lays it out in one allocation, and also computes its size.
 * In the sizes below: rows = batch * context; one task handles tile_rows rows, so that they stay in its cache. */
#pragma once

#include "tools/gpt/architecture.h"
#include "tools/gpt/gpt.h"

enum {
    /* With inner = 4 * width = 1,536, a tile of the MLP's middle is 768 KiB: less than the L2. */
    TILE_ROWS_MAX = 128,
    QUERY_ROWS = 64, /* attention computes the scores of this many queries at a time */
    HEAD_TILES = 8,  /* at least: the head's logits exist for this many tiles at a time */
    /* Rows of a weight's gradient per task: as fast as the whole product, and balances the load. */
    PANEL_ROWS = 192
};

/* Statistics of each row, for the norm's backward. mean: NULL for a norm without a mean. */
struct statistics {
    float *mean, *rstd; /* [rows] */
};

/* The arrays that a block's forward keeps for its backward. */
struct saved {
    float *middle; /* [rows][width]: the residual stream between attention and MLP */
    float *qkv;    /* [rows][qkv]; the backward overwrites it with its gradient */
    float *mixed;  /* [rows][query]: attention's output, before its projection */
    /* [rows][wide]: input of the MLP's activation, bias included; the backward overwrites it with its gradient */
    float *wide;
    float *lse; /* [batch][heads][context] */
    struct statistics norm1, norm2;
    /* Of an architecture that norms heads, else NULL: queries and keys before their norm, and its statistics. */
    float *raw, *raw_rstd; /* [rows][query + key], [rows][heads + kv_heads] */
};

/* A block's backward computes its forward again, for one micro-batch at a time. */
static inline bool recomputes_in_use(const struct gpt_config *c) {
    return c->micros > 1 && c->recompute == 1;
}

/* Recomputation keeps the inputs of so many segments; the last one's stay in memory. Where backwards compute blocks again in use,
 * the head counts as a segment, because its input is kept like that of a block. 0: no recomputation. */
static inline uint32_t checkpoint_segments(const struct gpt_config *c) {
    if (recomputes_in_use(c)) return c->layers + 1;
    return c->recompute ? (c->layers - 1) / c->recompute + 1 : 0;
}

/* Places in a GPU's pinned memory, from which inputs of segments go to the drive. */
enum { CUDA_CHECKPOINT_SLOTS = 4 };

/* The inputs of so many segments, the last ones, never go to the drive: on a GPU those of two segments are on the device, and those
 * before them in pinned memory. */
static inline uint32_t checkpoints_kept(const struct gpt_config *c) {
    return c->gpu && !recomputes_in_use(c) ? 2 + CUDA_CHECKPOINT_SLOTS : 1;
}

/* The inputs of segments go to the drive: of so many, the first ones. */
static inline uint32_t checkpoints_leave(const struct gpt_config *c) {
    uint32_t segments = checkpoint_segments(c), kept = checkpoints_kept(c);
    return c->checkpoints == ZERO_NVME && segments > kept ? segments - kept : 0;
}

/* Slots of checkpoints.h in memory: beside one for each micro-batch one that is made, and one that still leaves or comes; on a GPU, whose
 * copies are late, two more. */
static inline uint32_t checkpoint_slots(const struct gpt_config *c) {
    uint32_t most = checkpoint_segments(c) * c->micros, slots = c->micros + (c->gpu ? 4 : 2);
    return slots < most ? slots : most;
}

/* residual[index] is the input of a segment. */
static inline bool checkpoint_at(const struct gpt_config *c, uint32_t index) {
    return index == c->layers ? recomputes_in_use(c) : c->recompute && index % c->recompute == 0;
}

struct arena {
    uint64_t bytes;
    void *memory;
};

/* Where a use has several micro-batches, each of them has one of these. The residual stream and its gradient, the arrays that blocks
 * leave for their backward, and the loss are its own; all other arrays are shared.
 *
 * With recomputation, every config.recompute blocks form a segment. The input of the segment's first block is kept as a
 * checkpoint. All other arrays of blocks exist config.recompute times, and the segments share them. If checkpoints go to the drive,
 * all micro-batches share its slots. */
/* Runs of rows that attend to each other alone (host.c). */
struct sequences {
    uint32_t count;
    uint32_t *first;    /* [count + 1 of rows + 1]: the first row of each; then the number of rows */
    uint32_t *position; /* [rows]: of a row in its sequence */
};

struct activations {
    struct arena device, cpu; /* cpu: checkpoints, if they are kept there */
    float **residual;         /* [layers + 1][rows][width]: input of block i; the last is the head's input */
    /* If they go to the drive: the slots of checkpoints.h, to which residual then points. */
    float *checkpoints;
    struct saved *saved;    /* [layers] */
    float *cosine, *sine;   /* [context][head_width / 2]: of rotary positions, or NULL */
    struct statistics norm; /* of the head */
    struct sequences sequences;
    double *row_loss; /* [rows] */
    /* Only with several blocks of the vocabulary, else NULL: of each row's logits so far, the largest, the sum of exponentials
     * from there, and the target's. */
    float *row_most, *row_total, *row_wanted; /* [rows] */

    /* [rows][width]: of the residual stream, between units the first; the two alternate */
    float *gradient[2];

    /* scratch of one unit at a time */
    float *mixed_gradient; /* [rows][query] */
    float *norm1,
        *norm2;   /* [rows][width]; with several blocks of the vocabulary, all units of the head use them */
    float *inner; /* [rows][inner]: after the MLP's activation */
    float *turned[PROJECTIONS]; /* fp32, fp16: a block's weights, transposed, by panels of columns */
    float *logits;              /* [head rows][vocab, or a block's rows of it]; then their gradient */
    float *partial; /* [tiles][partial_stride]: a tile's sums for biases and norms, added in tile order */
    float *strips;  /* per thread: strip_elements */

    /* only with bf16 and fp16, else NULL */
    float *wide_params; /* of one unit at a time: its vectors; with fp16 all its parameters */
    float *wide_grads;  /* all gradients of the unit */

    /* only with bf16, else NULL */
    uint16_t *operands; /* per thread, operand_elements: the left factor of a product */
    uint16_t *rounded;  /* right factors of weights' gradients, all rows; as many as one phase needs */

    uint32_t rows, tile_rows, tiles, head_rows;
    uint32_t strip_stride;
    uint64_t partial_stride, strip_elements, operand_elements;
};

/* Of the input of a segment, where it goes to the drive. */
uint64_t checkpoint_place_bytes(const struct gpt_config *config, uint32_t batch, zero_dtype dtype);

/* `out`: config->micros of them; the first owns the memory. Returns ZERO_E_MEMORY if there is no memory. `config` is complete and
 * valid. */
zero_status activations_create(struct activations *out, const struct gpt_config *config, uint32_t batch,
                               uint32_t threads, zero_dtype compute);
void activations_destroy(struct activations *activations);
