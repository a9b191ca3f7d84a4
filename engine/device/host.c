/* The host as a device: its memory comes from mmap, and it performs work at once. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/device/implementations.h"

static zero_status host_open(const struct device_options *options, struct device **out_device,
                             struct zero_error *error) {
    struct device *device = malloc(sizeof *device);
    if (!device) return error_set(error, ZERO_E_MEMORY, "device host: no memory for its handle");
    *device = (struct device){
        .ops = &device_host, .runs_at_once = true, .page_bytes = DEVICE_PAGE_BYTES, .node = -1, .index = -1};
    *out_device = device;
    return ZERO_OK;
}

static void host_close(struct device *device) { free(device); }

uint64_t page_bytes(uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Asks for huge pages: the engine walks over the flat buffers from end to end and uses every page. */
void *host_allocate(struct device *device, uint64_t bytes, enum device_memory kind) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    device->allocated[kind] += page_bytes(bytes);
    return memory;
}

void host_release(struct device *device, void *memory, uint64_t bytes, enum device_memory kind) {
    munmap(memory, bytes);
    device->allocated[kind] -= page_bytes(bytes);
}

/* Returns the space beside the aligned part at once. The system does not set memory aside for reserved address
 * space. */
void *host_reserve(struct device *device, uint64_t space, uint64_t bytes) {
    const uint64_t align = DEVICE_PART_BYTES;
    uint8_t *memory =
        mmap(NULL, space + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    uint64_t skipped = (align - (uintptr_t)memory % align) % align, used = page_bytes(space);
    if (skipped) munmap(memory, skipped);
    munmap(memory + skipped + used, page_bytes(space + align) - skipped - used);
    madvise(memory + skipped, space, MADV_HUGEPAGE);
    device->allocated[DEVICE_MEMORY] += page_bytes(bytes);
    return memory + skipped;
}

void host_unreserve(struct device *device, void *memory, uint64_t space, uint64_t bytes) {
    munmap(memory, space);
    device->allocated[DEVICE_MEMORY] -= page_bytes(bytes);
}

/* Huge pages are used for whole huge pages of the part only: one more at its end would take more memory than the part has. Without
 * huge pages, mapping and zeroing a part again takes several times as long. */
void host_empty(struct device *device, void *part, uint64_t bytes) {
    uint64_t whole = bytes / DEVICE_PART_BYTES * DEVICE_PART_BYTES;
    if (whole < bytes) madvise((uint8_t *)part + whole, bytes - whole, MADV_NOHUGEPAGE);
    madvise(part, bytes, MADV_DONTNEED);
}

static zero_status host_submit(struct device *device, const struct device_work *work, uint64_t *out_ticket,
                               struct zero_error *error) {
    struct device_work copy = *work;
    copy.kernel->run(copy.argument);
    *out_ticket = 0;
    return ZERO_OK;
}

static zero_status host_copy(struct device *device, enum device_stream stream, void *target,
                             const void *source, uint64_t bytes, uint64_t *out_ticket,
                             struct zero_error *error) {
    if (bytes) memcpy(target, source, bytes);
    *out_ticket = 0;
    return ZERO_OK;
}

static zero_status host_clear(struct device *device, enum device_stream stream, void *memory, uint64_t bytes,
                              uint64_t *out_ticket, struct zero_error *error) {
    if (bytes) memset(memory, 0, bytes);
    *out_ticket = 0;
    return ZERO_OK;
}

static zero_status host_record(struct device *device, enum device_stream stream, uint64_t *out_ticket,
                               struct zero_error *error) {
    *out_ticket = 0;
    return ZERO_OK;
}

static zero_status host_wait(struct device *device, enum device_stream stream, uint64_t ticket,
                             struct zero_error *error) {
    return ZERO_OK;
}

static zero_status host_test(struct device *device, uint64_t ticket, bool *out_done,
                             struct zero_error *error) {
    *out_done = true;
    return ZERO_OK;
}

const struct device_ops device_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .allocate = host_allocate,
    .release = host_release,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .empty = host_empty,
    .submit = host_submit,
    .copy = host_copy,
    .clear = host_clear,
    .record = host_record,
    .wait = host_wait,
    .test = host_test,
};
