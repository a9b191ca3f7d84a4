#include "engine/plan/chunk_layout.h"

#include <stdlib.h>

#include "engine/base/integer.h"

/* ---- one chunk ---- */

static const struct chunk_format *format_of(const struct chunk_layout *layout, uint32_t region) {
    return &layout->format[layout->kind[region]];
}

static void place_part(const struct chunk_layout *layout, const struct chunk_format *format, uint32_t first,
                       uint32_t end, struct chunk *c, struct record_part *part) {
    uint64_t at = part->at;
    for (uint32_t k = first; k < end; k++) {
        c->array[k] = at;
        at += round_up(c->count * format->array_bytes[k], ALIGN_BYTES);
    }
    part->tag = at;
    part->bytes = round_up(at + CHUNK_TAG_BYTES - part->at, layout->align_bytes);
}

static enum weight_place place_of(const struct chunk_format *format) {
    if (format->param_dtype == DTYPE_F32) return WEIGHT_IN_PARAM;
    bool masters = format->arrays > format->states && format->array_bytes[format->states] == sizeof(float);
    return masters ? WEIGHT_IN_MASTER : WEIGHT_SPLIT;
}

uint8_t chunk_part_arrays(const struct chunk_format *format, int part) {
    if (format->apart) return part == PART_STATES ? ARRAY_MOMENTS : ARRAY_WEIGHTS;
    return part == PART_STATES ? ARRAY_MOMENTS | ARRAY_WEIGHTS : 0;
}

/* Sets the places in the record of a chunk of c->count elements. */
static void place_arrays(const struct chunk_layout *layout, const struct chunk_format *format,
                         struct chunk *c) {
    struct record_part *states = &c->part[PART_STATES], *weights = &c->part[PART_WEIGHTS];
    bool parts = format->apart && format->moments < format->arrays;
    c->states = format->states;
    place_part(layout, format, 0, parts ? format->moments : format->arrays, c, states);
    weights->at = states->bytes;
    if (parts) place_part(layout, format, format->moments, format->arrays, c, weights);
}

static uint64_t record_bytes(const struct chunk_layout *layout, const struct chunk_format *format,
                             uint64_t elements) {
    struct chunk c = {.count = elements};
    place_arrays(layout, format, &c);
    return chunk_record_bytes(&c);
}

uint32_t chunk_format_bytes(const struct chunk_format *format) {
    uint32_t bytes = 0;
    for (uint32_t k = 0; k < format->arrays; k++) bytes += format->array_bytes[k];
    return bytes;
}

struct chunk chunk_layout_at(const struct chunk_layout *layout, uint32_t region, uint32_t i) {
    const struct offload_region *r = &layout->region[region];
    const struct chunk_format *format = format_of(layout, region);
    struct chunk c = {.first = i * layout->chunk_elements, .index = layout->first_chunk[region] + i};
    c.count = min64(layout->chunk_elements, layout->elements[region] - c.first);
    c.state = i >= r->resident;
    c.device = i < r->device;
    c.params = r->params;
    place_arrays(layout, format, &c);
    if (c.state)
        c.record = layout->first_record[region] +
                   (i - r->resident) * record_bytes(layout, format, layout->chunk_elements);
    c.slot_param = layout->slot_param[layout->kind[region]];
    c.param_place = c.first * dtype_bytes(format->param_dtype);
    c.param_used = c.count * dtype_bytes(format->param_dtype);
    c.param_bytes = round_up(c.param_used, layout->align_bytes);
    c.grads = r->grads;
    c.slot_grad = layout->slot_grad[layout->kind[region]];
    c.grad_place = c.first * dtype_bytes(format->grad_dtype);
    c.grad_used = c.count * dtype_bytes(format->grad_dtype);
    c.grad_bytes = round_up(c.grad_used, layout->align_bytes);
    return c;
}

/* A chunk of which only these arrays are in a slot, or move. */
static struct chunk with_arrays(const struct chunk_layout *layout, uint32_t region, struct chunk c,
                                uint8_t arrays) {
    for (int part = 0; part < RECORD_PARTS; part++)
        if (!(arrays & chunk_part_arrays(format_of(layout, region), part))) c.part[part].bytes = 0;
    c.params &= (arrays & ARRAY_PARAMS) != 0;
    c.grads &= (arrays & ARRAY_GRADIENT) != 0;
    return c;
}

