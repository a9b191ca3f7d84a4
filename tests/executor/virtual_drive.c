#include "tests/executor/virtual_drive.h"

#include <string.h>

void virtual_drive_plan(const struct virtual_drive_options *o, struct plan_options *plan) {
    if (o->state) plan->state_tier = TIER_NVME;
    if (o->params) plan->param_tier = TIER_NVME;
    plan->chunk_elements_max = o->chunk_elements;
    plan->chunk_align_bytes = ALIGN_BYTES;
    plan->slots = o->slots;
    plan->resident_bytes = o->resident_bytes;
}

zero_status virtual_drive_open(struct virtual_drive *d, const struct plan *plan, uint64_t seed,
                               struct zero_error *error) {
    *d = (struct virtual_drive){.faults = {.seed = seed}};
    if (!plan->tier_bytes[TIER_NVME]) return ZERO_OK;
    d->faults.probability[FAULT_DELAYED] = d->faults.probability[FAULT_REORDERED] = 0.3;
    zero_status status = device_table[DEVICE_HOST]->open(&(struct device_options){0}, &d->host, error);
    if (status) return status;
    struct tier_options options = {.bytes = plan->tier_bytes[TIER_NVME],
                                   .device = d->host,
                                   .requests_max = executor_requests_max(plan),
                                   .faults = &d->faults};
    return tier_open(TIER_CPU, &options, &d->tier, error);
}

void virtual_drive_close(struct virtual_drive *d) {
    if (d->tier) d->tier->ops->close(d->tier);
    if (d->host) d->host->ops->close(d->host);
}

/* The part of the shard that a chunk holds; it is in the last slot then. */
static zero_status find(struct executor *e, const struct swap *swap, uint32_t region, uint64_t at,
                        uint64_t *count, float **out) {
    uint32_t index = (uint32_t)(at / swap->chunk_elements);
    struct chunk c = swap_chunk(swap, region, index);
    uint8_t *slot;
    zero_status status = executor_chunk(e, region, index, &slot);
    if (c.count < *count) *count = c.count;
    *out = (float *)(void *)(slot + swap->slot_param);
    return status;
}

zero_status virtual_drive_read(struct executor *e, const struct swap *swap, uint32_t region, uint64_t count,
                               float *out) {
    for (uint64_t at = 0, piece = count; at < count; at += piece, piece = count - at) {
        float *found;
        zero_status status = find(e, swap, region, at, &piece, &found);
        if (status) return status;
        memcpy(out + at, found, piece * sizeof *out);
    }
    return ZERO_OK;
}

zero_status virtual_drive_write(struct executor *e, const struct swap *swap, uint32_t region, uint64_t count,
                                const float *in) {
    for (uint64_t at = 0, piece = count; at < count; at += piece, piece = count - at) {
        float *found;
        zero_status status = find(e, swap, region, at, &piece, &found);
        if (status) return status;
        memcpy(found, in + at, piece * sizeof *in);
        executor_chunk_written(e);
    }
    return ZERO_OK;
}
