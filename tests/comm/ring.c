#include "tests/comm/ring.h"

#include <sched.h>
#include <stdlib.h>

#include "engine/comm/shape.h"
#include "engine/device/device.h"
#include "tests/check.h"

void ring_open(struct conformance *c, struct ring *ring, uint32_t first, uint32_t step, uint32_t end) {
    ring->members = 0;
    for (uint32_t rank = first; rank < end; rank += step) ring->ranks[ring->members++] = rank;
    if (!CHECK_INT(comm_group_open(c->comm, ring->ranks, ring->members, &ring->group), ZERO_OK)) {
        fprintf(stderr, "%s\n", comm_error(c->comm)->message);
        exit(1);
    }
    ring->me = comm_group_index(ring->group);
    CHECK_INT(comm_group_size(ring->group), ring->members);
    CHECK_INT(ring->ranks[ring->me], comm_rank(c->comm));
}

static void require(struct conformance *c, zero_status status) {
    if (CHECK_INT(status, ZERO_OK)) return;
    fprintf(stderr, "rank %u: %s\n", comm_rank(c->comm), comm_error(c->comm)->message);
    exit(1);
}

/* ---- buffers that are a device's ---- */

static void copy_over(struct conformance *c, void *target, const void *source, uint64_t bytes) {
    struct zero_error error;
    uint64_t ticket;
    error_clear(&error);
    CHECK_INT(c->device->ops->copy(c->device, DEVICE_IN, target, source, bytes, &ticket, &error), ZERO_OK);
    bool done = false;
    while (!done && CHECK_INT(c->device->ops->test(c->device, ticket, &done, &error), ZERO_OK)) sched_yield();
    if (!done) fprintf(stderr, "%s\n", error.message);
}

void *ring_allocate(struct conformance *c, uint64_t bytes) {
    enum { ALIGN = 512 };
    if (!c->device) return malloc(bytes);
    if (!c->memory) c->memory = c->device->ops->allocate(c->device, CONFORMANCE_DEVICE_BYTES, DEVICE_MEMORY);
    if (!c->memory_users++) c->memory_used = 0;
    char *memory = c->memory + c->memory_used;
    c->memory_used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    CHECK(c->memory && c->memory_used <= CONFORMANCE_DEVICE_BYTES);
    return memory;
}

static void release(struct conformance *c, void *memory) {
    if (c->device)
        c->memory_users--;
    else
        free(memory);
}

static void lend(struct conformance *c, struct shadow *shadow, const void *host, uint64_t bytes) {
    if (!bytes) return;
    *shadow = (struct shadow){(char *)(uintptr_t)host, ring_allocate(c, bytes), bytes};
    copy_over(c, shadow->place, shadow->host, bytes);
}

static void give_back(struct conformance *c, struct shadow *shadow) {
    if (!shadow->bytes) return;
    copy_over(c, shadow->host, shadow->place, shadow->bytes);
    release(c, shadow->place);
}

/* Moves a call's buffers to the device. In place, one lies in the other. */
static void lend_buffers(struct conformance *c, struct pending *pending, struct comm_call *call,
                         uint32_t members) {
    const char *source = call->source, *target = call->target;
    uint64_t source_bytes = shape_source_bytes(call, members),
             target_bytes = shape_target_bytes(call, members);
    bool in_source = source_bytes && source <= target && target + target_bytes <= source + source_bytes,
         in_target =
             source_bytes && !in_source && target <= source && source + source_bytes <= target + target_bytes;
    if (!in_target) lend(c, &pending->shadow[0], source, source_bytes);
    if (!in_source) lend(c, &pending->shadow[1], target, target_bytes);
    const struct shadow *of_source = &pending->shadow[in_target], *of_target = &pending->shadow[!in_source];
    if (source_bytes) call->source = of_source->place + (source - of_source->host);
    if (target_bytes) call->target = of_target->place + (target - of_target->host);
    call->written = NULL; /* is the host's */
}

/* Every second call that needs no other rank is done before its first test. */
static void perform_alone(struct conformance *c, struct comm_group *group, struct pending *pending,
                          const struct comm_call *call) {
    uint64_t bytes = comm_alone_bytes(pending->work);
    uint32_t members = comm_group_size(group);
    if (!bytes) return;
    CHECK_INT(members, 1);
    CHECK_INT(bytes, shape_target_bytes(call, members));
    if (++c->alone % 2) return;
    comm_perform(pending->work);
    CHECK_INT(comm_alone_bytes(pending->work), 0);
}

struct pending ring_post(struct conformance *c, struct comm_group *group, struct comm_call call) {
    struct pending pending = {0};
    uint64_t staging_bytes = comm_staging_bytes(group, &call);
    if (c->device) lend_buffers(c, &pending, &call, comm_group_size(group));
    call.staging = pending.staging = ring_allocate(c, staging_bytes + 1);
    require(c, comm_post(group, &call, &pending.work));
    perform_alone(c, group, &pending, &call);
    return pending;
}

void ring_finish(struct conformance *c, struct pending *pending) {
    bool done = false;
    for (;;) {
        require(c, comm_test(pending->work, &done));
        if (done) break;
        c->pause(c);
    }
    release(c, pending->staging);
    for (int i = 0; i < 2; i++) give_back(c, &pending->shadow[i]);
}

void ring_run(struct conformance *c, struct comm_group *group, struct comm_call call) {
    struct pending pending = ring_post(c, group, call);
    ring_finish(c, &pending);
}
