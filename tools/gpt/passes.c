/* Runs the units in order: begin, the backend's arithmetic, end. */
#include "engine/zero.h"
#include "tools/gpt/model.h"

static zero_status forward_begin(struct gpt *gpt, struct unit *unit) {
    zero_status status = zero_forward_begin(unit->handle);
    if (!status) gpt->backend->unit_begin(gpt, unit, false);
    return status;
}

static zero_status forward_end(struct gpt *gpt, struct unit *unit) {
    gpt->backend->unit_end(gpt, unit, false);
    return zero_forward_end(unit->handle);
}

static zero_status backward_begin(struct gpt *gpt, struct unit *unit) {
    zero_status status = zero_backward_begin(unit->handle);
    if (!status) gpt->backend->unit_begin(gpt, unit, true);
    return status;
}

static zero_status backward_end(struct gpt *gpt, struct unit *unit) {
    gpt->backend->unit_end(gpt, unit, true);
    return zero_backward_end(unit->handle);
}

/* ---- uses ---- */

struct use {
    struct unit *unit;
    bool backward;
    void (*whole)(struct gpt *gpt);                 /* what an embedding or a head computes */
    void (*block)(struct gpt *gpt, uint32_t index); /* what a block computes */
    uint32_t index;
    bool makes; /* the stream before block `next`, whole after this use */
    uint32_t next;
    bool again;       /* a forward that runs again */
    bool needs, ends; /* the stream before block `index`; for the last time in this pass */
};

/* The calls that follow compute micro-step `micro`. */
static void use_micro(struct gpt *gpt, const struct pass *pass, uint32_t micro) {
    uint64_t at = (uint64_t)micro * pass->rows;
    gpt->pass.micro = micro;
    if (pass->micros == 1) return;
    gpt->pass.tokens = pass->tokens + at;
    gpt->pass.targets = pass->targets + at;
    gpt->backend->use_micro(gpt, micro);
}

/* Parameters stay where they are, so a forward's views do, too. */
static zero_status next_micro(struct gpt *gpt, const struct use *use) {
    if (use->backward) gpt->backend->unit_end(gpt, use->unit, true);
    zero_status status = zero_unit_next_micro(use->unit->handle);
    if (!status && use->backward) gpt->backend->unit_begin(gpt, use->unit, true);
    return status;
}

/* For one micro-step. */
static zero_status compute(struct gpt *gpt, const struct use *use, uint32_t micro) {
    bool whole = !use->whole || gpt->pass.block + 1 == gpt->vocab_blocks;
    zero_status status = use->makes ? checkpoints_make(gpt, use->next, micro) : ZERO_OK;
    if (!status && use->needs) status = checkpoints_need(gpt, use->index, micro);
    if (status) return status;
    if (use->whole) use->whole(gpt);
    if (use->block) use->block(gpt, use->index);
    if (use->makes && whole) status = checkpoints_made(gpt, use->next, micro);
    if (!status && use->ends) status = checkpoints_done(gpt, use->index, micro);
    return status;
}

static zero_status run_use(struct gpt *gpt, const struct use *use) {
    struct pass pass = gpt->pass;
    gpt->pass.again = use->again;
    zero_status status = use->backward ? backward_begin(gpt, use->unit) : forward_begin(gpt, use->unit);
    for (uint32_t m = 0; m < pass.micros && !status; m++) {
        if (m) status = next_micro(gpt, use);
        if (status) break;
        use_micro(gpt, &pass, m);
        status = compute(gpt, use, m);
    }
    gpt->pass.tokens = pass.tokens, gpt->pass.targets = pass.targets;
    if (status) return status;
    return use->backward ? backward_end(gpt, use->unit) : forward_end(gpt, use->unit);
}

/* A use of the unit of block `block` of the vocabulary, of the embedding or of the head. The stream is whole after the embedding's last
 * forward, and ends with the head's last backward. */
static zero_status use_of_block(struct gpt *gpt, struct unit *units, uint32_t block, bool backward,
                                void (*whole)(struct gpt *gpt)) {
    bool embeds = units == gpt->embedding;
    gpt->pass.block = block;
    return run_use(gpt, &(struct use){.unit = &units[block],
                                      .backward = backward,
                                      .whole = whole,
                                      .index = gpt->config.layers,
                                      .makes = embeds && !backward,
                                      .ends = !embeds && backward && block == 0});
}

/* ---- forward ---- */

