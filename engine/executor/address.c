/* From symbolic buffers to planned ones, and to addresses. */
#include "engine/executor/executor_internal.h"

uint32_t *buffer_binding(const struct executor *e, struct buffer_ref ref) {
    return &e->bound[plan_slot_kind(ref.kind) * e->o.shape.policy->regions + ref.region];
}

uint32_t bound_buffer(const struct executor *e, struct buffer_ref ref) {
    uint32_t fixed = plan_fixed(e->o.plan, ref);
    if (fixed != NO_BUFFER || !plan_has_slots(ref.kind)) return fixed;
    return *buffer_binding(e, ref);
}

void *buffer_address(const struct executor *e, uint32_t buffer) {
    const struct plan_buffer *b = &e->o.plan->buffer[buffer];
    if (plan_in_space(e->o.plan, buffer)) return (uint8_t *)e->m.space + b->offset;
    uint8_t *extent = e->m.memory[e->o.plan->row_tier[b->row]]; /* NULL: the tier is a drive */
    return extent ? extent + plan_place(e->o.plan, buffer) : NULL;
}

void *item_address(const struct executor *e, const struct item *item, struct buffer_ref ref,
                   uint32_t buffer) {
    const struct chunk_layout *layout = &e->o.plan->layout;
    const struct chunk_ring *ring = ref.kind == BUFFER_PARAM_STAGED ? &layout->params : &layout->grads;
    uint8_t *address = buffer_address(e, buffer);
    if (!buffer_is_ring(ref.kind)) return address;
    return address + (item->task->op.sequence + item->index) % ring->slots * ring->slot_bytes;
}

uint8_t *slot_address(const struct executor *e, uint64_t slot) {
    const struct plan *plan = e->o.plan;
    uint8_t *slots = (uint8_t *)e->m.memory[TIER_CPU] + plan->row_offset[MEMORY_SLOTS];
    return slots + slot % plan->layout.slots * plan->layout.slot_bytes;
}

uint8_t *access_slot(const struct executor *e) {
    const struct plan *plan = e->o.plan;
    return (uint8_t *)e->m.memory[TIER_CPU] + plan->row_offset[MEMORY_SLOTS] +
           plan->layout.slots * plan->layout.slot_bytes;
}

void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype) {
    uint8_t *address = buffer_address(e, buffer);
    bool whole = ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL;
    if (!whole) return address;
    uint32_t part = placement_part(placement, e->o.shape.policy->mesh, e->m.rank);
    return address + part * shard_elements(e, ref.region, placement) * dtype_bytes(dtype);
}

float *part_of_directions(const struct executor *e, uint32_t region, uint32_t buffer,
                          struct placement placement) {
    uint32_t part = placement_part(placement, e->o.shape.policy->mesh, e->m.rank);
    return (float *)buffer_address(e, buffer) + part * shard_elements(e, region, placement);
}

bool crosses(const struct executor *e, const void *address) {
    const uint8_t *extent = e->m.memory[TIER_CPU], *at = address;
    return e->o.shape.terms->discrete && extent && at >= extent &&
           at < extent + e->o.plan->tier_bytes[TIER_CPU];
}

uint64_t part_bytes(const struct executor *e, uint32_t buffer) {
    return round_up(e->o.plan->buffer[buffer].bytes, e->o.plan->terms->page_bytes);
}

void *executor_address(const struct executor *e, struct buffer_ref ref) {
    uint32_t buffer = lent_region(e, ref) ? NO_BUFFER : bound_buffer(e, ref);
    return buffer == NO_BUFFER ? NULL : buffer_address(e, buffer);
}

void *executor_lasting_address(const struct executor *e, struct buffer_ref ref) {
    uint32_t buffer = lent_region(e, ref) ? NO_BUFFER : plan_any(e->o.plan, ref);
    return buffer == NO_BUFFER ? NULL : buffer_address(e, buffer);
}

/* The address of an element of an array that is split: its device part is in the buffer of kind `there`, the rest in
 * the buffer of kind `other`. */
static void *resident_at(const struct executor *e, uint32_t region, uint32_t index, enum buffer_kind there,
                         enum buffer_kind other, uint64_t first, uint64_t element_bytes) {
    uint64_t device = chunk_layout_device(&e->o.plan->layout, region);
    enum buffer_kind kind = first < device ? there : other;
    uint8_t *address = executor_address(e, (struct buffer_ref){(uint16_t)kind, (uint16_t)index});
    return address ? address + (first < device ? first : first - device) * element_bytes : NULL;
}

void *executor_state(const struct executor *e, uint32_t region, uint32_t k, uint64_t first) {
    uint32_t index = k * e->o.shape.policy->regions + region;
    struct precision p = precision_of(&e->o.shape, region);
    return resident_at(e, region, index, BUFFER_DEVICE_STATE, BUFFER_STATE, first,
                       dtype_bytes(precision_state(&p, k, e->o.state_count)));
}

void *executor_master(const struct executor *e, uint32_t region, uint64_t first) {
    struct precision p = precision_of(&e->o.shape, region);
    return resident_at(e, region, region, BUFFER_DEVICE_MASTER, BUFFER_MASTER, first,
                       precision_master_bytes(&p));
}

/* zero0 reduces into this rank's part of the whole gradient if no shard is planned. */
void *executor_grad_shard(const struct executor *e, uint32_t region) {
    uint8_t *shard = executor_address(e, (struct buffer_ref){BUFFER_GRAD_SHARD, (uint16_t)region});
    if (shard) return shard;
    if (policy_region(e, region)->grad_lent || e->o.plan->layout.region[region].grads) return NULL;
    uint32_t shards = e->o.shape.policy->mesh[AXIS_SHARD];
    uint64_t bytes = e->o.shape.model->region[region].padded / shards *
                     dtype_bytes(precision_of(&e->o.shape, region).reduced);
    return (uint8_t *)executor_address(e, (struct buffer_ref){BUFFER_GRAD_FULL, (uint16_t)region}) +
           e->m.rank % shards * bytes;
}
