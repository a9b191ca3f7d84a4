/* Address space of a GPU in parts, whose pages have memory while they are in use.
 *
 *   page: empty --space_fill--> mapped to a piece of memory of the pool --space_empty--> empty
 *
 * The pool has all memory that is in use at most, in pieces of a page: it is made at the start, so no step asks for memory. An unmap
 * may come only once the work on the page is done. Whether the driver then waits for other work, too, has not been measured. One at a time
 * per device. space_empty empties all pages also after a failure, and returns the first one. */
#pragma once

#include <stdbool.h>

#include "engine/device/cuda/driver.h"

struct space {
    CUdeviceptr first; /* 0: none is reserved */
    CUmemLocation location;
    CUmemGenericAllocationHandle *piece, *pool; /* by page, 0: it is empty; and the free ones */
    uint32_t pages, free;
};

/* Whether the driver has memory in pages of DEVICE_PART_BYTES. */
bool space_possible(const struct cuda_driver *driver, CUdevice device);
/* NULL: the driver refuses. Sizes are rounded up to whole pages. */
void *space_reserve(struct space *space, const struct cuda_driver *driver, CUdevice device, uint64_t bytes,
                    uint64_t used_bytes);
void space_unreserve(struct space *space, const struct cuda_driver *driver);
CUresult space_fill(struct space *space, const struct cuda_driver *driver, const void *part, uint64_t bytes);
CUresult space_empty(struct space *space, const struct cuda_driver *driver, const void *part, uint64_t bytes);
