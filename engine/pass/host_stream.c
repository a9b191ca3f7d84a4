#include "engine/pass/host_stream.h"

#include <string.h>

#include "kernels/work.h"

void host_stream_copy(struct running *run, void *target, const void *source, uint64_t bytes) {
    uint64_t ticket;
    if (!run->discrete) memcpy(target, source, bytes);
    if (!run->discrete) return;
    turn_take(&run->ranks->lock);
    run->device->ops->copy(run->device, DEVICE_COMPUTE, target, source, bytes, &ticket,
                           executor_error(run->executor));
    turn_give(&run->ranks->lock);
}

void host_stream_clear(struct running *run, void *memory, uint64_t bytes) {
    uint64_t ticket;
    if (!run->discrete) memset(memory, 0, bytes);
    if (!run->discrete || !bytes) return;
    turn_take(&run->ranks->lock);
    run->device->ops->clear(run->device, DEVICE_COMPUTE, memory, bytes, &ticket,
                            executor_error(run->executor));
    turn_give(&run->ranks->lock);
}

void host_stream_take_gradient(struct running *run, enum dtype compute, void *sum, const void *gradient,
                               uint64_t count, bool add) {
    uint64_t ticket, bytes = count * dtype_bytes(compute);
    struct gradient_take_argument a = {sum, gradient, count, compute, add};
    if (!run->discrete) kernel_gradient_take.run(&a);
    if (!run->discrete) return;
    struct device_work work = {.kernel = &kernel_gradient_take,
                               .stream = DEVICE_COMPUTE,
                               .reads = (uint8_t)(1 + add),
                               .writes = 1,
                               .read = {{(void *)gradient, bytes}, {sum, bytes}},
                               .write = {{sum, bytes}}};
    memcpy(work.argument, &a, sizeof a);
    turn_take(&run->ranks->lock);
    run->device->ops->submit(run->device, &work, &ticket, executor_error(run->executor));
    turn_give(&run->ranks->lock);
}
