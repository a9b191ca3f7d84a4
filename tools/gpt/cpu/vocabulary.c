/* The head by blocks of the vocabulary: units of so many rows of its weight, of which one is in use at a time. The forward
 * goes through the blocks in ascending order, with a running maximum and sum for each row, and has the loss after the last
 * one. The backward goes through them in descending order: it computes a block's logits again, and from them the weight's
 * gradient and the block's part of the stream's gradient, which adds up in fp32. The final norm belongs to the first block:
 * its output stays in activations.norm1, and its output's gradient adds up in norm2. */
#include <math.h>
#include <string.h>

#include "tools/gpt/cpu/phase.h"
#include "tools/gpt/math/matmul.h"
#include "tools/gpt/model.h"

struct group {
    struct gpt *gpt;
    uint32_t first_tile;
};

static const struct view *weight_in_use(const struct gpt *gpt) {
    return &gpt->head[gpt->pass.block].view[HEAD_WEIGHT];
}

static struct norm final_norm(const struct gpt *gpt) {
    return (struct norm){&gpt->head->view[FINAL_WEIGHT], &gpt->head->view[FINAL_BIAS],
                         &gpt->activations.norm};
}

static const float *stream_at(const struct gpt *gpt, uint32_t row) {
    return gpt->activations.residual[gpt->config.layers] + (uint64_t)row * gpt->config.width;
}

static float *norm_at(const struct gpt *gpt, uint32_t row) {
    return gpt->activations.norm1 + (uint64_t)row * gpt->config.width;
}

static float *gradient_at(const struct gpt *gpt, uint32_t row) {
    return gpt->activations.norm2 + (uint64_t)row * gpt->config.width;
}

/* y[rows][block] = norm weight^T */
static void project(struct gpt *gpt, uint32_t thread, uint32_t rows, const float *norm, float *logits) {
    const struct view *view = weight_in_use(gpt);
    product(gpt, thread, rows, view->rows, view->columns, norm, view->columns,
            weight_of(gpt, view, TRANSPOSED), 0, logits, view->rows);
}

/* Runs tasks over all tiles, in groups whose logits fit in the buffer; `after` each group. */
static void run_groups(struct gpt *gpt, parallel_fn task,
                       void (*after)(struct group *group, uint32_t tiles)) {
    uint32_t most = gpt->activations.head_rows / gpt->activations.tile_rows;
    for (uint32_t first = 0; first < gpt->pass.tiles; first += most) {
        struct group g = {gpt, first};
        uint32_t tiles = gpt->pass.tiles - first < most ? gpt->pass.tiles - first : most;
        parallel_run(gpt->threads, tiles, task, &g);
        if (after) after(&g, tiles);
    }
}

/* ---- forward ---- */

static void sum_row(struct gpt *gpt, uint32_t row, float *logits) {
    const struct activations *a = &gpt->activations;
    const struct view *view = weight_in_use(gpt);
    uint32_t target = (uint32_t)gpt->pass.targets[row] - block_first(gpt);
    if (gpt->pass.block == 0) a->row_most[row] = -INFINITY, a->row_total[row] = 0;
    if (target < view->rows) a->row_wanted[row] = logits[target];
    gpt->kernels->softmax_part(logits, view->rows, &a->row_most[row], &a->row_total[row]);
    if (gpt->pass.block + 1 == gpt->vocab_blocks)
        a->row_loss[row] = gpt->pass.targets[row] < 0 ? 0
                                                      : log((double)a->row_total[row]) -
                                                            (double)(a->row_wanted[row] - a->row_most[row]);
}

static void forward_tile(void *context, uint32_t index, uint32_t thread) {
    const struct group *g = context;
    struct gpt *gpt = g->gpt;
    uint32_t tile = g->first_tile + index, first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    uint64_t columns = weight_in_use(gpt)->rows;
    float *logits = gpt->activations.logits + tile_first(gpt, index) * columns;
    if (gpt->pass.block == 0)
        norm_forward(gpt, final_norm(gpt), first, rows, stream_at(gpt, first), norm_at(gpt, first));
    project(gpt, thread, rows, norm_at(gpt, first), logits);
    for (uint32_t row = 0; row < rows; row++) sum_row(gpt, first + row, logits + row * columns);
}

