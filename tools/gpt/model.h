/* The inside of the GPT: its units, and the declarations that the host's passes share. */
#pragma once

#include <stdatomic.h>

#include "tools/gpt/activations.h"
#include "tools/gpt/architecture.h"
#include "tools/gpt/backend.h"
#include "tools/gpt/checkpoints.h"
#include "tools/gpt/gpt.h"
#include "tools/gpt/math/kernels.h"
#include "tools/gpt/math/matmul.h"

/* A parameter. Between begin and end `param` and `grad` point to the engine's memory or to an fp32 copy. A parameter
 * that the architecture lacks has no elements. */
struct view {
    uint32_t rows, columns;
    uint64_t count;
    bool matrix;
    bool kept;        /* fp32 in the engine, where the compute type is narrower; a vector */
    bool adjoins;     /* to the parameter before it: one array, gradients too (zero_param_adjoins) */
    uint32_t sums_at; /* vectors: the index in a tile's partial sums */

    const void *param; /* fp32; matrices with bf16 compute: bf16 */
    float *grad;       /* in backward; NULL: frozen */
    int add;           /* 0: grad is overwritten */
};

struct unit {
    zero_unit *handle;
    zero_slot slot[UNIT_PARAMS_MAX]; /* index: architecture.h's enums */
    struct view view[UNIT_PARAMS_MAX];
    uint32_t sums; /* elements of all vectors */
};

/* Micro-steps of `batch` sequences of `length` tokens each, rows = batch * length. */
struct pass {
    uint32_t batch, length, rows, tiles;
    uint32_t known;  /* the first rows, which the last pass computed: their keys and values are still there */
    uint32_t micros; /* of each use */
    uint32_t micro;  /* the micro-step of the use that is computed now */
    const int32_t *tokens, *targets; /* of the micro-step in use; targets: NULL when only logits are wanted */
    float *logits;                   /* [vocab]: those of the last row */
    double divisor;                  /* of the sum of the targets' losses */
    float scale;                     /* of a target's gradient: the loss scale over the divisor */
    bool trains;                     /* a backward follows the forward */
    bool again;                      /* the use in progress is a forward that runs again */
    uint32_t block;                  /* of the vocabulary, whose unit is in use */
};

struct gpt {
    zero_engine *engine;
    struct gpt_config config;
    const struct architecture *architecture;
    const struct backend *backend;
    uint32_t batch;
    uint64_t granted[GPT_OUTPUT_KINDS]; /* places of outputs for which commit has found room */
    /* All units, in the order of use, and where the parts begin: the embedding's and the head's have vocab_blocks each. */
    struct unit *units, *embedding, *blocks, *head;
    uint32_t vocab_blocks;
    double divisor; /* gpt_set_divisor */
    struct pass pass;

    /* used by the host */
    uint32_t threads, thread_limit; /* thread_limit: the limit before the pass */
    bool bf16; /* compute: products of bf16 in fp32; all else, also fp16 products, is fp32 */
    const struct kernels *kernels;
    /* Convert the engine's 16-bit numbers. NULL: the engine has fp32. */
    void (*widen)(float *y, const uint16_t *x, size_t count);
    void (*narrow)(uint16_t *y, const float *x, size_t count);
    struct activations activations; /* of the micro-step in use */
    struct activations *micro;      /* of each */
    struct checkpoints checkpoints;
    atomic_int failed; /* a matrix product had no memory */

    struct cuda_gpt *cuda; /* used by the GPU */
};

/* Adds the units and their parameters to the engine. */
zero_status declare_units(struct gpt *gpt, struct zero_error *error);
/* The same for gpt_declare: all parameters share `slot`. Only the handles of `units` are set. */
zero_status declare_plan(zero_engine *engine, const struct gpt_config *config, zero_slot *slot,
                         struct unit *units);

/* After commit: sets `adjoins` of all views. */
void note_adjoining(struct gpt *gpt);

