#include "engine/swap.h"

#include <stdlib.h>

static uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- one chunk ---- */

/* Where the arrays of a record of so many elements begin; returns where they end. */
static uint64_t place_arrays(const struct swap *swap, uint64_t elements, uint64_t out[PRECISION_ARRAYS_MAX]) {
    uint64_t end = 0;
    for (uint32_t k = 0; k < swap->arrays; k++) {
        out[k] = end;
        end += round_up(elements * swap->array_bytes[k], ALIGN_BYTES);
    }
    return end;
}

static uint64_t record_bytes(const struct swap *swap, uint64_t elements) {
    uint64_t array[PRECISION_ARRAYS_MAX];
    return round_up(place_arrays(swap, elements, array) + CHUNK_TAG_BYTES, swap->align_bytes);
}

struct chunk swap_chunk(const struct swap *swap, uint32_t region, uint32_t i) {
    const struct offload_region *r = &swap->region[region];
    struct chunk c = {.first = i * swap->chunk_elements, .index = swap->first_chunk[region] + i};
    c.count = min64(swap->chunk_elements, swap->elements[region] - c.first);
    c.state = i >= r->resident;
    c.params = r->params;
    c.tag = place_arrays(swap, c.count, c.array);
    c.record_bytes = record_bytes(swap, c.count);
    if (c.state)
        c.record = swap->first_record[region] + (i - r->resident) * record_bytes(swap, swap->chunk_elements);
    c.param_place = c.first * dtype_bytes(swap->param_dtype);
    c.param_used = c.count * dtype_bytes(swap->param_dtype);
    c.param_bytes = round_up(c.param_used, swap->align_bytes);
    return c;
}

uint64_t swap_resident_elements(const struct swap *swap, uint32_t region) {
    return min64(swap->region[region].resident * swap->chunk_elements, swap->elements[region]);
}

uint64_t swap_param_bytes(const struct swap *swap, uint32_t region) {
    return round_up(swap->elements[region] * dtype_bytes(swap->param_dtype), swap->align_bytes);
}

/* ---- all of them ---- */

static bool rests_sharded(const struct region *r) { return !placement_is(r->rest, REPLICATE, REPLICATE); }

/* A chunk is not larger than the largest shard, so that small models plan small slots. */
static void choose_chunk(struct swap *swap, const struct swap_options *o, uint32_t regions) {
    uint64_t largest = 0, page = swap->align_bytes / dtype_bytes(o->param_dtype),
             elements = CHUNK_BYTES_DEFAULT / (swap->element_bytes ? swap->element_bytes : 1);
    for (uint32_t i = 0; i < regions; i++)
        if (swap->elements[i] > largest) largest = swap->elements[i];
    if (o->chunk_elements_max && o->chunk_elements_max < elements) elements = o->chunk_elements_max;
    elements = min64(elements, round_up(largest, page)) / page * page;
    swap->chunk_elements = elements ? elements : page;
}

/* Nothing of an optimizer without state is staged on its account. */
static void cut_regions(struct swap *swap, const struct swap_options *o, const struct policy *policy) {
    bool state = o->state && o->arrays;
    for (uint32_t i = 0; i < policy->regions; i++) {
        uint64_t chunks = round_up(swap->elements[i], swap->chunk_elements) / swap->chunk_elements;
        swap->region[i] = (struct offload_region){.chunks = (uint32_t)chunks,
                                                  .resident = (uint32_t)chunks,
                                                  .params = o->params && rests_sharded(&policy->region[i])};
        if (state && !policy->region[i].frozen) swap->region[i].resident = 0;
        swap->first_chunk[i] = swap->chunks;
        swap->chunks += chunks;
    }
}

/* A fixed prefix of the order of use stays in memory. */
static void choose_residents(struct swap *swap, const struct swap_options *o, const struct policy *policy) {
    uint64_t left = o->resident_bytes, chunk_bytes = swap->chunk_elements * swap->element_bytes;
    for (uint32_t k = 0; k < policy->refreshes; k++) {
        uint32_t region = policy->refresh[k];
        struct offload_region *r = &swap->region[region];
        uint64_t all = swap->elements[region] * swap->element_bytes;
        swap->state_bytes += all;
        if (r->resident < r->chunks) r->resident = left >= all ? r->chunks : (uint32_t)(left / chunk_bytes);
        uint64_t kept = swap_resident_elements(swap, region) * swap->element_bytes;
        swap->resident_bytes += kept;
        left = r->resident < r->chunks ? 0 : left - min64(left, kept);
    }
}

static void place_records(struct swap *swap, const struct policy *policy) {
    uint64_t staged = 0;
    for (uint32_t i = 0; i < policy->regions; i++) {
        const struct offload_region *r = &swap->region[i];
        swap->first_record[i] = swap->record_row_bytes;
        for (uint32_t c = offload_staged_first(r); c < r->chunks && !policy->region[i].frozen; c++) {
            struct chunk chunk = swap_chunk(swap, i, c);
            if (chunk.state) swap->record_row_bytes += chunk.record_bytes;
            swap->step_bytes += chunk.state * chunk.record_bytes + chunk.params * chunk.param_bytes;
            staged++;
        }
    }
    swap->slots = (uint32_t)min64(swap->slots, staged);
}

zero_status swap_make(struct swap *swap, const struct swap_options *o, const struct model *model,
                      const struct policy *policy, struct zero_error *error) {
    uint32_t regions = policy->regions;
    *swap = (struct swap){.align_bytes = o->align_bytes ? o->align_bytes : CHUNK_ALIGN_BYTES,
                          .arrays = o->arrays,
                          .param_dtype = o->param_dtype,
                          .slots = o->slots ? o->slots : SLOTS_DEFAULT};
    for (uint32_t k = 0; k < o->arrays; k++) swap->element_bytes += swap->array_bytes[k] = o->array_bytes[k];
    swap->region = calloc(regions, sizeof *swap->region);
    swap->elements = calloc(regions, sizeof *swap->elements);
    swap->first_record = calloc(regions, sizeof *swap->first_record);
    swap->first_chunk = calloc(regions, sizeof *swap->first_chunk);
    if (!swap->region || !swap->elements || !swap->first_record || !swap->first_chunk)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan of chunks");
    for (uint32_t i = 0; i < regions; i++) {
        const struct region *r = &policy->region[i];
        swap->elements[i] =
            model->region[i].padded / placement_parts(r->frozen ? r->rest : r->state, policy->mesh);
    }
    choose_chunk(swap, o, regions);
    cut_regions(swap, o, policy);
    choose_residents(swap, o, policy);
    place_records(swap, policy);
    swap->slot_param = o->state && o->arrays ? record_bytes(swap, swap->chunk_elements) : 0;
    swap->slot_bytes =
        swap->slot_param + (o->params ? swap->chunk_elements * dtype_bytes(o->param_dtype) : 0);
    return ZERO_OK;
}

void swap_free(struct swap *swap) {
    free(swap->region);
    free(swap->elements);
    free(swap->first_record);
    free(swap->first_chunk);
}
