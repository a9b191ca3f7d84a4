/* The embeddings of tokens, and of positions if the architecture has a table of positions. */
#include <string.h>

#include "tools/gpt/math/parallel.h"
#include "tools/gpt/model.h"

enum { COLUMNS_PER_TASK = 64 };

/* Returns a row of a table, converted into `wide` if the table has 16 bits. */
static const float *table_row(const struct gpt *gpt, const struct view *table, uint64_t row, float *wide) {
    uint64_t width = gpt->config.width;
    if (!gpt->widen) return (const float *)table->param + row * width;
    gpt->widen(wide, (const uint16_t *)table->param + row * width, width);
    return wide;
}

/* The stream of a row: its token's row of the table plus its position's. The first block gives the position, and each
 * block the tokens that it has; a sum of two does not depend on their order. */
static void forward_row(struct gpt *gpt, uint32_t row, float *wide) {
    const struct unit *unit = &gpt->embedding[gpt->pass.block];
    const struct view *token = &unit->view[TOKEN_WEIGHT], *position = &unit->view[POSITION_WEIGHT];
    uint64_t width = gpt->config.width, at = (uint64_t)gpt->pass.tokens[row] - block_first(gpt);
    float *to = gpt->activations.residual[0] + row * width;
    const float *term = gpt->embedding->view[POSITION_WEIGHT].count ? to : NULL; /* what is there already */
    if (position->count)
        term = table_row(gpt, position, gpt->activations.sequences.position[row], wide + width);
    if (at < token->rows) {
        const float *embedded = table_row(gpt, token, at, wide);
        if (term)
            gpt->kernels->add(to, embedded, term, width);
        else
            memcpy(to, embedded, width * sizeof *to);
    } else if (position->count)
        memcpy(to, term, width * sizeof *to);
}

static void forward_tile(void *context, uint32_t index, uint32_t thread) {
    struct gpt *gpt = context;
    float *wide = gpt->activations.norm1 + thread * (uint64_t)gpt->activations.tile_rows * gpt->config.width;
    uint32_t first = tile_first(gpt, index), end = first + tile_rows(gpt, index);
    for (uint32_t row = first; row < end; row++) forward_row(gpt, row, wide);
}

void embedding_forward(struct gpt *gpt) { parallel_run(gpt->threads, gpt->pass.tiles, forward_tile, gpt); }

/* Adds each row's gradient to the table row that it came from, if the table has it: the tokens of other blocks are not
 * there. For the position table that is the row's position. */
static void add_rows(const struct gpt *gpt, const struct view *table, const int32_t *tokens, uint64_t first,
                     uint64_t count) {
    uint64_t width = gpt->config.width;
    const uint32_t *position = gpt->activations.sequences.position;
    if (!table->grad) return; /* frozen */
    if (!table->add)
        for (uint64_t i = 0; i < table->rows; i++) memset(table->grad + i * width + first, 0, count * 4);
    for (uint32_t row = 0; row < gpt->pass.rows; row++) {
        uint64_t at = tokens ? (uint64_t)tokens[row] - block_first(gpt) : position[row];
        if (at >= table->rows) continue;
        float *to = table->grad + at * width + first;
        gpt->kernels->add(to, to, gpt->activations.gradient[0] + row * width + first, count);
    }
}

/* A task owns some columns of the tables and adds all rows in order, so the bits do not depend on the schedule. */
static void backward_columns(void *context, uint32_t index, uint32_t thread) {
    const struct gpt *gpt = context;
    const struct unit *unit = &gpt->embedding[gpt->pass.block];
    uint64_t width = gpt->config.width, first = (uint64_t)index * COLUMNS_PER_TASK;
    uint64_t count = width - first < COLUMNS_PER_TASK ? width - first : COLUMNS_PER_TASK;
    add_rows(gpt, &unit->view[TOKEN_WEIGHT], gpt->pass.tokens, first, count);
    if (unit->view[POSITION_WEIGHT].count) add_rows(gpt, &unit->view[POSITION_WEIGHT], NULL, first, count);
}

void embedding_backward(struct gpt *gpt) {
    parallel_run(gpt->threads, (gpt->config.width + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK,
                 backward_columns, gpt);
}
