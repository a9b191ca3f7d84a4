/* The final norm, the logits and the loss. Logits exist for one group of tiles at a time, in one buffer; their gradient
 * overwrites them. The gradient of a weight is added up over the groups. */
#include <string.h>

#include "tools/gpt/cpu/phase.h"
#include "tools/gpt/math/matmul.h"
#include "tools/gpt/model.h"

struct group {
    struct gpt *gpt;
    uint32_t first_tile;
    float *gradient; /* of the residual stream; NULL in evaluation */
};

static struct matrix head_weight(const struct gpt *gpt, enum transpose form) {
    return weight_of(gpt, &gpt->head->view[HEAD_WEIGHT], form);
}

static struct norm final_norm(const struct gpt *gpt) {
    return (struct norm){&gpt->head->view[FINAL_WEIGHT], &gpt->head->view[FINAL_BIAS],
                         &gpt->activations.norm};
}

static const float *stream_at(const struct gpt *gpt, uint32_t first) {
    return gpt->activations.residual[gpt->config.layers] + (uint64_t)first * gpt->config.width;
}

/* Computes the norm and the logits of `rows` rows from row `first` on. */
static void project(struct gpt *gpt, uint32_t thread, uint32_t first, uint32_t rows, float *norm,
                    float *logits) {
    uint32_t width = gpt->config.width, vocab = gpt->config.vocab;
    norm_forward(gpt, final_norm(gpt), first, rows, stream_at(gpt, first), norm);
    product(gpt, thread, rows, vocab, width, norm, width, head_weight(gpt, TRANSPOSED), 0, logits, vocab);
}

static void gradient_tile(struct gpt *gpt, uint32_t thread, uint32_t tile, const float *logits,
                          float *norm_gradient, float *dx) {
    uint32_t width = gpt->config.width, vocab = gpt->config.vocab;
    uint32_t first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    product(gpt, thread, rows, width, vocab, logits, vocab, head_weight(gpt, PLAIN), 0, norm_gradient, width);
    partial_clear(gpt, gpt->head, tile);
    norm_backward(gpt, final_norm(gpt), first, rows, tile_partial(gpt, tile), NULL, norm_gradient,
                  stream_at(gpt, first), dx + (uint64_t)first * width);
}

/* Returns the loss of a row; its logits become their gradient. */
static double row_loss(const struct gpt *gpt, uint32_t row, float *logits) {
    uint32_t vocab = gpt->config.vocab;
    int32_t target = gpt->pass.targets[row];
    if (target >= 0) return gpt->kernels->cross_entropy(logits, vocab, (uint32_t)target, gpt->pass.scale);
    memset(logits, 0, vocab * sizeof *logits);
    return 0;
}

static void loss_tile(void *context, uint32_t index, uint32_t thread) {
    struct group *g = context;
    struct gpt *gpt = g->gpt;
    uint32_t vocab = gpt->config.vocab, tile = g->first_tile + index;
    uint32_t first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    const struct activations *a = &gpt->activations;
    float *logits = a->logits + (uint64_t)tile_first(gpt, index) * vocab;

    project(gpt, thread, first, rows, a->norm1 + (uint64_t)first * gpt->config.width, logits);
    for (uint32_t row = 0; row < rows; row++)
        a->row_loss[first + row] = row_loss(gpt, first + row, logits + (uint64_t)row * vocab);
    if (g->gradient)
        gradient_tile(gpt, thread, tile, logits,
                      a->norm2 + (uint64_t)scratch_first(gpt, thread) * gpt->config.width, g->gradient);
}

static void weight_of_group(struct group *g, uint32_t tiles) {
    struct gpt *gpt = g->gpt;
    const struct view *view = &gpt->head->view[HEAD_WEIGHT];
    uint32_t first = tile_first(gpt, g->first_tile), last = g->first_tile + tiles - 1;
    struct weight_gradient weight = {.gpt = gpt,
                                     .view = view,
                                     .add = view->add || g->first_tile > 0,
                                     .left = gpt->activations.logits,
                                     .left_ld = gpt->config.vocab,
                                     .right = gpt->activations.norm1 + (uint64_t)first * gpt->config.width,
                                     .rows = tile_first(gpt, last) + tile_rows(gpt, last) - first,
                                     .outer = gpt->config.vocab,
                                     .inner = gpt->config.width,
                                     .rounded = gpt->activations.rounded};
    parallel_run(gpt->threads, weight_gradient_tiles(&weight), weight_gradient_round, &weight);
    parallel_run(gpt->threads, weight_gradient_panels(&weight), weight_gradient_panel, &weight);
}

static void run_groups(struct gpt *gpt, float *gradient) {
    uint32_t most = gpt->activations.head_rows / gpt->activations.tile_rows;
    for (uint32_t first = 0; first < gpt->pass.tiles; first += most) {
        struct group g = {gpt, first, gradient};
        uint32_t tiles = gpt->pass.tiles - first < most ? gpt->pass.tiles - first : most;
        parallel_run(gpt->threads, tiles, loss_tile, &g);
        if (gradient) weight_of_group(&g, tiles);
    }
}

void head_evaluate(struct gpt *gpt) { run_groups(gpt, NULL); }

void head_backward(struct gpt *gpt) {
    run_groups(gpt, gpt->activations.gradient[0]);
    partial_finish(gpt, gpt->head);
}

void head_logits(struct gpt *gpt) {
    project(gpt, 0, gpt->pass.rows - 1, 1, gpt->activations.norm1, gpt->pass.logits);
}
