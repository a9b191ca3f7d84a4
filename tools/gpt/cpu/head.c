/* The final norm, the logits and the loss. Logits exist for one group of tiles at a time, in one buffer; their gradient overwrites
 * them. The gradient of a weight is added up over the groups.
 *
 * A head in one unit computes the loss of training in its backward, which can write the gradients at once.
 *
 * By blocks of the vocabulary, a unit has so many rows of the weight, and one is in use at a time. The forward
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
    bool back; /* with gradients */
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

/* Of tile `index` of a group. */
static float *logits_at(const struct gpt *gpt, uint32_t index) {
    return gpt->activations.logits + (uint64_t)tile_first(gpt, index) * weight_in_use(gpt)->rows;
}

/* y[rows][block] = norm weight^T */
static void project(struct gpt *gpt, uint32_t thread, uint32_t rows, const float *norm, float *logits) {
    const struct view *view = weight_in_use(gpt);
    product(gpt, thread, rows, view->rows, view->columns, norm, view->columns,
            weight_of(gpt, view, TRANSPOSED), 0, logits, view->rows);
}

/* gradient[rows][width] = or += logits weight, of logits that are gradients now */
static void project_back(struct gpt *gpt, uint32_t thread, uint32_t rows, const float *logits, bool add,
                         float *gradient) {
    const struct view *view = weight_in_use(gpt);
    product(gpt, thread, rows, view->columns, view->rows, logits, view->rows, weight_of(gpt, view, PLAIN),
            add ? 1 : 0, gradient, view->columns);
}

static void through_norm(struct gpt *gpt, uint32_t tile, const float *norm_gradient) {
    uint32_t first = tile_first(gpt, tile);
    partial_clear(gpt, gpt->head, tile);
    norm_backward(gpt, final_norm(gpt), first, tile_rows(gpt, tile), tile_partial(gpt, tile), NULL,
                  norm_gradient, stream_at(gpt, first),
                  gpt->activations.gradient[0] + (uint64_t)first * gpt->config.width);
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

/* Runs tasks over all tiles, in groups whose logits fit in the buffer. */
static void run_groups(struct gpt *gpt, parallel_fn task, bool back) {
    uint32_t most = gpt->activations.head_rows / gpt->activations.tile_rows;
    for (uint32_t first = 0; first < gpt->pass.tiles; first += most) {
        struct group g = {gpt, first, back};
        uint32_t tiles = gpt->pass.tiles - first < most ? gpt->pass.tiles - first : most;
        parallel_run(gpt->threads, tiles, task, &g);
        if (back) weight_of_group(&g, tiles);
    }
}

/* ---- a head in one unit ---- */

/* Returns the loss of a row; its logits become their gradient. */
static double row_loss(const struct gpt *gpt, uint32_t row, float *logits) {
    uint32_t vocab = gpt->config.vocab;
    int32_t target = gpt->pass.targets[row];
    if (target >= 0) return gpt->kernels->cross_entropy(logits, vocab, (uint32_t)target, gpt->pass.scale);
    memset(logits, 0, vocab * sizeof *logits);
    return 0;
}

static void loss_tile(void *context, uint32_t index, uint32_t thread) {
    const struct group *g = context;
    struct gpt *gpt = g->gpt;
    uint32_t tile = g->first_tile + index, first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    float *logits = logits_at(gpt, index), *gradient = gradient_at(gpt, scratch_first(gpt, thread));
    norm_forward(gpt, final_norm(gpt), first, rows, stream_at(gpt, first), norm_at(gpt, first));
    project(gpt, thread, rows, norm_at(gpt, first), logits);
    for (uint32_t row = 0; row < rows; row++)
        gpt->activations.row_loss[first + row] =
            row_loss(gpt, first + row, logits + (uint64_t)row * gpt->config.vocab);
    if (!g->back) return;
    project_back(gpt, thread, rows, logits, false, gradient);
    through_norm(gpt, tile, gradient);
}

/* ---- by blocks of the vocabulary ---- */

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
    float *logits = logits_at(gpt, index);
    if (gpt->pass.block == 0)
        norm_forward(gpt, final_norm(gpt), first, rows, stream_at(gpt, first), norm_at(gpt, first));
    project(gpt, thread, rows, norm_at(gpt, first), logits);
    for (uint32_t row = 0; row < rows; row++) sum_row(gpt, first + row, logits + row * columns);
}

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

static void backward_tile(void *context, uint32_t index, uint32_t thread) {
    const struct group *g = context;
    struct gpt *gpt = g->gpt;
    uint32_t tile = g->first_tile + index, first = tile_first(gpt, tile), rows = tile_rows(gpt, tile);
    uint64_t columns = weight_in_use(gpt)->rows;
    float *logits = logits_at(gpt, index);
    project(gpt, thread, rows, norm_at(gpt, first), logits);
    for (uint32_t row = 0; row < rows; row++) gradient_row(gpt, first + row, logits + row * columns);
    project_back(gpt, thread, rows, logits, gpt->pass.block + 1 < gpt->vocab_blocks, gradient_at(gpt, first));
    if (gpt->pass.block == 0) through_norm(gpt, tile, gradient_at(gpt, first));
}

/* ---- */

void head_forward(struct gpt *gpt) {
    run_groups(gpt, gpt->vocab_blocks > 1 ? forward_tile : loss_tile, false);
}

void head_backward(struct gpt *gpt) {
    run_groups(gpt, gpt->vocab_blocks > 1 ? backward_tile : loss_tile, true);
    partial_finish(gpt, &gpt->head[gpt->pass.block]);
}

void head_logits(struct gpt *gpt) {
    uint32_t row = gpt->pass.rows - 1;
    if (gpt->pass.block == 0)
        norm_forward(gpt, final_norm(gpt), row, 1, stream_at(gpt, row), gpt->activations.norm1);
    project(gpt, 0, 1, gpt->activations.norm1, gpt->pass.logits + block_first(gpt));
}
