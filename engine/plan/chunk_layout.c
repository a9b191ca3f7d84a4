#include "engine/plan/chunk_layout.h"

#include <stdlib.h>

static uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

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

/* The weights of a record's elements are in its masters; all of each. */
static bool keeps_masters(const struct chunk_format *format) { return format->param_dtype != DTYPE_F32; }

static bool keeps_weights(const struct chunk_format *format) {
    bool masters = keeps_masters(format) && format->arrays > format->states;
    return masters && format->array_bytes[format->states] == sizeof(float);
}

/* Sets the places in the record of a chunk of c->count elements. */
static void place_arrays(const struct chunk_layout *layout, const struct chunk_format *format,
                         struct chunk *c) {
    struct record_part *states = &c->part[PART_STATES], *weights = &c->part[PART_WEIGHTS];
    bool halves = format->halves && format->moments < format->arrays;
    c->states = format->states;
    place_part(layout, format, 0, halves ? format->moments : format->arrays, c, states);
    weights->at = states->bytes;
    if (halves) place_part(layout, format, format->moments, format->arrays, c, weights);
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

struct chunk chunk_layout_needed(const struct chunk_layout *layout, const struct operation *op,
                                 uint32_t item) {
    struct chunk c = chunk_layout_at(layout, op->region, op->first + item);
    const struct offload_region *r = &layout->region[op->region];
    bool before = offload_half(op) == HALF_BEFORE;
    if (!r->halves) return c;
    if (!r->measures) c.part[before ? PART_WEIGHTS : PART_STATES].bytes = 0;
    c.params &= !before || (r->measures && r->reads);
    c.grads &= before;
    return c;
}

/* Both halves read states and weights. The first half changes the states, the second half everything else. A repeated update finds
 * the weights in the record's copy; an update that is taken back reads the parts that it changed. */
static void move_measured(const struct chunk_format *format, const struct operation *op, struct chunk *c) {
    bool before = offload_half(op) == HALF_BEFORE, fetches = op->kind == OP_FETCH,
         params = before && !keeps_masters(format) && op->outcome == OUTCOME_UPDATED;
    if (fetches && params) c->part[PART_WEIGHTS].bytes = 0;
    if (fetches && op->outcome != OUTCOME_SKIPPED) return;
    c->part[before ? PART_WEIGHTS : PART_STATES].bytes = 0;
    c->params &= !before;
}

struct chunk chunk_layout_moved(const struct chunk_layout *layout, const struct operation *op,
                                uint32_t item) {
    struct chunk c = chunk_layout_needed(layout, op, item);
    bool fetches = op->kind == OP_FETCH;
    if (layout->region[op->region].measures) move_measured(format_of(layout, op->region), op, &c);
    if (!fetches || op->outcome == OUTCOME_SKIPPED) c.grads = false;
    if (fetches && op->outcome != OUTCOME_UPDATED) c.params = false;
    if (!fetches && op->outcome == OUTCOME_SKIPPED) c.state = false;
    return c;
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
static uint64_t page_elements(const struct chunk_layout *layout, const struct chunk_layout_options *o,
                              uint32_t region) {
    const struct chunk_format *format = format_of(layout, region);
    uint64_t param = dtype_bytes(format->param_dtype), grad = dtype_bytes(format->grad_dtype);
    return layout->align_bytes / (o->grads && grad < param ? grad : param);
}

static uint64_t piece_bytes(const struct chunk_layout_options *o) {
    return o->piece_bytes ? o->piece_bytes : PIECE_BYTES_DEFAULT;
}

/* A chunk is at most as large as the largest shard, so that small models plan small slots. It has whole pages of the
 * narrowest parameters and gradients. If gradients are reduced chunk by chunk, it has whole blocks of the norm, too; only
 * simulations with smaller pages do without, since their norms need not have the bits of another tier. */
static void choose_chunk(struct chunk_layout *layout, const struct chunk_layout_options *o,
                         uint32_t regions) {
    uint64_t largest = 0, page = 0, most = 1;
    for (uint32_t i = 0; i < regions; i++) {
        const struct chunk_format *format = format_of(layout, i);
        uint64_t per_page = page_elements(layout, o, i);
        if (layout->elements[i] > largest) largest = layout->elements[i];
        if (per_page > page) page = per_page;
        if (chunk_format_bytes(format) > most) most = chunk_format_bytes(format);
    }
    if (o->grads && !o->align_bytes && page < NORM_BLOCK_ELEMENTS) page = NORM_BLOCK_ELEMENTS;
    uint64_t elements = CHUNK_BYTES_DEFAULT / most;
    if (o->chunk_elements_max && o->chunk_elements_max < elements) elements = o->chunk_elements_max;
    if (o->params || o->grads) elements = min64(elements, piece_bytes(o) / sizeof(float));
    elements = min64(elements, round_up(largest, page)) / page * page;
    layout->chunk_elements = elements ? elements : page;
}

/* The drive moves whole pages. So each rank's part of the gathered region has to be whole pages, unless there is only one: behind it is
 * room. */
static bool read_in_place(const struct chunk_layout *layout, const struct chunk_layout_options *o,
                          const struct policy *policy, uint32_t region) {
    const struct region *r = &policy->region[region];
    uint64_t bytes = layout->elements[region] * dtype_bytes(format_of(layout, region)->param_dtype);
    bool pages = bytes % layout->align_bytes == 0 || placement_parts(r->rest, policy->mesh) == 1;
    return o->params && o->reads_in_place && rests_sharded(r) && pages;
}

/* An optimizer without state has no state to stage: its chunks count as resident. */
static void cut_regions(struct chunk_layout *layout, const struct chunk_layout_options *o,
                        const struct policy *policy) {
    for (uint32_t i = 0; i < policy->regions; i++) {
        uint64_t chunks = round_up(layout->elements[i], layout->chunk_elements) / layout->chunk_elements;
        const struct chunk_format *format = format_of(layout, i);
        layout->region[i] = (struct offload_region){.chunks = (uint32_t)chunks,
                                                    .resident = (uint32_t)chunks,
                                                    .params = o->params && rests_sharded(&policy->region[i]),
                                                    .in_place = read_in_place(layout, o, policy, i),
                                                    .halves = format->halves,
                                                    .measures = policy->region[i].tensors,
                                                    .weights = format->arrays > format->moments,
                                                    .reads = !keeps_weights(format)};
        if (o->state && format->arrays && !policy->region[i].frozen) layout->region[i].resident = 0;
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

/* Puts state on the device, from the first region in the order of refresh on. */
static void choose_device(struct chunk_layout *layout, const struct chunk_layout_options *o,
                          const struct policy *policy) {
    uint64_t left = o->device_bytes, share = 0;
    for (uint32_t k = 0; k < policy->refreshes; k++) share += shard_bytes(layout, policy->refresh[k]);
    share = (uint64_t)((double)share * o->device_share);
    for (uint32_t k = 0; k < policy->refreshes && share; k++) {
        uint32_t region = policy->refresh[k];
        struct offload_region *r = &layout->region[region];
        uint64_t state = shard_bytes(layout, region),
                 grads = o->device_grads && leaves_shard(&policy->region[region])
                             ? chunk_layout_grad_bytes(layout, region)
                             : 0;
        bool whole = state <= share && state + grads <= left;
        r->device = whole ? r->chunks : r->chunks ? whole_chunks(layout, region, min64(share, left)) : 0;
        if (r->resident < r->device) r->resident = r->device;
        layout->device_bytes +=
            chunk_layout_device(layout, region) * chunk_format_bytes(format_of(layout, region));
        if (!whole && state) break; /* a shard without state stops nothing */
        share -= state;
        left -= whole ? state + grads : 0;
    }
}

/* Keeps other state in memory, from the first region in the order of refresh on, while it fits in resident_bytes. */
static void choose_residents(struct chunk_layout *layout, const struct chunk_layout_options *o,
                             const struct policy *policy) {
    uint64_t left = o->resident_bytes;
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
static void choose_gradients(struct chunk_layout *layout, const struct chunk_layout_options *o,
                             const struct policy *policy) {
    uint64_t left = o->grad_resident_bytes;
    for (uint32_t k = 0; k < policy->refreshes && o->grads; k++) {
        uint32_t region = policy->refresh[k];
        uint64_t bytes = chunk_layout_grad_bytes(layout, region);
        if (!leaves_shard(&policy->region[region]) || chunk_layout_device_whole(layout, region)) continue;
        layout->region[region].grads = bytes > left;
        layout->region[region].held = bytes > left && policy->region[region].grad_turns;
        left = bytes > left ? 0 : left - bytes;
    }
}

/* The bytes that the first half of an update reads, in addition to the second half, which reads everything. */
static uint64_t again_bytes(const struct chunk_layout *layout, uint32_t region, const struct chunk *c) {
    const struct offload_region *r = &layout->region[region];
    uint64_t masters = keeps_masters(format_of(layout, region)) ? c->part[PART_WEIGHTS].bytes : 0,
             state = c->state ? c->part[PART_STATES].bytes + masters : 0;
    return r->measures ? state + (c->params && r->reads) * c->param_bytes : 0;
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
            layout->step_bytes += record + chunk.params * chunk.param_bytes;
            layout->grad_bytes += chunk.grads * chunk.grad_bytes;
            layout->again_bytes += again_bytes(layout, i, &chunk);
            layout->again_record_bytes += r->measures ? record : 0;
            staged++;
        }
    }
    layout->slots = (uint32_t)min64(layout->slots, staged);
}

static void size_slots(struct chunk_layout *layout, const struct chunk_layout_options *o, uint32_t regions) {
    for (uint32_t i = 0; i < regions; i++) {
        const struct chunk_format *format = format_of(layout, i);
        uint64_t record =
                     o->state && format->arrays ? record_bytes(layout, format, layout->chunk_elements) : 0,
                 params = o->params ? layout->chunk_elements * dtype_bytes(format->param_dtype) : 0,
                 grads = o->grads ? layout->chunk_elements * dtype_bytes(format->grad_dtype) : 0;
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

static void size_rings(struct chunk_layout *layout, const struct chunk_layout_options *o, uint32_t regions) {
    uint64_t piece = piece_bytes(o), params = 0, grads = 0;
    uint32_t param_chunks = 0, grad_chunks = 0;
    for (uint32_t i = 0; i < regions; i++) {
        const struct offload_region *r = &layout->region[i];
        struct chunk c = chunk_layout_at(layout, i, 0); /* no other is larger */
        bool staged = r->params && !r->in_place;
        if (staged && c.param_bytes > params) params = c.param_bytes;
        if (r->grads && !r->held && c.grad_bytes > grads) grads = c.grad_bytes;
        if (staged && r->chunks > param_chunks) param_chunks = r->chunks;
        if (r->grads && !r->held && r->chunks > grad_chunks) grad_chunks = r->chunks;
    }
    if (params) size_ring(&layout->params, params, param_chunks, piece);
    if (grads) size_ring(&layout->grads, grads, grad_chunks, piece);
}

zero_status chunk_layout_make(struct chunk_layout *layout, const struct chunk_layout_options *o,
                              const struct model *model, const struct policy *policy,
                              struct zero_error *error) {
    uint32_t regions = policy->regions;
    *layout = (struct chunk_layout){.align_bytes = o->align_bytes ? o->align_bytes : CHUNK_ALIGN_BYTES,
                                    .slots = o->slots ? o->slots : SLOTS_DEFAULT};
    for (int f = 0; f < CHUNK_FORMATS; f++) layout->format[f] = o->format[f];
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
        layout->format[layout->kind[i]].halves |= r->matrices || r->tensors;
        layout->elements[i] =
            model->region[i].padded / placement_parts(r->frozen ? r->rest : r->state, policy->mesh);
    }
    choose_chunk(layout, o, regions);
    cut_regions(layout, o, policy);
    choose_device(layout, o, policy);
    choose_gradients(layout, o, policy);
    choose_residents(layout, o, policy);
    place_records(layout, policy);
    size_slots(layout, o, regions);
    size_rings(layout, o, regions);
    return ZERO_OK;
}

void chunk_layout_free(struct chunk_layout *layout) {
    free(layout->region);
    free(layout->kind);
    free(layout->elements);
    free(layout->first_record);
    free(layout->first_chunk);
}
