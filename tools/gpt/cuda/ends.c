/* The embedding and the head. */
#include "tools/gpt/cuda/state.h"

/* ---- embedding ---- */

static bool has_positions(const struct gpt *gpt) { return gpt->embedding->view[POSITION_WEIGHT].count > 0; }

/* The first block gives the positions, and each block the tokens that it has. */
void cuda_embedding_forward(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const struct unit *unit = &gpt->embedding[gpt->pass.block];
    struct embedding_forward_argument a = {.y = c->memory.residual[0],
                                           .table = unit->slot[TOKEN_WEIGHT].param,
                                           .positions = unit->slot[POSITION_WEIGHT].param,
                                           .tokens = c->memory.batch.tokens,
                                           .position = c->memory.batch.position,
                                           .width = gpt->config.width,
                                           .length = gpt->pass.length,
                                           .rows = gpt->pass.rows,
                                           .first = block_first(gpt),
                                           .count = unit->view[TOKEN_WEIGHT].rows,
                                           .add = gpt->pass.block > 0 && has_positions(gpt)};
    cuda_launch_rows(c, KERNEL_embedding_forward, a.rows, &a);
}

/* Of a table that has the rows of numbers from `from` on, `count` of them. */
static void table_backward(struct gpt *gpt, const zero_slot *slot, const struct cuda_groups *groups,
                           uint32_t from, uint32_t count) {
    struct cuda_gpt *c = gpt->cuda;
    struct embedding_backward_argument a = {.table = slot->grad,
                                            .dy = c->memory.gradient[0],
                                            .order = groups->order,
                                            .first = groups->first,
                                            .token = groups->number,
                                            .groups = groups->count,
                                            .width = gpt->config.width,
                                            .add = slot->add != 0,
                                            .from = from,
                                            .count = count};
    if (!slot->grad) return; /* frozen */
    if (!slot->add) cuda_clear(c, slot->grad, (uint64_t)count * gpt->config.width * c->number_bytes);
    cuda_launch_blocks(c, KERNEL_embedding_backward, gpt->pass.rows, &a);
}

/* Without documents each sequence has all positions in order. */
static void positions_backward(struct gpt *gpt, const zero_slot *slot) {
    const struct cuda_groups *groups = &gpt->cuda->memory.batch.by_position;
    struct position_backward_argument a = {.table = slot->grad,
                                           .dy = gpt->cuda->memory.gradient[0],
                                           .width = gpt->config.width,
                                           .length = gpt->pass.length,
                                           .batch = gpt->pass.batch,
                                           .positions = gpt->config.context,
                                           .add = slot->add != 0};
    if (groups->count)
        table_backward(gpt, slot, groups, 0, gpt->config.context);
    else if (slot->grad)
        cuda_launch_blocks(gpt->cuda, KERNEL_position_backward, a.positions, &a);
}

void cuda_embedding_backward(struct gpt *gpt) {
    const struct unit *unit = &gpt->embedding[gpt->pass.block];
    table_backward(gpt, &unit->slot[TOKEN_WEIGHT], &gpt->cuda->memory.batch.by_token, block_first(gpt),
                   unit->view[TOKEN_WEIGHT].rows);
    positions_backward(gpt, &unit->slot[POSITION_WEIGHT]);
}

/* ---- head ---- */

static struct cuda_norm final_norm(const struct gpt *gpt) {
    return (struct cuda_norm){&gpt->head->slot[FINAL_WEIGHT], &gpt->head->slot[FINAL_BIAS],
                              gpt->cuda->memory.norm};
}

/* The rows of the head's weight in the unit in use: all, or those of a block of the vocabulary. */
static const struct zero_slot *weight_of_head(const struct gpt *gpt) {
    return &gpt->head[gpt->pass.block].slot[HEAD_WEIGHT];
}
static uint32_t head_columns(const struct gpt *gpt) {
    return gpt->head[gpt->pass.block].view[HEAD_WEIGHT].rows;
}

static void *normed_at(const struct cuda_gpt *c, const struct gpt *gpt, uint32_t row) {
    return number_at(c, c->memory.normed, (uint64_t)row * gpt->config.width);
}

static void project(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t width = gpt->config.width;
    struct product p = {.type = c->type,
                        .m = rows,
                        .n = head_columns(gpt),
                        .k = width,
                        .a = {normed_at(c, gpt, first), width, false},
                        .b = {weight_of_head(gpt)->param, width, true},
                        .c = c->memory.logits,
                        .ldc = c->memory.logits_stride};
    cuda_multiply(c, &p);
}

/* Computes the loss; scale 0: only the loss, without gradients. */
static void loss_of(struct gpt *gpt, uint32_t first, uint32_t rows, float scale) {
    struct cuda_gpt *c = gpt->cuda;
    struct cross_entropy_argument a = {.logits = c->memory.logits,
                                       .loss = c->memory.loss + first,
                                       .target = c->memory.batch.targets + first,
                                       .rows = rows,
                                       .columns = gpt->config.vocab,
                                       .stride = (uint32_t)c->memory.logits_stride,
                                       .scale = scale};
    cuda_launch_cross_entropy(c, &a);
}

