#include "tools/gpt/checkpoints.h"

#include <stdlib.h>

#include "tools/gpt/model.h"

#define NO_PLACE UINT64_MAX

/* ---- the scratch ---- */

/* The segments that the backward of `trained` blocks needs begin with this one. At most the first one that does not leave. */
static uint32_t lowest_segment(const struct gpt_config *c, uint32_t trained) {
    uint32_t lowest = (c->layers - trained) / c->recompute, leave = checkpoints_leave(c);
    return lowest < leave ? lowest : leave;
}

zero_status checkpoints_declare(zero_engine *engine, const struct gpt_config *c, uint32_t batch,
                                uint32_t trained, zero_scratch **out) {
    *out = NULL;
    uint32_t leave = checkpoints_leave(c);
    if (!leave) return ZERO_OK;
    uint64_t moved = (uint64_t)(leave - lowest_segment(c, trained)) * zero_engine_accumulation_steps(engine);
    uint64_t place_bytes = checkpoint_place_bytes(c, batch, zero_engine_dtype(engine));
    return zero_engine_add_scratch(engine,
                                   &(zero_scratch_needs){.struct_size = sizeof(zero_scratch_needs),
                                                         .name = "activation checkpoints",
                                                         .place_bytes = place_bytes,
                                                         .places = (uint64_t)leave * c->micros,
                                                         .step_stores = moved,
                                                         .step_fetches = moved},
                                   out);
}

zero_status checkpoints_open(struct gpt *gpt) {
    struct checkpoints *k = &gpt->checkpoints;
    uint32_t slots = gpt->activations.checkpoint_slots;
    uint32_t trained = trained_blocks(&gpt->config, gpt->units);
    zero_status status = checkpoints_declare(gpt->engine, &gpt->config, gpt->batch, trained, &k->scratch);
    if (status || !k->scratch) return status;
    k->segments = checkpoint_segments(&gpt->config);
    k->first = lowest_segment(&gpt->config, trained);
    if (gpt->config.gpu) return ZERO_OK; /* cuda/checkpoints.c moves them */
    k->place = malloc(slots * sizeof *k->place);
    if (!k->place) return ZERO_E_MEMORY;
    for (uint32_t i = 0; i < slots; i++) k->place[i] = NO_PLACE;
    return ZERO_OK;
}

/* The slot may take something else. */
static zero_status settle(struct checkpoints *k, uint32_t slot) {
    uint64_t place = k->place[slot];
    k->place[slot] = NO_PLACE;
    return place == NO_PLACE ? ZERO_OK : zero_scratch_wait(k->scratch, place);
}

void checkpoints_close(struct gpt *gpt) {
    struct checkpoints *k = &gpt->checkpoints;
    for (uint32_t i = 0; k->place && i < gpt->activations.checkpoint_slots; i++) settle(k, i);
    free(k->place);
    k->place = NULL;
}

/* ---- numbers ---- */

static bool kept(const struct gpt *gpt, uint32_t index) {
    return gpt->checkpoints.place && checkpoint_at(&gpt->config, index);
}

static uint32_t segment_of(const struct gpt *gpt, uint32_t index) { return index / gpt->config.recompute; }

static uint32_t slot_of(const struct gpt *gpt, uint64_t number) {
    return (uint32_t)(number % gpt->activations.checkpoint_slots);
}

static float *slot_memory(const struct gpt *gpt, uint32_t slot) {
    const struct activations *a = &gpt->activations;
    return (float *)((char *)a->checkpoints + slot * a->checkpoint_bytes);
}

static uint64_t forward_number(const struct gpt *gpt, uint32_t segment, uint32_t micro) {
    return (uint64_t)segment * gpt->pass.micros + micro;
}

static uint64_t backward_number(const struct gpt *gpt, uint32_t segment, uint32_t micro) {
    uint32_t last = gpt->checkpoints.segments - 1;
    return segment == last ? forward_number(gpt, last, micro)
                           : forward_number(gpt, 2 * last - segment, micro);
}

/* ---- a pass ---- */

void checkpoints_pass(struct gpt *gpt) {
    struct checkpoints *k = &gpt->checkpoints;
    k->fetched = forward_number(gpt, k->segments, 0);
}

static zero_status fetch(struct gpt *gpt, uint64_t number) {
    struct checkpoints *k = &gpt->checkpoints;
    uint32_t micros = gpt->pass.micros, slot = slot_of(gpt, number);
    uint64_t segment = 2 * (k->segments - 1) - number / micros, place = segment * micros + number % micros;
    zero_status status = settle(k, slot);
    if (!status) status = zero_scratch_fetch(k->scratch, place, slot_memory(gpt, slot));
    if (!status) k->place[slot] = place;
    return status;
}

/* Reads ahead as far as there are slots. */
static zero_status advance(struct gpt *gpt, uint64_t used) {
    struct checkpoints *k = &gpt->checkpoints;
    uint64_t end = backward_number(gpt, k->first, 0) + gpt->pass.micros;
    zero_status status = ZERO_OK;
    while (!status && k->fetched < end && k->fetched < used + gpt->activations.checkpoint_slots)
        status = fetch(gpt, k->fetched++);
    return status;
}

zero_status checkpoints_turn(struct gpt *gpt) {
    const struct checkpoints *k = &gpt->checkpoints;
    return k->place ? advance(gpt, forward_number(gpt, k->segments - 1, 0)) : ZERO_OK;
}

zero_status checkpoints_make(struct gpt *gpt, uint32_t index, uint32_t micro) {
    if (!kept(gpt, index)) return ZERO_OK;
    uint32_t slot = slot_of(gpt, forward_number(gpt, segment_of(gpt, index), micro));
    gpt->micro[micro].residual[index] = slot_memory(gpt, slot);
    return settle(&gpt->checkpoints, slot);
}

zero_status checkpoints_made(struct gpt *gpt, uint32_t index, uint32_t micro) {
    struct checkpoints *k = &gpt->checkpoints;
    uint32_t segment = kept(gpt, index) ? segment_of(gpt, index) : 0;
    if (!kept(gpt, index) || !gpt->pass.trains || segment < k->first || segment + 1 == k->segments)
        return ZERO_OK;
    uint64_t number = forward_number(gpt, segment, micro);
    uint32_t slot = slot_of(gpt, number);
    k->place[slot] = number; /* also the place */
    return zero_scratch_store(k->scratch, number, slot_memory(gpt, slot));
}

zero_status checkpoints_need(struct gpt *gpt, uint32_t index, uint32_t micro) {
    if (!kept(gpt, index)) return ZERO_OK;
    uint32_t slot = slot_of(gpt, backward_number(gpt, segment_of(gpt, index), micro));
    gpt->micro[micro].residual[index] = slot_memory(gpt, slot);
    return settle(&gpt->checkpoints, slot);
}

zero_status checkpoints_done(struct gpt *gpt, uint32_t index, uint32_t micro) {
    if (!kept(gpt, index)) return ZERO_OK;
    return advance(gpt, backward_number(gpt, segment_of(gpt, index), micro) + 1);
}
