/* The embedding and the head. */
#include "tools/gpt/cuda/state.h"

/* ---- embedding ---- */

void cuda_embedding_forward(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const zero_slot *slot = gpt->embedding->slot;
    struct embedding_forward_argument a = {.y = c->memory.residual[0],
                                           .table = slot[TOKEN_WEIGHT].param,
                                           .positions = slot[POSITION_WEIGHT].param,
                                           .tokens = c->memory.batch.tokens,
                                           .width = gpt->config.width,
                                           .length = gpt->pass.length,
                                           .rows = gpt->pass.rows};
    cuda_launch_rows(c, KERNEL_embedding_forward, a.rows, &a);
}

static void tokens_backward(struct gpt *gpt, const zero_slot *slot) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_batch *batch = &c->memory.batch;
    struct embedding_backward_argument a = {slot->grad,         c->memory.gradient[0], batch->order,
                                            batch->group_first, batch->group_token,    batch->groups,
                                            gpt->config.width,  slot->add != 0};
    if (!slot->grad) return; /* frozen */
    if (!slot->add)
        cuda_clear(c, slot->grad, (uint64_t)gpt->config.vocab * gpt->config.width * c->number_bytes);
    cuda_launch_blocks(c, KERNEL_embedding_backward, gpt->pass.rows, &a);
}

static void positions_backward(struct gpt *gpt, const zero_slot *slot) {
    struct position_backward_argument a = {.table = slot->grad,
                                           .dy = gpt->cuda->memory.gradient[0],
                                           .width = gpt->config.width,
                                           .length = gpt->pass.length,
                                           .batch = gpt->pass.batch,
                                           .positions = gpt->config.context,
                                           .add = slot->add != 0};
    if (slot->grad) cuda_launch_blocks(gpt->cuda, KERNEL_position_backward, a.positions, &a);
}

void cuda_embedding_backward(struct gpt *gpt) {
    tokens_backward(gpt, &gpt->embedding->slot[TOKEN_WEIGHT]);
    positions_backward(gpt, &gpt->embedding->slot[POSITION_WEIGHT]);
}

/* ---- head ---- */

static struct cuda_norm final_norm(const struct gpt *gpt) {
    return (struct cuda_norm){&gpt->head->slot[FINAL_WEIGHT], &gpt->head->slot[FINAL_BIAS],
                              gpt->cuda->memory.norm};
}

static void *normed_at(const struct cuda_gpt *c, const struct gpt *gpt, uint32_t row) {
    return number_at(c, c->memory.normed, (uint64_t)row * gpt->config.width);
}

static void project(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t width = gpt->config.width;
    struct product p = {.type = c->type,
                        .m = rows,
                        .n = gpt->config.vocab,
                        .k = width,
                        .alpha = 1,
                        .a = {normed_at(c, gpt, first), width, false},
                        .b = {gpt->head->slot[HEAD_WEIGHT].param, width, true},
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

/* The gradient of the head's input, from the gradient of some rows' logits. */
static void back_to_input(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t width = gpt->config.width;
    struct product p = {.type = c->type,
                        .wide = true,
                        .m = rows,
                        .n = width,
                        .k = gpt->config.vocab,
                        .alpha = 1,
                        .a = {c->memory.logits, c->memory.logits_stride, false},
                        .b = {gpt->head->slot[HEAD_WEIGHT].param, width, false},
                        .c = c->memory.normed_gradient + (uint64_t)first * width,
                        .ldc = width};
    cuda_multiply(c, &p);
}

/* The weight's gradient of some rows. Adds to the gradient of the rows before. */
static void back_to_weight(struct gpt *gpt, uint32_t first, uint32_t rows) {
    struct cuda_gpt *c = gpt->cuda;
    const zero_slot *slot = &gpt->head->slot[HEAD_WEIGHT];
    bool wide = c->memory.head_sums != NULL, add = first > 0 || (!wide && slot->add);
    void *to = wide ? c->memory.head_sums : slot->grad;
    struct product p = {.type = c->type,
                        .wide = wide,
                        .m = gpt->config.vocab,
                        .n = gpt->config.width,
                        .k = rows,
                        .alpha = 1,
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
    const zero_slot *slot = &gpt->head->slot[HEAD_WEIGHT];
    struct round_sums_argument a = {.to = slot->grad,
                                    .sums = c->memory.head_sums,
                                    .count = (uint64_t)gpt->config.vocab * gpt->config.width,
                                    .add = slot->add != 0};
    if (a.sums && a.to)
        cuda_launch_flat(c, KERNEL_round_sums, a.count % c->widest ? a.count : a.count / c->widest, &a);
}

static void run(struct gpt *gpt, bool backward) {
    struct cuda_memory *m = &gpt->cuda->memory;
    uint32_t all = gpt->pass.rows;
    float scale = backward ? gpt->pass.scale : 0;
    cuda_norm_forward(gpt, final_norm(gpt), m->residual[gpt->config.layers], m->normed);
    for (uint32_t first = 0; first < all; first += m->head_rows) {
        uint32_t rows = all - first < m->head_rows ? all - first : m->head_rows;
        project(gpt, first, rows);
        loss_of(gpt, first, rows, scale);
        if (backward) back_to_weight(gpt, first, rows), back_to_input(gpt, first, rows);
    }
}

void cuda_head_evaluate(struct gpt *gpt) { run(gpt, false); }

void cuda_head_backward(struct gpt *gpt) {
    struct cuda_memory *m = &gpt->cuda->memory;
    run(gpt, true);
    round_weight_gradient(gpt);
    cuda_norm_backward(gpt, final_norm(gpt), NULL, m->normed_gradient, m->residual[gpt->config.layers],
                       m->gradient[0]);
}

void cuda_head_logits(struct gpt *gpt) {
    struct cuda_memory *m = &gpt->cuda->memory;
    cuda_norm_forward(gpt, final_norm(gpt), m->residual[gpt->config.layers], m->normed);
    project(gpt, gpt->pass.rows - 1, 1);
    cuda_copy(gpt->cuda, m->pinned_logits, m->logits, (uint64_t)gpt->config.vocab * gpt->cuda->number_bytes);
}
