/* What the host's calls read and write of the device's memory: between steps, waiting for each copy. */
#include <string.h>

#include "engine/engine_internal.h"

bool reach_is_device(const zero_engine *e, const void *address) {
    struct tier *tier = e->tier[TIER_DEVICE];
    const uint8_t *extent = tier->ops->address(tier), *at = address;
    return e->separate && extent && at >= extent && at < extent + tier->bytes;
}

/* Without the lock while it waits: the others may be moving, where a save in the background reads. */
static zero_status finish(zero_engine *e, zero_status status, uint64_t ticket, struct zero_error *error) {
    for (bool done = false; !status && !done;) {
        turn_take(&e->lock);
        status = e->device->ops->test(e->device, ticket, &done, error);
        turn_give(&e->lock);
        if (!done) sched_yield();
    }
    return status ? engine_fail(e, error) : ZERO_OK;
}

zero_status reach_copy(zero_engine *e, void *target, const void *source, uint64_t bytes) {
    bool out = reach_is_device(e, source), in = reach_is_device(e, target);
    struct zero_error error;
    uint64_t ticket;
    if (!out && !in) return memmove(target, source, bytes), ZERO_OK;
    error_clear(&error);
    turn_take(&e->lock);
    zero_status status =
        e->device->ops->copy(e->device, out ? DEVICE_OUT : DEVICE_IN, target, source, bytes, &ticket, &error);
    turn_give(&e->lock);
    return finish(e, status, ticket, &error);
}

zero_status reach_clear(zero_engine *e, void *memory, uint64_t bytes) {
    struct zero_error error;
    uint64_t ticket;
    if (!reach_is_device(e, memory)) return memset(memory, 0, bytes), ZERO_OK;
    error_clear(&error);
    turn_take(&e->lock);
    zero_status status = e->device->ops->clear(e->device, DEVICE_IN, memory, bytes, &ticket, &error);
    turn_give(&e->lock);
    return finish(e, status, ticket, &error);
}
