#include "engine/run/run.h"

#include <string.h>

bool device_has(const struct running *run, const void *address) {
    struct tier *tier = run->tier[TIER_DEVICE];
    const uint8_t *extent = tier->ops->address(tier), *space = tier->space, *at = address;
    return run->discrete && ((extent && at >= extent && at < extent + tier->bytes) ||
                             (space && at >= space && at < space + tier->space_bytes));
}

/* Waits without the lock: a save in the background may wait while the host and its progress thread work. */
static zero_status finish(struct running *run, zero_status status, uint64_t ticket,
                          struct zero_error *error) {
    for (bool done = false; !status && !done;) {
        fair_lock_take(&run->ranks->lock);
        status = run->device->ops->test(run->device, ticket, &done, error);
        fair_lock_give(&run->ranks->lock);
        if (!done) sched_yield();
    }
    return status;
}

zero_status device_copy(struct running *run, void *target, const void *source, uint64_t bytes,
                        struct zero_error *error) {
    bool out = device_has(run, source), in = device_has(run, target);
    uint64_t ticket;
    if (!out && !in) return memmove(target, source, bytes), ZERO_OK;
    fair_lock_take(&run->ranks->lock);
    zero_status status = run->device->ops->copy(run->device, out ? DEVICE_OUT : DEVICE_IN, target, source,
                                                bytes, &ticket, error);
    fair_lock_give(&run->ranks->lock);
    return finish(run, status, ticket, error);
}

zero_status device_fetch(struct running *run, void *target, const void *source, uint64_t bytes,
                         struct zero_error *error) {
    uint64_t ticket;
    fair_lock_take(&run->ranks->lock);
    zero_status status =
        run->device->ops->copy(run->device, DEVICE_COMPUTE, target, source, bytes, &ticket, error);
    fair_lock_give(&run->ranks->lock);
    return finish(run, status, ticket, error);
}

zero_status device_clear(struct running *run, void *memory, uint64_t bytes, struct zero_error *error) {
    uint64_t ticket;
    if (!device_has(run, memory)) return memset(memory, 0, bytes), ZERO_OK;
    fair_lock_take(&run->ranks->lock);
    zero_status status = run->device->ops->clear(run->device, DEVICE_IN, memory, bytes, &ticket, error);
    fair_lock_give(&run->ranks->lock);
    return finish(run, status, ticket, error);
}
