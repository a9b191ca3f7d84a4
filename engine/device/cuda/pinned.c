#include "engine/device/cuda/pinned.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/system/numa.h"

/* PINNED_MAX: there is no such row. */
static int row_of(const struct pinned *pinned, const void *page) {
    int row = 0;
    while (row < PINNED_MAX && pinned->drivers[row].page != page) row++;
    return row;
}

static void *allocate_by_driver(struct pinned *pinned, const struct cuda_driver *driver,
                                struct device *device, uint64_t bytes) {
    unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    void *whole = NULL;
    int row = row_of(pinned, NULL);
    if (row == PINNED_MAX || driver->cuMemHostAlloc(&whole, bytes + DEVICE_PAGE_BYTES, flags) != CUDA_SUCCESS)
        return NULL;
    void *page =
        (char *)whole + (DEVICE_PAGE_BYTES - (uintptr_t)whole % DEVICE_PAGE_BYTES) % DEVICE_PAGE_BYTES;
    pinned->drivers[row].whole = whole, pinned->drivers[row].page = page;
    device->allocated[DEVICE_PINNED] += page_bytes(bytes);
    device->pinned_by_driver = true;
    return memset(page, 0, bytes);
}

void *pinned_allocate(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                      uint64_t bytes) {
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    void *memory = host_allocate(device, bytes, DEVICE_PINNED);
    if (!memory) return NULL;
    numa_prefer(memory, bytes, device->node);
    uint64_t began = clock_now_ns();
    numa_touch(memory, bytes, device->node);
    uint64_t touched = clock_now_ns();
    bool registered = driver->cuMemHostRegister(memory, bytes, flags) == CUDA_SUCCESS;
    device->touched_ns += touched - began, device->registered_ns += clock_now_ns() - touched;
    if (registered) return memory;
    host_release(device, memory, bytes, DEVICE_PINNED);
    return allocate_by_driver(pinned, driver, device, bytes);
}

void pinned_release(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                    void *memory, uint64_t bytes) {
    int row = row_of(pinned, memory);
    if (row == PINNED_MAX) {
        driver->cuMemHostUnregister(memory);
        host_release(device, memory, bytes, DEVICE_PINNED);
        return;
    }
    driver->cuMemFreeHost(pinned->drivers[row].whole);
    device->allocated[DEVICE_PINNED] -= page_bytes(bytes);
    pinned->drivers[row].page = NULL;
}
