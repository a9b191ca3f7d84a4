/* The GPU's memory of one forward and backward, and the pinned host memory. One function lays each of them out in one
 * allocation, and computes the sizes. The file uses no CUDA, so machines without CUDA can plan with it. */
#pragma once

#include "engine/zero.h"
#include "tools/gpt/activations.h"
#include "tools/gpt/cuda/kernels/kernels.h"
#include "tools/gpt/gpt.h"

/* Statistics of each row. mean: NULL for a norm without a mean. */
struct cuda_statistics {
    float *mean, *rstd;
};

/* The arrays that a block's forward keeps for its backward. */
struct cuda_saved {
    void *middle; /* [rows][width]: the residual stream between attention and MLP */
    void *qkv;    /* [rows][qkv]: rotated, bias included */
    void *mixed;  /* [rows][query] */
    void *wide;   /* [rows][wide]: input of the MLP's activation; SwiGLU's backward overwrites it */
    /* What norms and the activation give: kept, or in the scratch of all blocks, so that a backward computes it again. */
    void *normed1, *normed2; /* [rows][width] */
    void *inner;             /* [rows][inner] */
    float *lse;              /* [batch][heads][context] */
    struct cuda_statistics norm1, norm2;
    /* Of an architecture that norms heads, else NULL: queries and keys before their norm, and its statistics. */
    void *raw;       /* [rows][query + key] */
    float *raw_rstd; /* [rows][heads + kv_heads] */
};

/* The arrays of a micro-batch that wait from one unit to another. */
struct cuda_set {
    void **residual;          /* [layers + 1] of [rows][width] */
    struct cuda_saved *saved; /* [layers] */
    void *gradient;           /* [rows][width]: of the residual stream */
    /* [parts][width], right behind it: of the gradient[0] or [1] that a norm's backward wrote last; NULL: no bias needs them */
    float *stream_sums;
};

/* The rows sorted by a number of each, in groups of the same number (kernels.h, embedding_backward). */
struct cuda_groups {
    int32_t *number;
    uint32_t *order, *first, *count;
};

/* A micro-step's batch: filled in pinned memory and copied as a whole. */
struct cuda_batch {
    int32_t *tokens, *targets;
    struct cuda_groups by_token;
    /* Only with config.documents, else NULL: of each row its place in its document; the first row of the document, and the row behind
     * it, in its sequence. by_position: where there is a table of positions. */
    uint32_t *position, *begins, *ends;
    struct cuda_groups by_position;
};

enum { DRIVE_BYTES = 4096 }; /* alignment of what goes to the drive */

/* All in device memory, except `kept`, `set`, the arrays `residual` and `saved` and the members named pinned or described as
 * pinned. */
struct cuda_memory {
    char *device, *pinned; /* NULL: nothing is allocated yet */
    /* pinned begins at its first multiple of DRIVE_BYTES: a small allocation begins anywhere */
    char *pinned_whole;
    uint64_t bytes, pinned_bytes, batch_bytes;
    char *outputs; /* an allocation of its own, after commit: outputs that are kept because there is room */
    uint64_t outputs_bytes;
    /* In either allocation: places whose outputs are kept; of attention and MLP, blocks that keep theirs. */
    uint32_t kept[GPT_OUTPUT_KINDS];
    uint32_t rows, head_rows; /* head_rows: logits exist for this many rows at a time */
    uint64_t logits_stride;

    struct cuda_set *set; /* [cuda_sets]; NULL: only compute sizes */
    void **residual;      /* of the set in use, as `saved`, gradient[0] and stream_sums */
    struct cuda_saved *saved;
    char *checkpoints; /* pinned [cuda_checkpoint_slots][micro-batches][checkpoint_bytes] */
    /* Or, of micro-batches that wait (waiting.c): pinned, or in device memory, with config.checkpoints ZERO_DEVICE. */
    char *inputs;    /* [layers + 1][micro-batches][checkpoint_bytes]; or the slots of checkpoints.h */
    char *gradients; /* [micro-batches][gradient_bytes] */
    uint64_t checkpoint_bytes, gradient_bytes; /* gradient_bytes: and the sums behind it */
    struct cuda_statistics norm;
    float *cosine, *sine; /* [context][head_width / 2], or NULL */

