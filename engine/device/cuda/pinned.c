#include "engine/device/cuda/pinned.h"

#include <string.h>

#include "engine/base/numa.h"

static void **row_of(struct pinned *pinned, const void *memory) {
    for (int i = 0; i < PINNED_MAX; i++)
        if (pinned->drivers[i] == memory) return &pinned->drivers[i];
    return NULL;
}

static void *allocate_by_driver(struct pinned *pinned, const struct cuda_driver *driver,
                                struct device *device, uint64_t bytes) {
    void **row = row_of(pinned, NULL), *memory = NULL;
    unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if (!row || driver->cuMemHostAlloc(&memory, bytes, flags) != CUDA_SUCCESS) return NULL;
    memset(memory, 0, bytes);
    device->allocated[DEVICE_PINNED] += page_bytes(bytes);
    device->pinned_by_driver = true;
    return *row = memory;
}

void *pinned_allocate(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                      uint64_t bytes) {
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    void *memory = host_allocate(device, bytes, DEVICE_PINNED);
    if (!memory) return NULL;
    numa_prefer(memory, bytes, device->node);
    numa_touch(memory, bytes, device->node);
    if (driver->cuMemHostRegister(memory, bytes, flags) == CUDA_SUCCESS) return memory;
    host_release(device, memory, bytes, DEVICE_PINNED);
    return allocate_by_driver(pinned, driver, device, bytes);
}

void pinned_release(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                    void *memory, uint64_t bytes) {
    void **row = row_of(pinned, memory);
    if (!row) {
        driver->cuMemHostUnregister(memory);
        host_release(device, memory, bytes, DEVICE_PINNED);
        return;
    }
    driver->cuMemFreeHost(memory);
    device->allocated[DEVICE_PINNED] -= page_bytes(bytes);
    *row = NULL;
}