/* The gradient of the head's input, from the gradient of some rows' logits. Blocks of the vocabulary add up, from the last one on. */
static void back_to_input(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t width = gpt->config.width;
    float *to = c->memory.normed_gradient + (uint64_t)first * width;
    bool add = gpt->pass.block + 1 < gpt->vocab_blocks;
    struct product p = {.type = c->type,
                        .wide = true,
                        .m = rows,
                        .n = width,
                        .k = head_columns(gpt),
                        .a = {c->memory.logits, c->memory.logits_stride, false},
                        .b = {weight_of_head(gpt)->param, width, false},
                        .add = add ? to : NULL,
                        .c = to,
                        .ldc = width};
    cuda_multiply(c, &p);
}

/* The weight's gradient of some rows. Adds to the gradient of the rows before. */
static void back_to_weight(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    const zero_slot *slot = weight_of_head(gpt);
    bool wide = c->memory.head_sums != NULL, add = first > 0 || (!wide && slot->add);
    void *to = wide ? c->memory.head_sums : slot->grad;
    struct product p = {.type = c->type,
                        .wide = wide,
                        .m = head_columns(gpt),
                        .n = gpt->config.width,
                        .k = rows,
                        .a = {c->memory.logits, c->memory.logits_stride, true},
                        .b = {normed_at(c, gpt, first), gpt->config.width, false},
                        .add = add ? to : NULL,
                        .c = to,
                        .ldc = gpt->config.width};
    if (slot->grad) cuda_multiply(c, &p);
}

/* Rounds the weight's gradient, if it is a sum in fp32. */
static void round_weight_gradient(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const zero_slot *slot = weight_of_head(gpt);
    struct round_sums_argument a = {.to = slot->grad,
                                    .sums = c->memory.head_sums,
                                    .count = (uint64_t)head_columns(gpt) * gpt->config.width,
                                    .add = slot->add != 0};
    if (a.sums && a.to)
        cuda_launch_flat(c, KERNEL_round_sums, a.count % c->widest ? a.count : a.count / c->widest, &a);
}

/* Of some rows, for the logits of a block of the vocabulary. */
static struct loss_part_argument part_of_loss(const struct gpt *gpt, uint32_t first, uint32_t rows) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    return (struct loss_part_argument){.logits = m->logits,
                                       .most = m->row_most + first,
                                       .total = m->row_total + first,
                                       .wanted = m->row_wanted + first,
                                       .loss = m->loss + first,
                                       .target = m->batch.targets + first,
                                       .rows = rows,
                                       .columns = head_columns(gpt),
                                       .stride = (uint32_t)m->logits_stride,
                                       .first = block_first(gpt),
                                       .begins = gpt->pass.block == 0,
                                       .ends = gpt->pass.block + 1 == gpt->vocab_blocks,
                                       .scale = gpt->pass.scale};
}

/* What is done with the logits of some rows. */
typedef void after_logits(struct gpt *gpt, uint32_t first, uint32_t rows);

static void loss_alone(struct gpt *gpt, uint32_t first, uint32_t rows) { loss_of(gpt, first, rows, 0); }

static void back(struct gpt *gpt, uint32_t first, uint32_t rows) {
    back_to_weight(gpt, first, rows), back_to_input(gpt, first, rows);
}

static void loss_and_back(struct gpt *gpt, uint32_t first, uint32_t rows) {
    loss_of(gpt, first, rows, gpt->pass.scale);
    back(gpt, first, rows);
}

static void loss_in_parts(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct loss_part_argument a = part_of_loss(gpt, first, rows);
    cuda_launch(gpt->cuda, KERNEL_loss_part, (struct grid){rows, 1, 1}, (struct grid){LOSS_THREADS, 1, 1},
                &a);
}

static void back_in_parts(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct loss_part_argument a = part_of_loss(gpt, first, rows);
    cuda_launch(gpt->cuda, KERNEL_loss_slope, (struct grid){rows, 1, 1}, (struct grid){LOSS_THREADS, 1, 1},
                &a);
    back(gpt, first, rows);
}

static void run(struct gpt *gpt, after_logits *then) {
    uint32_t all = gpt->pass.rows, most = gpt->cuda->memory.head_rows;
    for (uint32_t first = 0; first < all; first += most) {
        uint32_t rows = all - first < most ? all - first : most;
        project(gpt, first, rows);
        then(gpt, first, rows);
    }
}

/* Its output stays until the last block of the vocabulary has read it. */
static void norm_of_head(struct gpt *gpt) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    if (gpt->pass.block == 0)
        cuda_norm_forward(gpt, final_norm(gpt), m->residual[gpt->config.layers], m->normed);
}

static void norm_of_head_backward(struct gpt *gpt) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    cuda_norm_backward(gpt, final_norm(gpt), NULL, m->normed_gradient, m->residual[gpt->config.layers],
                       m->gradient[0]);
}

void cuda_head_forward(struct gpt *gpt) {
    norm_of_head(gpt);
    run(gpt, gpt->vocab_blocks > 1 ? loss_in_parts : loss_alone);
}

void cuda_head_backward(struct gpt *gpt) {
    bool blocks = gpt->vocab_blocks > 1;
    if (!blocks) norm_of_head(gpt);
    run(gpt, blocks ? back_in_parts : loss_and_back);
    round_weight_gradient(gpt);
    if (gpt->pass.block == 0) norm_of_head_backward(gpt);
}

void cuda_head_logits(struct gpt *gpt) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    void *to = number_at(gpt->cuda, m->pinned_logits, block_first(gpt));
    norm_of_head(gpt);
    project(gpt, gpt->pass.rows - 1, 1);
    cuda_copy(gpt->cuda, to, m->logits, (uint64_t)head_columns(gpt) * gpt->cuda->number_bytes);
}