    /* scratch */
    void *gradient[2]; /* [rows][width]: of the residual stream; of its value between attention and MLP */
    void *normed;      /* [rows][width] */
    /* [rows][width]: a sum over products, which nothing rounds; in between, scratch of attention */
    float *normed_gradient;
    void *inner;                         /* [rows][inner]; NULL if all are kept in any case */
    void *inner_gradient;                /* [rows][inner] */
    void *mixed_gradient, *qkv_gradient; /* [rows][query], [rows][qkv] */
    void *logits;                        /* [head_rows][logits_stride] */
    float *head_sums; /* [vocab][width]: the head's gradient so far; NULL: it needs one product, or is fp32 */
    float *sums, *dots, *loss, *workspace; /* sums: [2][parts][widest vector]; loss: [rows] */
    float *stream_sums;
    /* [rows]: with several blocks of the vocabulary (loss_part), else NULL */
    float *row_most, *row_total, *row_wanted;
    struct cuda_batch batch; /* of the micro-batch in use; pinned: cuda_pinned_batch */

    float *pinned_loss;  /* [micro-batches][rows] */
    void *pinned_logits; /* [vocab] */
};

/* Threads of a block of norm_back, and its parts at most: few rows make short parts, so that the GPU has enough of them. */
static inline uint32_t cuda_norm_threads(uint64_t columns, uint64_t widest) {
    return (uint32_t)((columns + widest * WARP - 1) / (widest * WARP) * WARP);
}
static inline uint32_t cuda_norm_parts_most(uint64_t rows, uint64_t columns, uint64_t widest) {
    uint64_t most = NORM_THREADS / cuda_norm_threads(columns, widest);
    return (uint32_t)(rows < most ? rows : most ? most : 1);
}

/* The scratch of attention's backward by warpgroups (struct attention_argument), for `sequences` times heads in tiles of width `tile`:
 * its sums, what begins with zeros behind them, and all of it, in numbers of 4 bytes. */
static inline uint64_t cuda_attention_sums(uint32_t tile, uint64_t sequences, uint64_t length) {
    uint64_t step = WARPGROUP_STEP(tile);
    return sequences * ((length + step - 1) / step) * (WARPGROUP_THREADS / WARP) * WARPGROUP_PART;
}
static inline uint64_t cuda_attention_zeros(uint64_t sequences) { return 1 + 2 * sequences; }
static inline uint64_t cuda_attention_floats(uint32_t tile, uint64_t sequences, uint64_t length) {
    return cuda_attention_sums(tile, sequences, length) + cuda_attention_zeros(sequences) +
           2 * sequences * length;
}

/* The number of recomputed segments; 0: no recomputation. */
static inline uint32_t cuda_segments(const struct gpt_config *config) {
    return config->recompute ? (config->layers - 1) / config->recompute + 1 : 0;
}

/* Sets of the arrays of a micro-batch: one for each micro-batch, or two that take turns. */
static inline uint32_t cuda_sets(const struct gpt_config *config) {
    return recomputes_in_use(config) ? 2 : config->micros;
}

/* Places in pinned memory for the inputs of segments, of each micro-batch. Those of the last two segments stay on the device. */
static inline uint32_t cuda_checkpoint_slots(const struct gpt_config *config) {
    uint32_t segments = recomputes_in_use(config) ? 0 : cuda_segments(config),
             away = config->checkpoints != ZERO_DEVICE && segments > 2 ? segments - 2 : 0;
    return config->checkpoints == ZERO_NVME && away > CUDA_CHECKPOINT_SLOTS ? CUDA_CHECKPOINT_SLOTS : away;
}

/* Sets all members from memory->device, ->pinned and ->set, whose first set is then in use. `config` is complete. */
void cuda_layout(struct cuda_memory *memory, const struct gpt_config *config, uint32_t batch,
                 zero_dtype type);

/* The batch of a micro-batch, in pinned memory. */
struct cuda_batch cuda_pinned_batch(const struct cuda_memory *memory, const struct gpt_config *config,
                                    uint32_t micro);

/* Micro-batches use set `index` from now on. */
static inline void cuda_use_set(struct cuda_memory *m, uint32_t index) {
    m->residual = m->set[index].residual, m->saved = m->set[index].saved;
    m->gradient[0] = m->set[index].gradient, m->stream_sums = m->set[index].stream_sums;
}

/* As cuda_layout, with `kept` places in memory->outputs: also sets outputs_bytes, and where blocks have their outputs. */
void cuda_layout_outputs(struct cuda_memory *memory, const struct gpt_config *config, uint32_t batch,
                         zero_dtype type, const uint32_t kept[GPT_OUTPUT_KINDS]);