void vocabulary_forward(struct gpt *gpt) { run_groups(gpt, forward_tile, NULL); }

/* ---- backward ---- */

/* The logits of a row become their gradient. */
static void gradient_row(struct gpt *gpt, uint32_t row, float *logits) {
    const struct activations *a = &gpt->activations;
    const struct view *view = weight_in_use(gpt);
    uint32_t target = (uint32_t)gpt->pass.targets[row] - block_first(gpt); /* of no target: above all rows */
    float scale = gpt->pass.scale;
    if (gpt->pass.targets[row] < 0) {
        memset(logits, 0, view->rows * sizeof *logits);
        return;
    }
    gpt->kernels->softmax_of(logits, view->rows, a->row_most[row], scale / a->row_total[row]);
    if (target < view->rows) logits[target] -= scale;
}

static void through_norm(struct gpt *gpt, uint32_t tile, uint32_t first, uint32_t rows) {
    partial_clear(gpt, gpt->head, tile);
    norm_backward(gpt, final_norm(gpt), first, rows, tile_partial(gpt, tile), NULL, gradient_at(gpt, first),
                  stream_at(gpt, first), gpt->activations.gradient[0] + (uint64_t)first * gpt->config.width);
}

static void backward_tile(void *context, uint32_t index, uint32_t thread) {
    const struct group *g = context;
    struct gpt *gpt = g->gpt;
    const struct view *view = weight_in_use(gpt);
    uint32_t tile = g->first_tile + index, first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    float *logits = gpt->activations.logits + (uint64_t)tile_first(gpt, index) * view->rows;
    bool adds = gpt->pass.block + 1 < gpt->vocab_blocks;
    project(gpt, thread, rows, norm_at(gpt, first), logits);
    for (uint32_t row = 0; row < rows; row++)
        gradient_row(gpt, first + row, logits + (uint64_t)row * view->rows);
    product(gpt, thread, rows, view->columns, view->rows, logits, view->rows, weight_of(gpt, view, PLAIN),
            adds ? 1 : 0, gradient_at(gpt, first), view->columns);
    if (gpt->pass.block == 0) through_norm(gpt, tile, first, rows);
}

static void weight_of_group(struct group *g, uint32_t tiles) {
    struct gpt *gpt = g->gpt;
    const struct view *view = weight_in_use(gpt);
    uint32_t first = tile_first(gpt, g->first_tile), last = g->first_tile + tiles - 1;
    struct weight_gradient weight = {.gpt = gpt,
                                     .view = view,
                                     .add = view->add || g->first_tile > 0,
                                     .left = gpt->activations.logits,
                                     .left_ld = view->rows,
                                     .right = norm_at(gpt, first),
                                     .rows = tile_first(gpt, last) + tile_rows(gpt, last) - first,
                                     .outer = view->rows,
                                     .inner = view->columns,
                                     .rounded = gpt->activations.rounded};
    parallel_run(gpt->threads, weight_gradient_tiles(&weight), weight_gradient_round, &weight);
    parallel_run(gpt->threads, weight_gradient_panels(&weight), weight_gradient_panel, &weight);
}

void vocabulary_backward(struct gpt *gpt) {
    run_groups(gpt, backward_tile, weight_of_group);
    partial_finish(gpt, &gpt->head[gpt->pass.block]);
}

/* ---- logits ---- */

void vocabulary_logits(struct gpt *gpt) {
    uint32_t row = gpt->pass.rows - 1;
    if (gpt->pass.block == 0)
        norm_forward(gpt, final_norm(gpt), row, 1, stream_at(gpt, row), gpt->activations.norm1);
    project(gpt, 0, 1, gpt->activations.norm1, gpt->pass.logits + block_first(gpt));
}
