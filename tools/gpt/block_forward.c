/* x -> m = x + project(attention(norm1(x))) -> m + narrow(gelu(widen(norm2(m)))), in three phases: tiles up to the
 * queries, keys and values; heads; tiles to the end. */
#include "engine/zero.h"
#include "tools/gpt/attention.h"
#include "tools/gpt/block.h"
#include "tools/gpt/matmul.h"
#include "tools/gpt/parallel.h"

static void before_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct kernels *k = gpt->kernels;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    float *norm = gpt->activations.norm1 + (uint64_t)tile_first(gpt, thread) * width;
    float *qkv = b->saved->qkv + (uint64_t)first * width * 3;
    k->norm(norm, b->saved->mean1 + first, b->saved->rstd1 + first, b->input + (uint64_t)first * width,
            param(b, NORM1_WEIGHT), param(b, NORM1_BIAS), rows, width, (float)gpt->config.layer_norm_epsilon);
    product(gpt, thread, rows, 3 * width, width, norm, weight(b, QKV_WEIGHT, 3ull * width), 0, qkv,
            3ull * width);
    k->bias_add(qkv, qkv, param(b, QKV_BIAS), rows, 3 * width);
}

static void attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    attention_forward(b->gpt, b->saved, index, thread);
}

static void after_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct kernels *k = gpt->kernels;
    uint32_t width = gpt->config.width, wide = gpt->config.inner;
    uint32_t first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width;
    float *middle = b->saved->middle + at, *inner = b->saved->inner + (uint64_t)first * wide;
    float *norm = gpt->activations.norm2 + (uint64_t)tile_first(gpt, thread) * width;
    float *gelu = gpt->activations.gelu + (uint64_t)tile_first(gpt, thread) * wide;

    k->bias_add(middle, b->input + at, param(b, PROJECT_BIAS), rows, width);
    product(gpt, thread, rows, width, width, b->saved->mixed + at, weight(b, PROJECT_WEIGHT, width), 1,
            middle, width);
    k->norm(norm, b->saved->mean2 + first, b->saved->rstd2 + first, middle, param(b, NORM2_WEIGHT),
            param(b, NORM2_BIAS), rows, width, (float)gpt->config.layer_norm_epsilon);
    product(gpt, thread, rows, wide, width, norm, weight(b, WIDEN_WEIGHT, wide), 0, inner, wide);
    k->bias_gelu(gelu, inner, param(b, WIDEN_BIAS), rows, wide);
    k->bias_add(b->output + at, middle, param(b, NARROW_BIAS), rows, width);
    product(gpt, thread, rows, width, wide, gelu, weight(b, NARROW_WEIGHT, width), 1, b->output + at, width);
}

zero_status block_forward(struct gpt *gpt, uint32_t index) {
    struct block b = block_at(gpt, index);
    zero_status status = unit_forward_begin(gpt, b.unit);
    if (status) return status;
    parallel_run(gpt->threads, gpt->pass.tiles, before_attention, &b);
    parallel_run(gpt->threads, gpt->pass.batch * gpt->config.heads, attention, &b);
    parallel_run(gpt->threads, gpt->pass.tiles, after_attention, &b);
    return zero_forward_end(b.unit->handle);
}
