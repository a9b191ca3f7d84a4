/* The host as a backend: oneDNN's products, OpenMP, and tiles of rows that stay in the caches. */
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/zero.h"
#include "tools/gpt/math/parallel.h"
#include "tools/gpt/model.h"
#include "tools/gpt/rotary.h"

static const char *problem(zero_dtype dtype) {
    if (dtype == ZERO_BF16 && !matmul_has_bf16())
        return "this processor does not multiply bf16 itself: set bf16.enabled to false";
    return NULL;
}

static void choose_arithmetic(struct gpt *gpt, zero_dtype dtype) {
    const struct kernels *k = gpt->kernels = kernels_best();
    gpt->bf16 = dtype == ZERO_BF16;
    gpt->widen = dtype == ZERO_F16 ? k->widen_fp16 : gpt->bf16 ? k->widen : NULL;
    gpt->narrow = dtype == ZERO_F16 ? k->narrow_fp16 : gpt->bf16 ? k->narrow : NULL;
}

static zero_status open(struct gpt *gpt, uint64_t out_bytes[ZERO_TIERS], struct zero_error *error) {
    zero_dtype dtype = zero_engine_dtype(gpt->engine);
    gpt->threads = zero_engine_threads(gpt->engine);
    choose_arithmetic(gpt, dtype);
    gpt->micro = calloc(gpt->config.micros, sizeof *gpt->micro);
    if (!gpt->micro) return ZERO_E_MEMORY;
    TRY(activations_create(gpt->micro, &gpt->config, gpt->batch, gpt->threads, dtype));
    gpt->activations = gpt->micro[0];
    rotary_fill(gpt->activations.cosine, gpt->activations.sine, &gpt->config);
    const struct activations *last = &gpt->micro[gpt->config.micros - 1];
    out_bytes[ZERO_DEVICE] = last->device.bytes;
    out_bytes[ZERO_CPU] = last->cpu.bytes;
    return ZERO_OK;
}

static void close(struct gpt *gpt) {
    if (gpt->micro) activations_destroy(gpt->micro);
    free(gpt->micro);
}

/* ---- the sequences of a micro-step ---- */

static bool begins(const struct gpt *gpt, const int32_t *targets, uint32_t row) {
    if (row % gpt->pass.length == 0) return true;
    return gpt->config.documents && targets && targets[row - 1] == GPT_NEXT_DOCUMENT;
}

static void find_in(const struct gpt *gpt, const int32_t *targets, struct sequences *s) {
    s->count = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) {
        if (begins(gpt, targets, row)) s->first[s->count++] = row;
        s->position[row] = row - s->first[s->count - 1];
    }
    s->first[s->count] = gpt->pass.rows;
}

/* Sets activations.sequences of each micro-step of the pass: its samples, or with config.documents the documents of its samples. */
static void find_sequences(struct gpt *gpt) {
    const int32_t *targets = gpt->pass.targets;
    for (uint32_t m = 0; m < gpt->pass.micros; m++)
        find_in(gpt, targets ? targets + (uint64_t)m * gpt->pass.rows : NULL, &gpt->micro[m].sequences);
}

static zero_status pass_begin(struct gpt *gpt) {
    struct pass *pass = &gpt->pass;
    gpt->thread_limit = parallel_limit(gpt->threads);
    find_sequences(gpt);
    gpt->activations = gpt->micro[0]; /* the last training pass may have ended with another micro-step */
    pass->tiles = (pass->rows - pass->known + gpt->activations.tile_rows - 1) / gpt->activations.tile_rows;
    atomic_store(&gpt->failed, 0);
    return ZERO_OK;
}

static void use_micro(struct gpt *gpt, uint32_t micro) { gpt->activations = gpt->micro[micro]; }

static double mean_loss(const struct gpt *gpt, uint32_t micro) {
    double total = 0;
    for (uint32_t row = 0; row < gpt->pass.rows; row++) total += gpt->micro[micro].row_loss[row];
    return total / gpt->pass.divisor;
}

static zero_status pass_end(struct gpt *gpt, double out_loss[], struct zero_error *error) {
    parallel_limit(gpt->thread_limit);
    for (uint32_t m = 0; m < gpt->pass.micros && gpt->pass.targets && out_loss; m++)
        out_loss[m] = mean_loss(gpt, m);
    return atomic_load(&gpt->failed) ? ZERO_E_MEMORY : ZERO_OK;
}

const struct backend host_backend = {
    .reserved = {[ZERO_DEVICE] = "activations", [ZERO_CPU] = "activation checkpoints"},
    .keeps_vectors = true,
    .keeps_keys = true,
    .problem = problem,
    .open = open,
    .close = close,
    .pass_begin = pass_begin,
    .pass_end = pass_end,
    .use_micro = use_micro,
    .unit_begin = view_begin,
    .unit_end = view_end,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .block_forward = block_forward,
    .block_backward = block_backward,
    .head_forward = head_forward,
    .head_backward = head_backward,
    .head_logits = head_logits,
};