struct chunk chunk_layout_moved(const struct chunk_layout *layout, const struct operation *op,
                                uint32_t item) {
    const struct offload_region *r = &layout->region[op->region];
    const struct update_leg *leg = &update_rows[r->scope].leg[op->leg];
    return with_arrays(layout, op->region, chunk_layout_at(layout, op->region, op->first + item),
                       leg_moves(leg, r->place, (enum operation_kind)op->kind, (enum outcome)op->outcome));
}

uint64_t chunk_layout_resident(const struct chunk_layout *layout, uint32_t region) {
    return min64(layout->region[region].resident * layout->chunk_elements, layout->elements[region]);
}

uint64_t chunk_layout_device(const struct chunk_layout *layout, uint32_t region) {
    return min64(layout->region[region].device * layout->chunk_elements, layout->elements[region]);
}

bool chunk_layout_device_whole(const struct chunk_layout *layout, uint32_t region) {
    const struct offload_region *r = &layout->region[region];
    return r->device && r->device == r->chunks;
}

struct chunk_range chunk_layout_updated(const struct chunk_layout *layout, const struct operation *op,
                                        uint32_t item) {
    uint64_t all = layout->elements[op->region];
    bool run = op->items == op->chunks; /* an item for each chunk */
    uint32_t chunk = op->first + (run ? item : 0), chunks = run ? 1 : op->chunks;
    struct chunk_range range = {.first = min64(chunk * layout->chunk_elements, all)};
    range.count = min64(chunks * layout->chunk_elements, all - range.first);
    range.device = chunk < layout->region[op->region].device;
    return range;
}

uint64_t chunk_layout_param_bytes(const struct chunk_layout *layout, uint32_t region) {
    return round_up(layout->elements[region] * dtype_bytes(format_of(layout, region)->param_dtype),
                    layout->align_bytes);
}

uint64_t chunk_layout_grad_bytes(const struct chunk_layout *layout, uint32_t region) {
    return round_up(layout->elements[region] * dtype_bytes(format_of(layout, region)->grad_dtype),
                    layout->align_bytes);
}

/* ---- all chunks ---- */

static bool rests_sharded(const struct region *r) { return !placement_is(r->rest, REPLICATE, REPLICATE); }

/* Elements of one page, of the narrowest that is stored in its memory layout. */
static uint64_t page_elements(const struct chunk_layout *layout, const struct terms *t, uint32_t region) {
    const struct chunk_format *format = format_of(layout, region);
    uint64_t param = dtype_bytes(format->param_dtype), grad = dtype_bytes(format->grad_dtype);
    return layout->align_bytes / (terms_grads_staged(t) && grad < param ? grad : param);
}

static uint64_t piece_bytes(const struct terms *t) {
    return t->piece_bytes ? t->piece_bytes : PIECE_BYTES_DEFAULT;
}

/* A chunk is at most as large as the largest shard, so that small models plan small slots. It has whole pages of the
 * narrowest parameters and gradients. If gradients are reduced chunk by chunk, it has whole blocks of the norm, too; only
 * simulations with smaller pages do without, since their norms need not have the bits of another tier. */
static void choose_chunk(struct chunk_layout *layout, const struct terms *t, uint32_t regions) {
    uint64_t largest = 0, page = 0, most = 1;
    for (uint32_t i = 0; i < regions; i++) {
        const struct chunk_format *format = format_of(layout, i);
        uint64_t per_page = page_elements(layout, t, i);
        if (layout->elements[i] > largest) largest = layout->elements[i];
        if (per_page > page) page = per_page;
        if (chunk_format_bytes(format) > most) most = chunk_format_bytes(format);
    }
    if (terms_grads_staged(t) && !t->chunk_align_bytes && page < NORM_BLOCK_ELEMENTS)
        page = NORM_BLOCK_ELEMENTS;
    uint64_t elements = CHUNK_BYTES_DEFAULT / most;
    if (t->chunk_elements_max && t->chunk_elements_max < elements) elements = t->chunk_elements_max;
    if (terms_params_staged(t) || terms_grads_staged(t))
        elements = min64(elements, piece_bytes(t) / sizeof(float));
    elements = min64(elements, round_up(largest, page)) / page * page;
    layout->chunk_elements = elements ? elements : page;
}

/* The drive moves whole pages. So each rank's part of the gathered region has to be whole pages, unless there is only one: behind it is
 * room. */
