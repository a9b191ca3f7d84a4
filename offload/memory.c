/* The tiers in memory: the device's memory, and the host's memory (pinned if the device is not the host). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/tier.h"

struct memory {
    struct tier base;
    struct device *device;
    enum device_memory kind;
    void *address;
    uint64_t space_used_bytes;
};

static void memory_close(struct tier *tier) {
    struct memory *memory = (struct memory *)tier;
    if (memory->address)
        memory->device->ops->release(memory->device, memory->address, tier->bytes, memory->kind);
    if (tier->space)
        memory->device->ops->unreserve(memory->device, tier->space, tier->space_bytes,
                                       memory->space_used_bytes);
    free(memory);
}

static zero_status refused(struct memory *memory, uint64_t bytes, const char *of, struct zero_error *error) {
    const char *name = memory->base.ops->name;
    memory_close(&memory->base);
    return error_set(error, ZERO_E_MEMORY,
                     "tier %s: the system refused %" PRIu64
                     " bytes%s; set a smaller memory budget or use more ranks",
                     name, bytes, of);
}

static zero_status memory_open(const struct tier_ops *ops, const struct tier_options *options,
                               enum device_memory kind, struct tier **out_tier, struct zero_error *error) {
    struct memory *memory = calloc(1, sizeof *memory);
    if (!memory) return error_set(error, ZERO_E_MEMORY, "tier %s: no memory for its handle", ops->name);
    struct device *device = options->device;
    *memory = (struct memory){
        .base = {.ops = ops, .bytes = options->bytes, .alignment = 1, .space_bytes = options->space_bytes},
        .device = device,
        .kind = kind,
        .space_used_bytes = options->space_used_bytes};
    uint64_t before = device ? device->allocated[kind] : 0; /* a tier of no bytes needs none */
    if (options->bytes) memory->address = device->ops->allocate(device, options->bytes, kind);
    const char *pinned = " that the GPU's driver pins (look at ulimit -l, and at a container's limits)";
    if (options->bytes && !memory->address)
        return refused(memory, options->bytes, kind == DEVICE_PINNED && device->discrete ? pinned : "",
                       error);
    if (options->space_bytes)
        memory->base.space = device->ops->reserve(device, options->space_bytes, options->space_used_bytes);
    if (options->space_bytes && !memory->base.space)
        return device->ops->fill ? refused(memory, options->space_used_bytes, " for units in use", error)
                                 : refused(memory, options->space_bytes, " of address space", error);
    if (device) memory->base.allocated = device->allocated[kind] - before;
    *out_tier = &memory->base;
    return ZERO_OK;
}

static void *memory_address(struct tier *tier) { return ((struct memory *)tier)->address; }

static zero_status memory_post(struct tier *tier, const struct tier_request *r, struct tier_work **out_work,
                               struct zero_error *error) {
    TRY(tier_check(tier, r, error));
    uint8_t *place = (uint8_t *)memory_address(tier) + r->offset;
    if (r->bytes) memcpy(r->write ? place : r->memory, r->write ? r->memory : place, r->bytes);
    *(r->write ? &tier->written_bytes : &tier->read_bytes) += r->bytes;
    *out_work = NULL;
    return ZERO_OK;
}

static zero_status memory_test(struct tier *tier, struct tier_work *work, bool *out_done,
                               struct zero_error *error) {
    *out_done = true;
    return ZERO_OK;
}

static void memory_wait(struct tier *tier, uint64_t timeout_ns) {}

static zero_status memory_sync(struct tier *tier, struct zero_error *error) { return ZERO_OK; }

static void memory_where(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity) {
    snprintf(out, capacity, "tier %s at offset %" PRIu64, tier->ops->name, offset);
}

static zero_status device_open(const struct tier_options *options, struct tier **out_tier,
                               struct zero_error *error) {
    return memory_open(&tier_device, options, DEVICE_MEMORY, out_tier, error);
}

static zero_status cpu_open(const struct tier_options *options, struct tier **out_tier,
                            struct zero_error *error) {
    return memory_open(&tier_cpu, options, DEVICE_PINNED, out_tier, error);
}

#define IN_MEMORY                                                                                            \
    .close = memory_close, .address = memory_address, .post = memory_post, .test = memory_test,              \
    .wait = memory_wait, .sync = memory_sync, .where = memory_where

const struct tier_ops tier_device = {
    .name = "device", .choice = "none", .kind = TIER_DEVICE, .open = device_open, IN_MEMORY};
const struct tier_ops tier_cpu = {
    .name = "cpu", .choice = "cpu", .kind = TIER_CPU, .open = cpu_open, IN_MEMORY};
