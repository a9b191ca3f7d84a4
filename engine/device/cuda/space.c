#include "engine/device/cuda/space.h"

#include <stdlib.h>

#include "engine/device/implementations.h"

static CUmemAllocationProp memory_of(CUdevice device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static uint64_t pages_of(uint64_t bytes) { return (bytes + DEVICE_PART_BYTES - 1) / DEVICE_PART_BYTES; }

bool space_possible(const struct cuda_driver *driver, CUdevice device) {
    CUmemAllocationProp memory = memory_of(device);
    size_t page = 0;
    int possible = 0;
    driver->cuDeviceGetAttribute(&possible, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    return possible &&
           driver->cuMemGetAllocationGranularity(&page, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
               CUDA_SUCCESS &&
           page && DEVICE_PART_BYTES % page == 0;
}

void *space_reserve(struct space *space, const struct cuda_driver *driver, CUdevice device, uint64_t bytes,
                    uint64_t used_bytes) {
    CUmemAllocationProp memory = memory_of(device);
    uint64_t pages = pages_of(bytes), pieces = pages_of(used_bytes);
    if (space->first || !pieces || pages > UINT32_MAX) return NULL;
    *space = (struct space){.location = memory.location, .pages = (uint32_t)pages};
    space->piece = calloc(pages, sizeof *space->piece);
    space->pool = calloc(pieces, sizeof *space->pool);
    if (space->piece && space->pool &&
        driver->cuMemAddressReserve(&space->first, pages * DEVICE_PART_BYTES, DEVICE_PART_BYTES, 0, 0) ==
            CUDA_SUCCESS)
        while (space->free < pieces &&
               driver->cuMemCreate(&space->pool[space->free], DEVICE_PART_BYTES, &memory, 0) == CUDA_SUCCESS)
            space->free++;
    if (space->free == pieces) return (void *)(uintptr_t)space->first;
    space_unreserve(space, driver);
    return NULL;
}

void space_unreserve(struct space *space, const struct cuda_driver *driver) {
    const void *all = (void *)(uintptr_t)space->first;
    if (all) space_empty(space, driver, all, space->pages * (uint64_t)DEVICE_PART_BYTES);
    while (space->free) driver->cuMemRelease(space->pool[--space->free]);
    if (all) driver->cuMemAddressFree(space->first, space->pages * (uint64_t)DEVICE_PART_BYTES);
    free(space->piece);
    free(space->pool);
    *space = (struct space){0};
}

/* A piece is mapped to its page, and all of the part becomes accessible at once. */
CUresult space_fill(struct space *space, const struct cuda_driver *driver, const void *part, uint64_t bytes) {
    CUdeviceptr first = (uintptr_t)part;
    CUmemAccessDesc access = {space->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = CUDA_SUCCESS;
    for (uint64_t at = 0; at < bytes && !result; at += DEVICE_PART_BYTES) {
        CUmemGenericAllocationHandle *piece = &space->piece[(first + at - space->first) / DEVICE_PART_BYTES];
        if (!space->free || *piece) return CUDA_ERROR_INVALID_VALUE;
        result = driver->cuMemMap(first + at, DEVICE_PART_BYTES, 0, space->pool[space->free - 1], 0);
        if (!result) *piece = space->pool[--space->free];
    }
    if (result) return result;
    return driver->cuMemSetAccess(first, pages_of(bytes) * DEVICE_PART_BYTES, &access, 1);
}

CUresult space_empty(struct space *space, const struct cuda_driver *driver, const void *part,
                     uint64_t bytes) {
    CUdeviceptr first = (uintptr_t)part;
    CUresult result = CUDA_SUCCESS;
    for (uint64_t at = 0; at < bytes; at += DEVICE_PART_BYTES) {
        CUmemGenericAllocationHandle *piece = &space->piece[(first + at - space->first) / DEVICE_PART_BYTES];
        if (!*piece) continue;
        CUresult unmapped = driver->cuMemUnmap(first + at, DEVICE_PART_BYTES);
        if (!result) result = unmapped;
        space->pool[space->free++] = *piece;
        *piece = 0;
    }
    return result;
}
