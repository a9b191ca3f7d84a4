/* x -> m = x + project(attention(norm1(x))) -> m + narrow(mlp(widen(norm2(m)))), in three phases: tiles up to the
 * queries, keys and values; heads; tiles to the end. */
#include <string.h>

#include "tools/gpt/attention.h"
#include "tools/gpt/block.h"
#include "tools/gpt/parallel.h"
#include "tools/gpt/projection.h"
#include "tools/gpt/rotary.h"

/* y = x + bias in every row of `width` columns; without a bias y = x. */
static void add_bias(const struct block *b, enum block_param bias, const float *x, uint32_t rows, float *y) {
    uint32_t width = b->gpt->config.width;
    if (param(b, bias))
        b->gpt->kernels->bias_add(y, x, param(b, bias), rows, width, width);
    else
        memcpy(y, x, (size_t)rows * width * sizeof *y);
}

static void add_qkv_biases(const struct block *b, uint32_t rows, float *qkv) {
    const struct view *bias;
    for (uint32_t i = 0, at = 0; qkv_bias(b, i, &at, &bias); i++)
        if (bias->count)
            b->gpt->kernels->bias_add(qkv + at, qkv + at, bias->param, rows, (uint32_t)bias->count, b->qkv);
}

static void before_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    float *norm = gpt->activations.norm1 + (uint64_t)scratch_first(gpt, thread) * width;
    float *qkv = b->saved->qkv + (uint64_t)first * b->qkv;
    norm_forward(gpt, first_norm(b), first, rows, b->input + (uint64_t)first * width, norm);
    projection_forward(b, PROJECT_QKV, thread, rows, norm, 0, qkv);
    add_qkv_biases(b, rows, qkv);
    head_norm_forward(b, first, rows);
    rotary_turn(gpt, qkv, b->qkv, gpt->config.heads + gpt->config.kv_heads, first, rows, false);
}

static void attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    attention_forward(b->gpt, b->saved, b->window, index, thread);
}

static void after_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct activations *a = &gpt->activations;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width, scratch = scratch_first(gpt, thread);
    float *middle = b->saved->middle + at, *wide = b->saved->wide + (uint64_t)first * b->wide;
    float *norm = a->norm2 + scratch * width, *inner = a->inner + scratch * b->inner;

    add_bias(b, PROJECT_BIAS, b->input + at, rows, middle);
    projection_forward(b, PROJECT_MIXED, thread, rows, b->saved->mixed + (uint64_t)first * b->query, 1,
                       middle);
    norm_forward(gpt, second_norm(b), first, rows, middle, norm);
    projection_forward(b, PROJECT_WIDEN, thread, rows, norm, 0, wide);
    gpt->kernels->mlp[gpt->architecture->mlp].forward(inner, wide, param(b, WIDEN_BIAS), rows, b->inner);
    if (!b->output) return;
    add_bias(b, NARROW_BIAS, middle, rows, b->output + at);
    projection_forward(b, PROJECT_NARROW, thread, rows, inner, 1, b->output + at);
}

void block_forward(struct gpt *gpt, uint32_t index, bool output) {
    struct block b = block_at(gpt, index);
    if (!output) b.output = NULL;
    projection_turn(&b, false);
    parallel_run(gpt->threads, gpt->pass.tiles, before_attention, &b);
    parallel_run(gpt->threads, gpt->activations.sequences.count * gpt->config.heads, attention, &b);
    parallel_run(gpt->threads, gpt->pass.tiles, after_attention, &b);
}