static bool read_in_place(const struct chunk_layout *layout, const struct terms *t,
                          const struct policy *policy, uint32_t region) {
    const struct region *r = &policy->region[region];
    uint64_t bytes = layout->elements[region] * dtype_bytes(format_of(layout, region)->param_dtype);
    bool pages = bytes % layout->align_bytes == 0 || placement_parts(r->rest, policy->mesh) == 1;
    return terms_params_staged(t) && !t->discrete && !policy->gather_stagings && rests_sharded(r) && pages;
}

/* An optimizer without state has no state to stage: its chunks count as resident. */
static void cut_regions(struct chunk_layout *layout, const struct terms *t, const struct policy *policy) {
    for (uint32_t i = 0; i < policy->regions; i++) {
        uint64_t chunks = round_up(layout->elements[i], layout->chunk_elements) / layout->chunk_elements;
        const struct chunk_format *format = format_of(layout, i);
        layout->region[i] =
            (struct offload_region){.chunks = (uint32_t)chunks,
                                    .resident = (uint32_t)chunks,
                                    .params = terms_params_staged(t) && rests_sharded(&policy->region[i]),
                                    .in_place = read_in_place(layout, t, policy, i),
                                    .scope = policy->region[i].scope,
                                    .place = place_of(format),
                                    .weights = format->arrays > format->moments};
        if (terms_state_staged(t) && format->arrays && !policy->region[i].frozen)
            layout->region[i].resident = 0;
        layout->reads_in_place |= layout->region[i].in_place;
        layout->first_chunk[i] = layout->chunks;
        layout->chunks += chunks;
    }
}

static bool leaves_shard(const struct region *r) {
    return !r->frozen && !r->grad_in_place && !r->grad_brief &&
           !placement_is(r->grad_step, REPLICATE, REPLICATE);
}

static uint64_t shard_bytes(const struct chunk_layout *layout, uint32_t region) {
    return layout->elements[region] * chunk_format_bytes(format_of(layout, region));
}

/* Whole chunks of a region in `left` bytes, but not the last one. */
static uint32_t whole_chunks(const struct chunk_layout *layout, uint32_t region, uint64_t left) {
    uint64_t chunk = layout->chunk_elements * chunk_format_bytes(format_of(layout, region)),
             most = layout->region[region].chunks - 1;
    return (uint32_t)(chunk ? min64(left / chunk, most) : 0);
}

/* The most memory of brief shards (fix_brief): two sets in which units take turns, with a buffer for each region of a unit. Those of
 * held units have their own. */
static uint64_t brief_bytes(const struct chunk_layout *layout, const struct model *model,
                            const struct policy *policy) {
    uint64_t bytes = 0;
    bool more = true;
    for (uint32_t place = 0; more; place++) {
        uint64_t most = 0;
        more = false;
        for (uint32_t i = 0, at = 0; i < policy->regions; i++) {
            at = i && model->region[i].unit == model->region[i - 1].unit ? at + 1 : 0;
            more |= at > place;
            if (at != place || !policy->region[i].grad_brief || policy->region[i].frozen) continue;
            uint64_t shard = chunk_layout_grad_bytes(layout, i);
            if (model->unit[model->region[i].unit]->held)
                bytes += shard;
            else if (shard > most)
                most = shard;
        }
        bytes += 2 * most;
    }
    return bytes;
}

/* Puts state on the device, from the first region in the order of use on. The gradient of a shard whose whole state is there is there,
 * too; with the first brief one comes the memory of all of them. */
static void choose_device(struct chunk_layout *layout, const struct terms *t, const struct model *model,
                          const struct policy *policy) {
    const bool device_grads = t->discrete || t->grad_tier != TIER_DEVICE;
    uint64_t left = t->device_bytes, share = 0, turns = device_grads ? brief_bytes(layout, model, policy) : 0;
    for (uint32_t k = 0; k < policy->refreshes; k++) share += shard_bytes(layout, policy->refresh[k]);
    share = (uint64_t)((double)share * t->device_share);
    for (uint32_t k = 0; k < policy->refreshes && share; k++) {
        uint32_t region = policy->region[k].kth_trained;
        struct offload_region *r = &layout->region[region];
        bool brief = policy->region[region].grad_brief;
        uint64_t state = shard_bytes(layout, region),
                 shard = device_grads && leaves_shard(&policy->region[region])
                             ? chunk_layout_grad_bytes(layout, region)
                             : 0,
                 grads = brief ? turns : shard;
        bool whole = state <= share && state + grads <= left;
        r->device = whole ? r->chunks : r->chunks ? whole_chunks(layout, region, min64(share, left)) : 0;
        if (r->resident < r->device) r->resident = r->device;
        layout->device_bytes +=
            chunk_layout_device(layout, region) * chunk_format_bytes(format_of(layout, region));
        if (!whole && state) break; /* a shard without state stops nothing */
        share -= state;
        left -= whole ? state + grads : 0;
        if (whole && brief) turns = 0;
    }
}