static zero_status forward_of_blocks(struct gpt *gpt, struct unit *units, void (*compute)(struct gpt *gpt)) {
    for (uint32_t b = 0; b < gpt->vocab_blocks; b++) TRY(use_of_block(gpt, units, b, false, compute));
    return ZERO_OK;
}

static void through(struct gpt *gpt, uint32_t index) { gpt->backend->block_forward(gpt, index, true); }
static void without_output(struct gpt *gpt, uint32_t index) {
    gpt->backend->block_forward(gpt, index, false);
}

/* `again`: in the backward. */
static zero_status through_block(struct gpt *gpt, uint32_t index, bool output, bool again) {
    struct use use = {.unit = &gpt->blocks[index],
                      .block = output ? through : without_output,
                      .index = index,
                      .makes = output,
                      .next = index + 1,
                      .again = again,
                      .needs = again};
    return run_use(gpt, &use);
}

zero_status pass_forward(struct gpt *gpt) {
    zero_status status = forward_of_blocks(gpt, gpt->embedding, gpt->backend->embedding_forward);
    for (uint32_t i = 0; i < gpt->config.layers && !status; i++) status = through_block(gpt, i, true, false);
    return status;
}

zero_status pass_evaluate(struct gpt *gpt) {
    return forward_of_blocks(gpt, gpt->head, gpt->backend->head_forward);
}

zero_status pass_logits(struct gpt *gpt) {
    return forward_of_blocks(gpt, gpt->head, gpt->backend->head_logits);
}

/* ---- backward ---- */

/* The number of units of the embedding that the backward does not run: those below the lowest trained one. */
static uint32_t untrained(const struct gpt *gpt) {
    uint32_t first = 0;
    while (first < gpt->vocab_blocks && !zero_unit_trains(gpt->embedding[first].handle)) first++;
    return first;
}

/* The loss of a row needs all its logits, and its gradient needs the loss: by blocks, a forward comes before the
 * backward. */
static zero_status back_through_blocks(struct gpt *gpt) {
    zero_status status = forward_of_blocks(gpt, gpt->head, gpt->backend->head_forward);
    for (uint32_t b = gpt->vocab_blocks; b-- > 0 && !status;)
        status = use_of_block(gpt, gpt->head, b, true, gpt->backend->head_backward);
    return status;
}

/* The forward of a head in one unit is empty, because the backward computes its loss. */
static zero_status back_through_head(struct gpt *gpt) {
    if (gpt->vocab_blocks > 1) return back_through_blocks(gpt);
    zero_status status = zero_forward_begin(gpt->head->handle);
    for (uint32_t m = 1; m < gpt->pass.micros && !status; m++)
        status = zero_unit_next_micro(gpt->head->handle);
    if (!status) status = zero_forward_end(gpt->head->handle);
    return status ? status : use_of_block(gpt, gpt->head, 0, true, gpt->backend->head_backward);
}

/* Before the backward of block `last`: computes the segment again that ends with block `last`, unless backwards do it themselves. */
static zero_status recompute(struct gpt *gpt, uint32_t last) {
    uint32_t segment = recomputes_in_use(&gpt->config) ? 0 : gpt->config.recompute;
    bool ends = segment && (last + 1) % segment == 0 && last + 1 < gpt->config.layers;
    for (uint32_t i = last + 1 - segment; ends && i <= last; i++) TRY(through_block(gpt, i, i < last, true));
    return ZERO_OK;
}

static void back(struct gpt *gpt, uint32_t index) {
    if (recomputes_in_use(&gpt->config)) without_output(gpt, index);
    gpt->backend->block_backward(gpt, index);
}

static zero_status back_through_block(struct gpt *gpt, uint32_t index) {
    zero_status status = recompute(gpt, index);
    struct use use = {.unit = &gpt->blocks[index],
                      .backward = true,
                      .block = back,
                      .index = index,
                      .needs = true,
                      .ends = true};
    return status ? status : run_use(gpt, &use);
}

zero_status pass_backward(struct gpt *gpt) {
    uint32_t blocks = trained_blocks(&gpt->config, gpt->units);
    zero_status status = checkpoints_turn(gpt);
    if (!status) status = back_through_head(gpt);
    for (uint32_t i = gpt->config.layers; i-- > gpt->config.layers - blocks && !status;)
        status = back_through_block(gpt, i);
    for (uint32_t b = gpt->vocab_blocks; b-- > untrained(gpt) && !status;)
        status = use_of_block(gpt, gpt->embedding, b, true, gpt->backend->embedding_backward);
    return status;
}
