/* The backward of a block, in four phases: transpose the weights; tiles back to attention's output; heads, together
 * with the weights' gradients that are ready; tiles to the block's input, together with the last weights' gradients. */
#include "tools/gpt/cpu/attention.h"
#include "tools/gpt/cpu/block.h"
#include "tools/gpt/cpu/steps.h"

/* Computes a bias's gradient: the sums of the columns. */
static void sum_bias(const struct block *b, enum block_param bias, float *sums, const float *gradient,
                     uint32_t rows, uint32_t columns) {
    float *to = sums_of(sums, &b->unit->view[bias]);
    if (to) b->gpt->kernels->column_sums(to, gradient, rows, columns, columns);
}

static void sum_qkv_biases(const struct block *b, float *sums, const float *gradient, uint32_t rows) {
    const struct view *bias;
    for (uint32_t i = 0, at = 0; qkv_bias(b, i, &at, &bias); i++)
        if (bias->count)
            b->gpt->kernels->column_sums(sums_of(sums, bias), gradient + at, rows, (uint32_t)bias->count,
                                         b->qkv);
}

/* ---- back to attention's output ---- */

static void begin_sums(struct block *b, uint32_t tile, uint32_t thread) {
    uint32_t width = b->gpt->config.width;
    partial_clear(b->gpt, b->unit, tile);
    sum_bias(b, NARROW_BIAS, tile_partial(b->gpt, tile),
             b->gradient + (uint64_t)tile_first(b->gpt, tile) * width, tile_rows(b->gpt, tile), width);
}

static struct factors narrow_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->gradient + first * b->gpt->config.width,
                            b->gpt->activations.inner + first * b->inner, 0};
}

static void back_through_activation(struct block *b, uint32_t tile, uint32_t thread) {
    struct gpt *gpt = b->gpt;
    uint64_t first = tile_first(gpt, tile);
    float *sums = tile_partial(gpt, tile);
    gpt->kernels->mlp[gpt->architecture->mlp].backward(
        b->saved->wide + first * b->wide, gpt->activations.inner + first * b->inner,
        sums_of(sums, &b->unit->view[WIDEN_BIAS]), tile_rows(gpt, tile), b->inner);
}

/* The gradient of the norm's output: in norm1, which is free until later. */
static struct factors widen_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->saved->wide + first * b->wide,
                            b->gpt->activations.norm1 + scratch * b->gpt->config.width, 0};
}

static void back_through_norm(struct block *b, uint32_t tile, uint32_t thread) {
    struct gpt *gpt = b->gpt;
    uint32_t width = gpt->config.width, first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    uint64_t at = (uint64_t)first * width;
    float *sums = tile_partial(gpt, tile);
    const float *middle = b->saved->middle + at,
                *norm_gradient = gpt->activations.norm1 + block_scratch(b, tile, thread) * width;
    norm_recompute(gpt, second_norm(b), first, rows, middle, gpt->activations.norm2 + at);
    norm_backward(gpt, second_norm(b), first, rows, sums, b->gradient + at, norm_gradient, middle,
                  b->middle_gradient + at);
    sum_bias(b, PROJECT_BIAS, sums, b->middle_gradient + at, rows, width);
}

static struct factors mixed_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->middle_gradient + first * b->gpt->config.width,
                            b->gpt->activations.mixed_gradient + first * b->query, 0};
}

static const struct step to_attention[] = {
    {.rows = begin_sums},
    {.factors = narrow_factors, .index = PROJECT_NARROW, .backward = true},
    {.rows = back_through_activation},
    {.factors = widen_factors, .index = PROJECT_WIDEN, .backward = true},
    {.rows = back_through_norm},
    {.factors = mixed_factors, .index = PROJECT_MIXED, .backward = true}};

/* ---- heads ---- */

static void attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    attention_backward(b->gpt, b->saved, b->gpt->activations.mixed_gradient, b->window, index, thread);
}

static void norm_heads(void *context, uint32_t index, uint32_t thread) {
    const struct block *b = context;
    head_norm_backward(b, tile_first(b->gpt, index), tile_rows(b->gpt, index), tile_partial(b->gpt, index));
}

static void norm_input(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    uint32_t first = tile_first(b->gpt, index);
    uint64_t at = (uint64_t)first * b->gpt->config.width;
    norm_recompute(b->gpt, first_norm(b), first, tile_rows(b->gpt, index), b->input + at,
                   b->gpt->activations.norm1 + at);
}

/* ---- back to the block's input ---- */

static void sum_biases(struct block *b, uint32_t tile, uint32_t thread) {
    sum_qkv_biases(b, tile_partial(b->gpt, tile), b->saved->qkv + (uint64_t)tile_first(b->gpt, tile) * b->qkv,
                   tile_rows(b->gpt, tile));
}

/* The gradient of the norm's output: in norm2, which is no longer needed. */
static struct factors qkv_factors(const struct block *b, uint64_t first, uint64_t scratch) {
    return (struct factors){b->saved->qkv + first * b->qkv,
                            b->gpt->activations.norm2 + scratch * b->gpt->config.width, 0};
}

static void back_to_input(struct block *b, uint32_t tile, uint32_t thread) {
    struct gpt *gpt = b->gpt;
    uint32_t width = gpt->config.width, first = tile_first(gpt, tile);
    uint64_t at = (uint64_t)first * width;
    norm_backward(gpt, first_norm(b), first, tile_rows(gpt, tile), tile_partial(gpt, tile),
                  b->middle_gradient + at, gpt->activations.norm2 + block_scratch(b, tile, thread) * width,
                  b->input + at, b->gradient + at);
}

static const struct step to_input[] = {{.factors = qkv_factors, .index = PROJECT_QKV, .backward = true},
                                       {.rows = sum_biases},
                                       {.rows = back_to_input}};

/* ---- all ---- */

static void run_middle(struct block *b) {
    struct gpt *gpt = b->gpt;
    const struct activations *a = &gpt->activations;
    struct projection_gradient narrow = projection_gradient(b, PROJECT_NARROW, a->inner, b->gradient);
    struct projection_gradient widen = projection_gradient(b, PROJECT_WIDEN, a->norm2, b->saved->wide);
    struct projection_gradient project =
        projection_gradient(b, PROJECT_MIXED, b->saved->mixed, b->middle_gradient);
    struct projection_gradient *const all[] = {&widen, &narrow, &project};
    projection_round(b, all, 3);
    struct phase phase = {.groups = 0};
    for (int i = 0; i < 3; i++) projection_add(all[i], &phase);
    phase_add(&phase, gpt->activations.sequences.count * gpt->config.kv_heads, attention, b);
    phase_add(&phase, gpt->pass.tiles, norm_input, b);
    phase_run(&phase, gpt->threads);
}

static void run_last(struct block *b) {
    struct gpt *gpt = b->gpt;
    struct projection_gradient qkv =
        projection_gradient(b, PROJECT_QKV, gpt->activations.norm1, b->saved->qkv);
    struct projection_gradient *const all[] = {&qkv};
    projection_round(b, all, 1);
    struct phase phase = {.groups = 0};
    projection_add(&qkv, &phase);
    steps_run(b, to_input, COUNT_OF(to_input), &phase);
}

void block_backward(struct gpt *gpt, uint32_t index) {
    struct block b = block_at(gpt, index);
    projection_turn(&b, true);
    steps_run(&b, to_attention, COUNT_OF(to_attention), NULL);
    run_middle(&b);
    if (norms_heads(&gpt->config)) parallel_run(gpt->threads, gpt->pass.tiles, norm_heads, &b);
    run_last(&b);
    partial_finish(gpt, b.unit);
}
