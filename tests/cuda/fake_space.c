/* The driver's functions of virtual memory: reserved addresses, pieces of memory of a page each, and which piece is mapped where. Two
 * misuses that the real driver does not report end the test with a message: an unmap while queued work names the page, and a write to
 * a page without memory. */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake_internal.h"

enum { PAGE_BYTES = 2 << 20, NO_MEMORY = 0xfc };

struct page {
    CUmemGenericAllocationHandle piece; /* 0: none */
    bool accessible;
};

static struct range {
    struct range *next;
    uint64_t first, pages;
    struct page page[];
} * ranges;

static CUmemGenericAllocationHandle pieces; /* made so far */

static struct page *page_at(uint64_t address) {
    for (struct range *r = ranges; r; r = r->next)
        if (address >= r->first && address < r->first + r->pages * PAGE_BYTES)
            return &r->page[(address - r->first) / PAGE_BYTES];
    return NULL;
}

bool space_has(uint64_t address, size_t bytes) {
    for (uint64_t at = address / PAGE_BYTES * PAGE_BYTES; at < address + bytes || at == address;
         at += PAGE_BYTES)
        if (!page_at(at) || !page_at(at)->accessible) return false;
    return page_at(address)->accessible;
}

static void *memory_at(uint64_t address) { return (void *)(uintptr_t)address; }

static void expect_untouched(uint64_t page) {
    const uint8_t *at = memory_at(page);
    for (uint64_t i = 0; i < PAGE_BYTES; i++)
        if (at[i] != NO_MEMORY)
            fake_fail("byte %llu of a page without memory was written", (unsigned long long)i);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *memory,
                                              CUmemAllocationGranularity_flags flags) {
    *out = PAGE_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    ENTER(true);
    uint64_t pages = bytes / PAGE_BYTES, first;
    if (!pages || bytes % PAGE_BYTES || alignment > PAGE_BYTES) return call_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = memory_reserve(&first, bytes, PAGE_BYTES);
    if (result) return call_leave(result);
    struct range *r = fake_allocate(sizeof *r + pages * sizeof *r->page);
    r->next = ranges, r->first = first, r->pages = pages;
    ranges = r;
    memset(memory_at(first), NO_MEMORY, bytes);
    *out = first;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr first, size_t bytes) {
    ENTER(true);
    struct range **link = &ranges;
    while (*link && (*link)->first != first) link = &(*link)->next;
    struct range *r = *link;
    if (!r || r->pages * PAGE_BYTES != bytes) return call_leave(CUDA_ERROR_INVALID_VALUE);
    memory_unlock();
    for (uint64_t i = 0; i < r->pages; i++) {
        if (r->page[i].piece) return call_leave(CUDA_ERROR_INVALID_VALUE);
        expect_untouched(first + i * PAGE_BYTES);
    }
    *link = r->next;
    free(r);
    return call_leave(memory_free(first));
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                            const CUmemAllocationProp *memory, unsigned long long flags) {
    ENTER(true);
    if (bytes != PAGE_BYTES || memory->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        memory->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return call_leave(CUDA_ERROR_INVALID_VALUE);
    if (!memory_take(bytes)) return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = ++pieces;
    return call_leave(CUDA_SUCCESS);
}

static bool is_mapped(CUmemGenericAllocationHandle piece) {
    for (const struct range *r = ranges; r; r = r->next)
        for (uint64_t i = 0; i < r->pages; i++)
            if (r->page[i].piece == piece) return true;
    return false;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle piece) {
    ENTER(true);
    if (!piece || piece > pieces) return call_leave(CUDA_ERROR_INVALID_VALUE);
    if (is_mapped(piece)) fake_fail("memory is released that is mapped");
    memory_give(PAGE_BYTES);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle piece,
                         unsigned long long flags) {
    ENTER(true);
    struct page *page = page_at(address);
    if (!page || page->piece || address % PAGE_BYTES || bytes != PAGE_BYTES || offset || !piece ||
        piece > pieces)
        return call_leave(CUDA_ERROR_INVALID_VALUE);
    if (is_mapped(piece)) fake_fail("memory is mapped at two addresses");
    memory_unlock();
    expect_untouched(address);
    memset(memory_at(address), 0xff, bytes);
    page->piece = piece;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                               size_t count) {
    ENTER(true);
    for (uint64_t at = address; at < address + bytes; at += PAGE_BYTES) {
        struct page *page = page_at(at);
        if (!page || !page->piece || at % PAGE_BYTES) return call_leave(CUDA_ERROR_INVALID_VALUE);
        page->accessible = count && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTER(true);
    struct page *page = page_at(address);
    if (!page || !page->piece || address % PAGE_BYTES || bytes != PAGE_BYTES)
        return call_leave(CUDA_ERROR_INVALID_VALUE);
    if (streams_name(address, bytes)) fake_fail("memory is unmapped that queued work uses");
    memory_unlock();
    memset(memory_at(address), NO_MEMORY, bytes);
    *page = (struct page){0};
    return call_leave(getenv("FAKE_CUDA_UNMAP_FAILS") ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
}
