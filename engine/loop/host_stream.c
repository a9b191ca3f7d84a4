#include "engine/loop/slots.h"

#include <string.h>

/* Takes the lock, once the stream has room. The stream may wait for a peer that has died. So this function waits without the lock, and
 * polls. False: the engine has failed. */
static bool take_stream(struct running *run) {
    if (run_wait(run, executor_stream_has_room)) return false;
    fair_lock_take(&run->ranks->lock);
    return true;
}

void host_stream_copy(struct running *run, void *target, const void *source, uint64_t bytes) {
    uint64_t ticket;
    if (!run->discrete) memcpy(target, source, bytes);
    if (!run->discrete || !take_stream(run)) return;
    run->device->ops->copy(run->device, DEVICE_COMPUTE, target, source, bytes, &ticket,
                           executor_error(run->executor));
    fair_lock_give(&run->ranks->lock);
}

void host_stream_clear(struct running *run, void *memory, uint64_t bytes) {
    uint64_t ticket;
    if (!run->discrete) memset(memory, 0, bytes);
    if (!run->discrete || !bytes || !take_stream(run)) return;
    run->device->ops->clear(run->device, DEVICE_COMPUTE, memory, bytes, &ticket,
                            executor_error(run->executor));
    fair_lock_give(&run->ranks->lock);
}

static void submit_take(struct running *run, const struct gradient_take_argument *a) {
    uint64_t ticket, bytes = a->count * dtype_bytes((enum dtype)a->dtype);
    struct device_work work = {.kernel = &kernel_gradient_take,
                               .stream = DEVICE_COMPUTE,
                               .reads = (uint8_t)(1 + a->add),
                               .writes = 1,
                               .read = {{(void *)(uintptr_t)a->gradient, bytes}, {a->sum, bytes}},
                               .write = {{a->sum, bytes}}};
    memcpy(work.argument, a, sizeof *a);
    if (!take_stream(run)) return;
    run->device->ops->submit(run->device, &work, &ticket, executor_error(run->executor));
    fair_lock_give(&run->ranks->lock);
}

void host_stream_take_gradients(struct running *run, gradient_item_fn item, const void *user, uint32_t items,
                                uint32_t threads) {
    if (!run->discrete) gradients_take(item, user, items, threads);
    for (uint32_t i = 0; run->discrete && i < items; i++) {
        struct gradient_take_argument a = item(user, i);
        if (!a.count) continue;
        if (a.gradient)
            submit_take(run, &a);
        else if (!a.add)
            host_stream_clear(run, a.sum, a.count * dtype_bytes((enum dtype)a.dtype));
    }
}