/* Keeps other state in memory, from the first region in the order of refresh on, while it fits in resident_bytes. */
static void choose_residents(struct chunk_layout *layout, const struct terms *t,
                             const struct policy *policy) {
    uint64_t left = t->resident_bytes;
    for (uint32_t k = 0; k < policy->refreshes; k++) {
        uint32_t region = policy->refresh[k];
        struct offload_region *r = &layout->region[region];
        uint64_t bytes = chunk_format_bytes(format_of(layout, region)),
                 device = chunk_layout_device(layout, region) * bytes,
                 all = shard_bytes(layout, region) - device;
        layout->state_bytes += all + device;
        if (r->resident < r->chunks)
            r->resident =
                left >= all ? r->chunks : r->device + (uint32_t)(left / (layout->chunk_elements * bytes));
        uint64_t kept = chunk_layout_resident(layout, region) * bytes;
        layout->resident_bytes += kept;
        left = r->resident < r->chunks ? 0 : left - min64(left, kept - device);
    }
}

/* Keeps gradients in memory, from the first region in the order of refresh on, while whole shards fit. */
static void choose_gradients(struct chunk_layout *layout, const struct terms *t,
                             const struct policy *policy) {
    uint64_t left = t->grad_resident_bytes;
    for (uint32_t k = 0; k < policy->refreshes && terms_grads_staged(t); k++) {
        uint32_t region = policy->refresh[k];
        uint64_t bytes = chunk_layout_grad_bytes(layout, region);
        if (!leaves_shard(&policy->region[region]) || chunk_layout_device_whole(layout, region)) continue;
        layout->region[region].grads = bytes > left;
        layout->region[region].held = bytes > left && policy->region[region].grad_turns;
        left = bytes > left ? 0 : left - bytes;
    }
}

/* If the host updates for a device, the sums of a use's micro-batches wait on the device, wherever their shards rest. */
static void choose_held(struct chunk_layout *layout, const struct terms *t, const struct policy *policy) {
    for (uint32_t k = 0; k < policy->refreshes && t->discrete && t->state_tier != TIER_DEVICE; k++) {
        uint32_t region = policy->refresh[k];
        layout->region[region].held =
            policy->region[region].grad_turns && !chunk_layout_device_whole(layout, region);
    }
}

/* The bytes of state and parameters that all legs of an update fetch of a chunk. */
static uint64_t fetched_bytes(const struct chunk_layout *layout, uint32_t region, const struct chunk *c,
                              enum outcome outcome) {
    const struct offload_region *r = &layout->region[region];
    uint64_t bytes = 0;
    for (uint8_t i = 0; i < update_rows[r->scope].legs; i++) {
        uint8_t arrays = leg_moves(&update_rows[r->scope].leg[i], r->place, OP_FETCH, outcome);
        struct chunk moved = with_arrays(layout, region, *c, arrays);
        bytes += (c->state ? chunk_record_bytes(&moved) : 0) + moved.params * moved.param_bytes;
    }
    return bytes;
}

static void place_records(struct chunk_layout *layout, const struct policy *policy) {
    uint64_t staged = 0;
    for (uint32_t i = 0; i < policy->regions; i++) {
        const struct offload_region *r = &layout->region[i];
        layout->first_record[i] = layout->record_row_bytes;
        for (uint32_t c = offload_staged_first(r); c < r->chunks && !policy->region[i].frozen; c++) {
            struct chunk chunk = chunk_layout_at(layout, i, c);
            uint64_t record = chunk.state ? chunk_record_bytes(&chunk) : 0;
            layout->record_row_bytes += record;
            uint64_t step = record + chunk.params * chunk.param_bytes;
            layout->step_bytes += step;
            layout->grad_bytes += chunk.grads * chunk.grad_bytes;
            layout->again_bytes += fetched_bytes(layout, i, &chunk, OUTCOME_UPDATED) - step;
            layout->again_record_bytes += fetched_bytes(layout, i, &chunk, OUTCOME_REPEATED) - record;
            staged++;
        }
    }
    layout->slots = (uint32_t)min64(layout->slots, staged);
}