/* The number of blocks that the backward runs. Blocks below the lowest trained unit need no gradient. `units`: all, declared. */
uint32_t trained_blocks(const struct gpt_config *config, const struct unit *units);

/* passes.c: run the units in order, with the engine's begin and end around each. pass_forward runs up to the
 * head; the others go on from there: backward, evaluation, or logits. */
zero_status pass_forward(struct gpt *gpt);
zero_status pass_backward(struct gpt *gpt);
zero_status pass_evaluate(struct gpt *gpt);
zero_status pass_logits(struct gpt *gpt);

/* ---- the rest belongs to the host; backend.h says what its functions do ---- */

/* view.c */
void view_begin(struct gpt *gpt, struct unit *unit, bool backward);
void view_end(struct gpt *gpt, struct unit *unit, bool backward);

/* product.c: c[rows][n] = beta c + a[rows][k] weight, in the compute type; rows of a are lda apart. */
struct matrix weight_of(const struct gpt *gpt, const struct view *view, enum transpose form);
void product(struct gpt *gpt, uint32_t thread, uint32_t rows, uint32_t n, uint32_t k, const float *a,
             uint64_t lda, struct matrix weight, float beta, float *c, uint64_t ldc);

/* norm.c: a norm's parameters, and the statistics that its forward keeps for its backward. The functions handle rows
 * from `first` on; their arrays begin at that row. `sums`: of the rows' tile. */
struct norm {
    const struct view *weight, *bias;
    const struct statistics *statistics;
};
void norm_forward(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, const float *x,
                  float *y);
void norm_recompute(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, const float *x,
                    float *y);
void norm_backward(const struct gpt *gpt, struct norm norm, uint32_t first, uint32_t rows, float *sums,
                   const float *skip, const float *dy, const float *x, float *dx);

/* embedding.c: the residual stream is residual[0] ... residual[layers], its gradient is gradient[0] */
void embedding_forward(struct gpt *gpt);
void embedding_backward(struct gpt *gpt);

/* block_forward.c: residual[index] -> residual[index + 1]; block_backward.c: overwrites saved[index] */
void block_forward(struct gpt *gpt, uint32_t index, bool output);
void block_backward(struct gpt *gpt, uint32_t index);

/* head.c: computes the loss by groups of tiles, so logits of all rows never exist together. backend.h says what each does. */
void head_forward(struct gpt *gpt);
void head_backward(struct gpt *gpt);
void head_logits(struct gpt *gpt);

/* The first row of the block in use. */
static inline uint32_t block_first(const struct gpt *gpt) {
    return gpt->pass.block * gpt->config.vocab_block;
}

/* The place of tile `index`: its first row, and its number of rows in the pass. */
static inline uint32_t tile_first(const struct gpt *gpt, uint32_t index) {
    return gpt->pass.known + index * gpt->activations.tile_rows;
}
/* A thread's first row in scratch that has a tile per thread. */
static inline uint32_t scratch_first(const struct gpt *gpt, uint32_t thread) {
    return thread * gpt->activations.tile_rows;
}
static inline uint32_t tile_rows(const struct gpt *gpt, uint32_t index) {
    uint32_t left = gpt->pass.rows - tile_first(gpt, index);
    return left < gpt->activations.tile_rows ? left : gpt->activations.tile_rows;
}
static inline float *tile_partial(const struct gpt *gpt, uint32_t index) {
    return gpt->activations.partial + index * gpt->activations.partial_stride;
}

/* partial.c: gradients of vectors, which are sums over all rows. Each tile adds its own rows from 0; then the tiles are
 * added in order. The result depends neither on the schedule nor on the number of threads. */
void partial_clear(const struct gpt *gpt, const struct unit *unit, uint32_t tile);
void partial_finish(const struct gpt *gpt, const struct unit *unit);

/* A vector's place in its tile's sums; NULL: the architecture has no such vector. */
static inline float *sums_of(float *sums, const struct view *view) {
    return view->count ? sums + view->sums_at : NULL;
}
