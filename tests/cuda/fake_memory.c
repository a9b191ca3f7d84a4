/* Device memory: one range of addresses, reserved at the start, without access rights unless unlocked. Allocations are cut from it in
 * order of address, first fit, each followed by a guard whose bytes are known. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/fake_internal.h"

enum { ALIGN = 512, GUARD_BYTES = 512, GUARD = 0xfd, FRESH = 0xff };

/* Rights change with every call of the driver: of large pages, where the kernel has them, in no time. */
enum { PAGE_BYTES = 2 << 20 };

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

struct allocation {
    struct allocation *next;     /* by address */
    uint64_t first, bytes, held; /* held: with the guard */
    bool space;                  /* addresses alone: fake_space.c */
};

static struct {
    uint64_t first, capacity, used, range;
    uint64_t end; /* of the highest allocation: what is unlocked */
    struct allocation *allocations;
    bool unlocked;
} memory;

void memory_open(uint64_t capacity) {
    uint64_t range = whole_pages(capacity + capacity / 4 + (1 << 20)); /* guards do not count */
    void *at =
        mmap(NULL, range + 2 * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fake_fail("cannot reserve %llu bytes of addresses", (unsigned long long)range);
    memory.first = whole_pages((uint64_t)(uintptr_t)at);
    /* An address with low bits of 0 would pass for an enumerator in a kernel's argument (check_pointers). */
    if (!(uint32_t)memory.first) memory.first += PAGE_BYTES;
    memory.end = memory.first;
    madvise((void *)(uintptr_t)memory.first, range, MADV_HUGEPAGE);
    memory.capacity = capacity;
    memory.range = range;
}

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

static void protect(int rights) {
    uint64_t bytes = whole_pages(memory.end - memory.first);
    if (bytes && mprotect(pointer(memory.first), bytes, rights)) fake_fail("mprotect is refused");
}

void memory_unlock(void) {
    if (!memory.unlocked) protect(PROT_READ | PROT_WRITE);
    memory.unlocked = true;
}

void memory_lock(void) {
    if (memory.unlocked) protect(PROT_NONE);
    memory.unlocked = false;
}

/* The first gap of `held` bytes; *out_link is where it goes. */
static uint64_t find_gap(uint64_t held, struct allocation ***out_link) {
    struct allocation **link = &memory.allocations;
    uint64_t at = memory.first;
    while (*link && (*link)->first - at < held) {
        at = (*link)->first + (*link)->held;
        link = &(*link)->next;
    }
    *out_link = link;
    return at;
}

bool memory_take(size_t bytes) {
    if (bytes > memory.capacity - memory.used) return false;
    memory.used += bytes;
    return true;
}

void memory_give(size_t bytes) { memory.used -= bytes; }

CUresult memory_reserve(uint64_t *out_address, size_t bytes, uint64_t align) {
    uint64_t held = (bytes + GUARD_BYTES + ALIGN - 1) / ALIGN * ALIGN;
    struct allocation **link, *a = malloc(sizeof *a);
    uint64_t at = (find_gap(held + align - ALIGN, &link) + align - 1) / align * align;
    if (!a || at + held > memory.first + memory.range) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a =
        (struct allocation){.next = *link, .first = at, .bytes = bytes, .held = held, .space = align > ALIGN};
    *link = a;
    memory_lock();
    if (at + held > memory.end) memory.end = at + held;
    memory_unlock();
    memset(pointer(at), FRESH, bytes);
    memset(pointer(at + bytes), GUARD, held - bytes);
    *out_address = at;
    return CUDA_SUCCESS;
}

CUresult memory_allocate(uint64_t *out_address, size_t bytes) {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!memory_take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_reserve(out_address, bytes, ALIGN);
    if (result) memory_give(bytes);
    return result;
}

static void check_one(const struct allocation *a) {
    const uint8_t *guard = pointer(a->first + a->bytes);
    for (uint64_t i = 0; i < a->held - a->bytes; i++)
        if (guard[i] != GUARD)
            fake_fail("byte %llu behind the end of an allocation of %llu bytes was written",
                      (unsigned long long)i, (unsigned long long)a->bytes);
}

static void lower_end(void) {
    memory_lock();
    memory.end = memory.first;
    for (const struct allocation *a = memory.allocations; a; a = a->next) memory.end = a->first + a->held;
}

CUresult memory_free(uint64_t address) {
    struct allocation **link = &memory.allocations;
    while (*link && (*link)->first != address) link = &(*link)->next;
    struct allocation *a = *link;
    if (!a) return CUDA_ERROR_INVALID_VALUE;
    memory_unlock();
    check_one(a);
    memset(pointer(a->first), FRESH, a->held);
    *link = a->next;
    if (!a->space) memory_give(a->bytes);
    free(a);
    lower_end();
    return CUDA_SUCCESS;
}

void memory_check(void) {
    memory_unlock();
    for (const struct allocation *a = memory.allocations; a; a = a->next) check_one(a);
}

uint64_t memory_capacity(void) { return memory.capacity; }
uint64_t memory_available(void) { return memory.capacity - memory.used; }

bool memory_is_device(uint64_t address) {
    return address >= memory.first && address < memory.first + memory.range;
}

bool memory_has(uint64_t address, size_t bytes) {
    for (const struct allocation *a = memory.allocations; a; a = a->next)
        if (address >= a->first && address + bytes <= a->first + a->bytes)
            return !a->space || space_has(address, bytes);
    return false;
}

/* ---- the host's ---- */

static struct pinned {
    struct pinned *next;
    uint64_t first, bytes;
    bool drivers;
} * pinned;

CUresult pinned_add(const void *memory, size_t bytes, bool drivers) {
    uint64_t first = (uint64_t)(uintptr_t)memory;
    if (!memory || !bytes) return CUDA_ERROR_INVALID_VALUE;
    for (const struct pinned *p = pinned; p; p = p->next)
        if (first < p->first + p->bytes && p->first < first + bytes)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct pinned *p = malloc(sizeof *p);
    if (!p) fake_fail("the host has no memory");
    *p = (struct pinned){pinned, first, bytes, drivers};
    pinned = p;
    return CUDA_SUCCESS;
}

CUresult pinned_remove(const void *memory, bool drivers) {
    struct pinned **link = &pinned;
    while (*link && (*link)->first != (uint64_t)(uintptr_t)memory) link = &(*link)->next;
    struct pinned *p = *link;
    if (!p) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (p->drivers != drivers) fake_fail("host memory that was allocated is unregistered, or the reverse");
    *link = p->next;
    free(p);
    return CUDA_SUCCESS;
}

bool pinned_has(uint64_t address, size_t bytes) {
    for (const struct pinned *p = pinned; p; p = p->next)
        if (address >= p->first && address + bytes <= p->first + p->bytes) return true;
    return false;
}
