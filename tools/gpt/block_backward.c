/* The backward of a block, in four phases: transpose the weights; tiles back to attention's output; heads, together
 * with the weights' gradients that are ready; tiles to the block's input, together with the last weights' gradients. */
#include "tools/gpt/attention.h"
#include "tools/gpt/block.h"
#include "tools/gpt/phase.h"
#include "tools/gpt/projection.h"

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

static void to_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct activations *a = &gpt->activations;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width;
    float *sums = tile_partial(gpt, index), *gradient = b->gradient + at;
    float *wide = b->saved->wide + (uint64_t)first * b->wide, *inner = a->inner + (uint64_t)first * b->inner;
    const float *middle = b->saved->middle + at;
    float *norm_gradient =
        a->norm1 + (uint64_t)scratch_first(gpt, thread) * width; /* norm1 is free until later */

    partial_clear(gpt, b->unit, index);
    sum_bias(b, NARROW_BIAS, sums, gradient, rows, width);
    projection_backward(b, PROJECT_NARROW, thread, rows, gradient, inner);
    gpt->kernels->mlp[gpt->architecture->mlp].backward(wide, inner, sums_of(sums, &b->unit->view[WIDEN_BIAS]),
                                                       rows, b->inner);
    projection_backward(b, PROJECT_WIDEN, thread, rows, wide, norm_gradient);
    norm_recompute(gpt, second_norm(b), first, rows, middle, a->norm2 + at);
    norm_backward(gpt, second_norm(b), first, rows, sums, gradient, norm_gradient, middle,
                  b->middle_gradient + at);
    sum_bias(b, PROJECT_BIAS, sums, b->middle_gradient + at, rows, width);
    projection_backward(b, PROJECT_MIXED, thread, rows, b->middle_gradient + at,
                        a->mixed_gradient + (uint64_t)first * b->query);
}

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

static void to_input(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width;
    float *sums = tile_partial(gpt, index), *qkv = b->saved->qkv + (uint64_t)first * b->qkv;
    float *norm_gradient =
        gpt->activations.norm2 + (uint64_t)scratch_first(gpt, thread) * width; /* norm2 is no longer needed */

    sum_qkv_biases(b, sums, qkv, rows);
    projection_backward(b, PROJECT_QKV, thread, rows, qkv, norm_gradient);
    norm_backward(gpt, first_norm(b), first, rows, sums, b->middle_gradient + at, norm_gradient,
                  b->input + at, b->gradient + at);
}

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
    phase_add(&phase, gpt->pass.tiles, to_input, b);
    phase_run(&phase, gpt->threads);
}

void block_backward(struct gpt *gpt, uint32_t index) {
    struct block b = block_at(gpt, index);
    projection_turn(&b, true);
    parallel_run(gpt->threads, gpt->pass.tiles, to_attention, &b);
    run_middle(&b);
    if (norms_heads(&gpt->config)) parallel_run(gpt->threads, gpt->pass.tiles, norm_heads, &b);
    run_last(&b);
    partial_finish(gpt, b.unit);
}
