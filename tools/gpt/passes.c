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

/* ---- forward ---- */

static zero_status embed(struct gpt *gpt) {
    zero_status status = forward_begin(gpt, &gpt->embedding);
    if (status) return status;
    gpt->backend->embedding_forward(gpt);
    return forward_end(gpt, &gpt->embedding);
}

static zero_status through_block(struct gpt *gpt, uint32_t index, bool output) {
    zero_status status = forward_begin(gpt, &gpt->blocks[index]);
    if (status) return status;
    gpt->backend->block_forward(gpt, index, output);
    return forward_end(gpt, &gpt->blocks[index]);
}

zero_status pass_forward(struct gpt *gpt) {
    zero_status status = embed(gpt);
    for (uint32_t i = 0; i < gpt->config.layers && !status; i++) status = through_block(gpt, i, true);
    return status;
}

zero_status pass_evaluate(struct gpt *gpt) {
    zero_status status = forward_begin(gpt, &gpt->head);
    if (status) return status;
    gpt->backend->head_evaluate(gpt);
    return forward_end(gpt, &gpt->head);
}

zero_status pass_logits(struct gpt *gpt) {
    zero_status status = forward_begin(gpt, &gpt->head);
    if (status) return status;
    gpt->backend->head_logits(gpt);
    return forward_end(gpt, &gpt->head);
}

/* ---- backward ---- */

/* The number of blocks that the backward runs. Blocks below the lowest trained unit need no gradient. */
static uint32_t trained_blocks(const struct gpt *gpt) {
    uint32_t first = 0;
    if (zero_unit_trains(gpt->embedding.handle)) return gpt->config.layers;
    while (first < gpt->config.layers && !zero_unit_trains(gpt->blocks[first].handle)) first++;
    return gpt->config.layers - first;
}

/* The head's forward is empty, because the backward computes its loss. */
static zero_status back_through_head(struct gpt *gpt) {
    zero_status status = zero_forward_begin(gpt->head.handle);
    if (!status) status = zero_forward_end(gpt->head.handle);
    if (!status) status = backward_begin(gpt, &gpt->head);
    if (status) return status;
    gpt->backend->head_backward(gpt);
    return backward_end(gpt, &gpt->head);
}

/* Before the backward of block `last`: computes the segment again that ends with block `last`. */
static zero_status recompute(struct gpt *gpt, uint32_t last) {
    uint32_t segment = gpt->config.recompute;
    bool ends = segment && (last + 1) % segment == 0 && last + 1 < gpt->config.layers;
    zero_status status = ZERO_OK;
    for (uint32_t i = last + 1 - segment; ends && i <= last && !status; i++)
        status = through_block(gpt, i, i < last);
    return status;
}

static zero_status back_through_block(struct gpt *gpt, uint32_t index) {
    zero_status status = recompute(gpt, index);
    if (!status) status = backward_begin(gpt, &gpt->blocks[index]);
    if (status) return status;
    gpt->backend->block_backward(gpt, index);
    return backward_end(gpt, &gpt->blocks[index]);
}

zero_status pass_backward(struct gpt *gpt) {
    uint32_t blocks = trained_blocks(gpt);
    zero_status status = back_through_head(gpt);
    for (uint32_t i = gpt->config.layers; i-- > gpt->config.layers - blocks && !status;)
        status = back_through_block(gpt, i);
    if (status || !zero_unit_trains(gpt->embedding.handle)) return status;
    status = backward_begin(gpt, &gpt->embedding);
    if (status) return status;
    gpt->backend->embedding_backward(gpt);
    return backward_end(gpt, &gpt->embedding);
}
