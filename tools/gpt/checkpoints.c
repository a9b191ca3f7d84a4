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
    uint32_t slots = checkpoint_slots(&gpt->config);
    uint32_t trained = trained_blocks(&gpt->config, gpt->units);
    zero_status status = checkpoints_declare(gpt->engine, &gpt->config, gpt->batch, trained, &k->scratch);
    if (status || !k->scratch) return status;
    k->segments = checkpoint_segments(&gpt->config);
    k->first = lowest_segment(&gpt->config, trained);
    if (gpt->config.gpu && !recomputes_in_use(&gpt->config))
        return ZERO_OK; /* cuda/checkpoints.c moves them */
    k->slots = slots;
    if (!gpt->config.gpu) k->memory = (char *)gpt->activations.checkpoints;
    k->slot_bytes = checkpoint_place_bytes(&gpt->config, gpt->batch, zero_engine_dtype(gpt->engine));
    k->place = malloc(slots * sizeof *k->place);
    if (!k->place) return ZERO_E_MEMORY;
    for (uint32_t i = 0; i < slots; i++) k->place[i] = NO_PLACE;
    return ZERO_OK;
}

/* The slot may take something else. */
static zero_status free_slot(struct checkpoints *k, uint32_t slot) {
    uint64_t place = k->place[slot];
    k->place[slot] = NO_PLACE;
    return place == NO_PLACE ? ZERO_OK : zero_scratch_wait(k->scratch, place);
}

void checkpoints_close(struct gpt *gpt) {
    struct checkpoints *k = &gpt->checkpoints;
    for (uint32_t i = 0; k->place && i < k->slots; i++) free_slot(k, i);
    free(k->place);
    k->place = NULL;
}

/* ---- numbers ---- */

static bool kept(const struct gpt *gpt, uint32_t index) {
    return gpt->checkpoints.place && checkpoint_at(&gpt->config, index);
}

static uint32_t segment_of(const struct gpt *gpt, uint32_t index) { return index / gpt->config.recompute; }

static uint32_t slot_of(const struct gpt *gpt, uint64_t number) {
    return (uint32_t)(number % gpt->checkpoints.slots);
}

static void *slot_memory(const struct gpt *gpt, uint32_t slot) {
    return gpt->checkpoints.memory + slot * gpt->checkpoints.slot_bytes;
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
    k->made = k->stored = 0;
    k->turned = false;
}

void *checkpoints_at(const struct gpt *gpt, uint32_t index, uint32_t micro) {
    uint32_t segment = segment_of(gpt, index);
    return slot_memory(gpt, slot_of(gpt, gpt->checkpoints.turned ? backward_number(gpt, segment, micro)
                                                                 : forward_number(gpt, segment, micro)));
}

static zero_status fetch(struct gpt *gpt, uint64_t number) {
    struct checkpoints *k = &gpt->checkpoints;
    uint32_t micros = gpt->pass.micros, slot = slot_of(gpt, number);
    uint64_t segment = 2 * (k->segments - 1) - number / micros, place = segment * micros + number % micros;
    zero_status status = free_slot(k, slot);
    if (!status) status = zero_scratch_fetch(k->scratch, place, slot_memory(gpt, slot));
    if (!status) k->place[slot] = place;
    return status;
}

/* Reads ahead as far as there are slots. */
static zero_status advance(struct gpt *gpt, uint64_t used) {
    struct checkpoints *k = &gpt->checkpoints;
    uint64_t end = backward_number(gpt, k->first, 0) + gpt->pass.micros;
    while (k->fetched < end && k->fetched < used + k->slots) TRY(fetch(gpt, k->fetched++));
    return ZERO_OK;
}

/* Numbers below `end`, which are also their places. */
static zero_status store_to(struct gpt *gpt, uint64_t end) {
    struct checkpoints *k = &gpt->checkpoints;
    zero_status status = ZERO_OK;
    for (; k->stored < end && !status; k->stored++) {
        uint32_t slot = slot_of(gpt, k->stored);
        if (k->stored / gpt->pass.micros < k->first) continue; /* no backward needs it */
        if (gpt->backend->await_input)
            gpt->backend->await_input(gpt, (uint32_t)(k->stored % gpt->pass.micros));
        k->place[slot] = k->stored;
        status = zero_scratch_store(k->scratch, k->stored, slot_memory(gpt, slot));
    }
    return status;
}

zero_status checkpoints_turn(struct gpt *gpt) {
    struct checkpoints *k = &gpt->checkpoints;
    zero_status status = k->place ? store_to(gpt, k->made) : ZERO_OK;
    if (k->place && gpt->backend->await_read) gpt->backend->await_read(gpt, gpt->config.layers - 1);
    k->turned = true;
    return k->place && !status ? advance(gpt, forward_number(gpt, k->segments - 1, 0)) : status;
}

static zero_status take_slot(struct gpt *gpt, uint32_t index, uint32_t micro, bool back) {
    if (!kept(gpt, index)) return ZERO_OK;
    uint32_t slot =
        slot_of(gpt, (back ? backward_number : forward_number)(gpt, segment_of(gpt, index), micro));
    /* The host reads it where it is. */
    if (!gpt->config.gpu) gpt->micro[micro].residual[index] = slot_memory(gpt, slot);
    return free_slot(&gpt->checkpoints, slot);
}

zero_status checkpoints_make(struct gpt *gpt, uint32_t index, uint32_t micro) {
    return take_slot(gpt, index, micro, false);
}

zero_status checkpoints_need(struct gpt *gpt, uint32_t index, uint32_t micro) {
    return take_slot(gpt, index, micro, true);
}

/* How late numbers are stored on a GPU: await_input waits for the micro-batch's last copy, which must not be that of its next number. */
static uint32_t late_numbers(uint32_t micros) { return micros > 2 ? 2 : micros - 1; }

zero_status checkpoints_made(struct gpt *gpt, uint32_t index, uint32_t micro) {
    struct checkpoints *k = &gpt->checkpoints;
    uint32_t segment = kept(gpt, index) ? segment_of(gpt, index) : 0,
             late = gpt->config.gpu ? late_numbers(gpt->pass.micros) : 0;
    if (!kept(gpt, index) || !gpt->pass.trains || segment + 1 == k->segments) return ZERO_OK;
    k->made = forward_number(gpt, segment, micro) + 1;
    return k->made > late ? store_to(gpt, k->made - late) : ZERO_OK;
}

zero_status checkpoints_done(struct gpt *gpt, uint32_t index, uint32_t micro) {
    if (!kept(gpt, index)) return ZERO_OK;
    if (gpt->backend->await_read) gpt->backend->await_read(gpt, index);
    return advance(gpt, backward_number(gpt, segment_of(gpt, index), micro) + 1);
}