static void size_slots(struct chunk_layout *layout, const struct terms *t, uint32_t regions) {
    for (uint32_t i = 0; i < regions; i++) {
        const struct chunk_format *format = format_of(layout, i);
        uint64_t record = terms_state_staged(t) && format->arrays
                              ? record_bytes(layout, format, layout->chunk_elements)
                              : 0,
                 params =
                     terms_params_staged(t) ? layout->chunk_elements * dtype_bytes(format->param_dtype) : 0,
                 grads = terms_grads_staged(t) ? layout->chunk_elements * dtype_bytes(format->grad_dtype) : 0;
        layout->slot_param[layout->kind[i]] = record;
        layout->slot_grad[layout->kind[i]] = record + params;
        if (record + params + grads > layout->slot_bytes) layout->slot_bytes = record + params + grads;
    }
}

/* Room for as many chunks of the largest region as two pieces have; a small region leaves room for the next one. */
static void size_ring(struct chunk_ring *ring, uint64_t slot_bytes, uint32_t chunks, uint64_t piece_bytes) {
    uint64_t slots = RING_PIECES * piece_bytes / slot_bytes;
    if (slots > RING_PIECES * (uint64_t)chunks) slots = RING_PIECES * (uint64_t)chunks;
    if (slots > RING_SLOTS_MAX) slots = RING_SLOTS_MAX;
    ring->slots = slots < RING_SLOTS_MIN ? RING_SLOTS_MIN : (uint32_t)slots;
    ring->slot_bytes = slot_bytes;
}

static void size_rings(struct chunk_layout *layout, const struct terms *t, uint32_t regions) {
    uint64_t piece = piece_bytes(t), params = 0, grads = 0;
    uint32_t param_chunks = 0, grad_chunks = 0;
    for (uint32_t i = 0; i < regions; i++) {
        const struct offload_region *r = &layout->region[i];
        struct chunk c = chunk_layout_at(layout, i, 0); /* no other is larger */
        bool staged = r->params && !r->in_place, ring = r->grads && (!r->held || t->discrete);
        if (staged && c.param_bytes > params) params = c.param_bytes;
        if (ring && c.grad_bytes > grads) grads = c.grad_bytes;
        if (staged && r->chunks > param_chunks) param_chunks = r->chunks;
        if (ring && r->chunks > grad_chunks) grad_chunks = r->chunks;
    }
    if (params) size_ring(&layout->params, params, param_chunks, piece);
    if (grads) size_ring(&layout->grads, grads, grad_chunks, piece);
}

zero_status chunk_layout_make(struct chunk_layout *layout, const struct terms *t,
                              const struct chunk_format format[CHUNK_FORMATS], const struct model *model,
                              const struct policy *policy, struct zero_error *error) {
    uint32_t regions = policy->regions;
    *layout =
        (struct chunk_layout){.align_bytes = t->chunk_align_bytes ? t->chunk_align_bytes : CHUNK_ALIGN_BYTES,
                              .slots = t->slots ? t->slots : SLOTS_DEFAULT};
    for (int f = 0; f < CHUNK_FORMATS; f++) layout->format[f] = format[f];
    layout->region = calloc(regions, sizeof *layout->region);
    layout->kind = calloc(regions, sizeof *layout->kind);
    layout->elements = calloc(regions, sizeof *layout->elements);
    layout->first_record = calloc(regions, sizeof *layout->first_record);
    layout->first_chunk = calloc(regions, sizeof *layout->first_chunk);
    if (!layout->region || !layout->kind || !layout->elements || !layout->first_record ||
        !layout->first_chunk)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan of chunks");
    for (uint32_t i = 0; i < regions; i++) {
        const struct region *r = &policy->region[i];
        layout->kind[i] = (uint8_t)chunk_format_index(region_keeps_fp32(&model->region[i]),
                                                      region_other(&model->region[i]));
        layout->format[layout->kind[i]].apart |= update_rows[r->scope].legs > 1;
        layout->elements[i] =
            model->region[i].padded / placement_parts(r->frozen ? r->rest : r->state, policy->mesh);
    }
    choose_chunk(layout, t, regions);
    cut_regions(layout, t, policy);
    choose_device(layout, t, model, policy);
    choose_gradients(layout, t, policy);
    choose_held(layout, t, policy);
    choose_residents(layout, t, policy);
    place_records(layout, policy);
    size_slots(layout, t, regions);
    size_rings(layout, t, regions);
    return ZERO_OK;
}

void chunk_layout_free(struct chunk_layout *layout) {
    free(layout->region);
    free(layout->kind);
    free(layout->elements);
    free(layout->first_record);
    free(layout->first_chunk);
}
