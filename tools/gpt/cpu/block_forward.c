/* x -> m = x + project(attention(norm1(x))) -> m + narrow(mlp(widen(norm2(m)))), in three phases: tiles up to the
 * queries, keys and values; heads; tiles to the end. */
#include <string.h>

#include "tools/gpt/cpu/attention.h"
#include "tools/gpt/cpu/block.h"
#include "tools/gpt/cpu/steps.h"
#include "tools/gpt/math/parallel.h"
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

/* ---- up to the queries, keys and values ---- */

static void norm_input(struct block *b, uint32_t tile, uint32_t thread) {
    uint32_t width = b->gpt->config.width, first = tile_first(b->gpt, tile);
    norm_forward(b->gpt, first_norm(b), first, tile_rows(b->gpt, tile), b->input + (uint64_t)first * width,
                 b->gpt->activations.norm1 + block_scratch(b, tile, thread) * width);
}

static struct factors qkv_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->gpt->activations.norm1 + scratch * b->gpt->config.width,
                            b->saved->qkv + first * b->qkv, 0};
}

static void finish_qkv(struct block *b, uint32_t tile, uint32_t thread) {
    struct gpt *gpt = b->gpt;
    uint32_t first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    float *qkv = b->saved->qkv + (uint64_t)first * b->qkv;
    add_qkv_biases(b, rows, qkv);
    head_norm_forward(b, first, rows);
    rotary_turn(gpt, qkv, b->qkv, gpt->config.heads + gpt->config.kv_heads, first, rows, false);
}

static const struct step before_attention[] = {
    {.rows = norm_input}, {.factors = qkv_factors, .index = PROJECT_QKV}, {.rows = finish_qkv}};

static void attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    attention_forward(b->gpt, b->saved, b->window, index, thread);
}

/* ---- to the end ---- */

static void begin_middle(struct block *b, uint32_t tile, uint32_t thread) {
    uint64_t at = (uint64_t)tile_first(b->gpt, tile) * b->gpt->config.width;
    add_bias(b, PROJECT_BIAS, b->input + at, tile_rows(b->gpt, tile), b->saved->middle + at);
}

static struct factors mixed_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->saved->mixed + first * b->query,
                            b->saved->middle + first * b->gpt->config.width, 1};
}

static void norm_middle(struct block *b, uint32_t tile, uint32_t thread) {
    uint32_t width = b->gpt->config.width, first = tile_first(b->gpt, tile);
    norm_forward(b->gpt, second_norm(b), first, tile_rows(b->gpt, tile),
                 b->saved->middle + (uint64_t)first * width,
                 b->gpt->activations.norm2 + block_scratch(b, tile, thread) * width);
}

static struct factors widen_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->gpt->activations.norm2 + scratch * b->gpt->config.width,
                            b->saved->wide + first * b->wide, 0};
}

/* And begins the output, if one is read. */
static void activate(struct block *b, uint32_t tile, uint32_t thread) {
    struct gpt *gpt = b->gpt;
    uint32_t rows = tile_rows(gpt, tile);
    uint64_t first = tile_first(gpt, tile), at = first * gpt->config.width;
    float *inner = gpt->activations.inner + block_scratch(b, tile, thread) * b->inner;
    gpt->kernels->mlp[gpt->architecture->mlp].forward(inner, b->saved->wide + first * b->wide,
                                                      param(b, WIDEN_BIAS), rows, b->inner);
    if (b->output) add_bias(b, NARROW_BIAS, b->saved->middle + at, rows, b->output + at);
}

static struct factors narrow_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->gpt->activations.inner + scratch * b->inner,
                            b->output + first * b->gpt->config.width, 1};
}

static const struct step after_attention[] = {
    {.rows = begin_middle}, {.factors = mixed_factors, .index = PROJECT_MIXED},
    {.rows = norm_middle},  {.factors = widen_factors, .index = PROJECT_WIDEN},
    {.rows = activate},     {.factors = narrow_factors, .index = PROJECT_NARROW}};

void block_forward(struct gpt *gpt, uint32_t index, bool output) {
    struct block b = block_at(gpt, index);
    if (!output) b.output = NULL;
    projection_turn(&b, false);
    steps_run(&b, before_attention, COUNT_OF(before_attention), NULL);
    parallel_run(gpt->threads, gpt->activations.sequences.count * gpt->config.heads, attention, &b);
    steps_run(&b, after_attention, COUNT_OF(after_attention) - (output ? 0 : 1), NULL);
}
