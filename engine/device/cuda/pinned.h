/* Pinned host memory of a GPU.
 *
 * It consists of the system's own pages, from the GPU's memory node, touched by several threads and then registered with
 * the driver, so that io_uring can register them too. Where the driver refuses to register them (WSL2, some containers), it
 * allocates the memory itself, which then is a page larger: a small allocation need not begin on a page. io_uring must not register
 * such memory. */
#pragma once

#include "engine/device/cuda/driver.h"
#include "engine/device/implementations.h"

enum { PINNED_MAX = 16 };

struct pinned {
    struct {
        void *whole, *page; /* the first page boundary in it; NULL: a free row */
    } drivers[PINNED_MAX];  /* memory that the driver has allocated */
};

/* Zeroed, and begins on a page; or NULL. Sets device->pinned_by_driver where the driver has allocated it. The GPU's context is current. */
void *pinned_allocate(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                      uint64_t bytes);
void pinned_release(struct pinned *pinned, const struct cuda_driver *driver, struct device *device,
                    void *memory, uint64_t bytes);
