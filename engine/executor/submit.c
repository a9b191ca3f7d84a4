/* Starts work and copies on the device. The item awaits them. */
#include "engine/executor/executor_internal.h"

#include <string.h>

zero_status await_ticket(struct executor *e, uint8_t streams, uint64_t ticket) {
    for (int s = 0; s < DEVICE_STREAMS && ticket; s++)
        if (streams & 1u << s)
            TRY(e->m.device->ops->wait(e->m.device, (enum device_stream)s, ticket, &e->error));
    return ZERO_OK;
}

static uint64_t written_bytes(const struct device_work *work) {
    uint64_t bytes = 0;
    struct device_span s;
    bool read;
    for (uint32_t i = 0; device_work_place(work, i, &s, &read); i++) bytes += read ? 0 : s.bytes;
    return bytes;
}

zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work) {
    work->kernel = kernel;
    work->stream = (uint8_t)stream;
    memcpy(work->argument, argument, kernel->argument_bytes);
    bool job = job_submit(e, item, JOBS_CHUNKS, kernel, argument, written_bytes(work));
    item->awaits = job ? AWAITS_JOB : AWAITS_DEVICE;
    if (job) return ZERO_OK;
    zero_status status = await_ticket(e, (uint8_t)(1u << stream), item->before);
    return status ? status : e->m.device->ops->submit(e->m.device, work, &item->ticket, &e->error);
}

zero_status clear_memory(struct executor *e, struct item *item, enum device_stream stream, void *memory,
                         uint64_t bytes) {
    item->awaits = AWAITS_DEVICE;
    zero_status status = await_ticket(e, (uint8_t)(1u << stream), item->before);
    return status ? status
                  : e->m.device->ops->clear(e->m.device, stream, memory, bytes, &item->ticket, &e->error);
}

zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes) {
    item->awaits = AWAITS_DEVICE;
    if (stream == DEVICE_OUT) e->traffic.to_host_bytes += bytes;
    if (stream == DEVICE_IN) e->traffic.to_device_bytes += bytes;
    zero_status status = await_ticket(e, (uint8_t)(1u << stream), item->before);
    return status
               ? status
               : e->m.device->ops->copy(e->m.device, stream, target, source, bytes, &item->ticket, &e->error);
}
