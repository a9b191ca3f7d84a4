#include "engine/device/device.h"

#include "engine/device/implementations.h"

const struct device_ops *const device_table[DEVICE_KINDS] = {
    [DEVICE_HOST] = &device_host,
    [DEVICE_SIM] = &device_sim,
    [DEVICE_CUDA] = &device_cuda,
};

zero_status device_has_room(struct device *device, enum device_stream stream, bool *out_room,
                            struct zero_error *error) {
    uint64_t newest = device->newest[stream], back = (uint64_t)DEVICE_QUEUE_MAX * TICKET_STREAMS;
    *out_room = newest / TICKET_STREAMS <= DEVICE_QUEUE_MAX;
    return *out_room ? ZERO_OK : device->ops->test(device, newest - back, out_room, error);
}
