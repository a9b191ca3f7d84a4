/* Declarations that the block's forward and backward share. */
#pragma once

#include "tools/gpt/model.h"

enum {
    CUT_WIDTH = 1024, /* of the model */
    CUT_ROWS = 512,
};

/* The context of a block's tasks. */
struct block {
    struct gpt *gpt;
    struct unit *unit;
    const struct saved *saved;
    const float *input; /* residual[index] */
    float *output;      /* forward: residual[index + 1]; NULL: no function reads it */
    float *gradient;    /* backward: gradient of the output, later of the input */
    float *middle_gradient;
    /* Columns: of mixed, of qkv, of the MLP's middle, of the input of the middle. */
    uint32_t query, qkv, inner, wide;
    uint32_t window;
    bool cut; /* products are cut by columns (steps.h) */
};

/* Of few rows a tile per thread is small, and each thread reads all weights. Of a narrow model the panels are small. bf16 products
 * round their rows for each panel. */
static inline bool cuts_columns(const struct gpt *gpt) {
    return !gpt->bf16 && !gpt->pass.known && gpt->config.width >= CUT_WIDTH && gpt->pass.rows <= CUT_ROWS;
}

static inline struct block block_at(struct gpt *gpt, uint32_t index) {
    return (struct block){.gpt = gpt,
                          .unit = &gpt->blocks[index],
                          .saved = &gpt->activations.saved[index],
                          .input = gpt->activations.residual[index],
                          .output = gpt->activations.residual[index + 1],
                          .gradient = gpt->activations.gradient[0],
                          .middle_gradient = gpt->activations.gradient[1],
                          .query = (uint32_t)extent_of(&gpt->config, QUERY),
                          .qkv = (uint32_t)extent_of(&gpt->config, QKV),
                          .inner = gpt->config.inner,
                          .wide = (uint32_t)projection_outputs(&gpt->config, PROJECT_WIDEN),
                          .window = window_of(&gpt->config, index),
                          .cut = cuts_columns(gpt)};
}

/* A tile's first row in scratch: a tile of all rows if its steps wait for each other, else of the thread, whose cache has it. */
static inline uint64_t block_scratch(const struct block *b, uint32_t tile, uint32_t thread) {
    return scratch_first(b->gpt, b->cut ? tile : thread);
}

/* The values of a vector; NULL: the architecture has no such vector. */
static inline const float *param(const struct block *b, enum block_param index) {
    return b->unit->view[index].param;
}

static inline struct norm first_norm(const struct block *b) {
    return (struct norm){&b->unit->view[NORM1_WEIGHT], &b->unit->view[NORM1_BIAS], &b->saved->norm1};
}
static inline struct norm second_norm(const struct block *b) {
    return (struct norm){&b->unit->view[NORM2_WEIGHT], &b->unit->view[NORM2_BIAS], &b->saved->norm2};
}

/* The biases of the columns of qkv: one of all, or three side by side. */
static inline bool qkv_bias(const struct block *b, uint32_t index, uint32_t *at, const struct view **out) {
    static const enum block_param biases[] = {QUERY_BIAS, KEY_BIAS, VALUE_BIAS};
    if (index == sizeof biases / sizeof *biases) return false;
    *at += index ? (uint32_t)b->unit->view[biases[index - 1]].count : 0;
    *out = &b->unit->view[biases[index]];
    return true;
}

/* head_norm.c: the norms of queries and keys, of rows from `first` on, if the architecture has them. Forward: before their
 * positions. Backward: replaces their gradients in saved->qkv; adds to the sums of the norms' weights. */
void head_norm_forward(const struct block *block, uint32_t first, uint32_t rows);
void head_norm_backward(const struct block *block, uint32_t first, uint32_t rows, float *sums);
