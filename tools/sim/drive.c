/* The virtual drive of a rank: a tier whose requests take turns at its speeds. Random times or a fault may change the
 * order in which they end. With data the drive holds bytes: the memory of a read is poisoned until the read ends, and
 * the memory of a write must not change. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/sim/run.h"

struct tier_work {
    struct tier_request request;
    uint64_t done_at_ns;
    uint8_t *copy; /* with data: a copy of the written bytes */
    bool fails;
    struct tier_work *next_free;
};

struct drive {
    struct tier base;
    struct rank *rank;
    uint8_t *bytes; /* NULL: without data */
    struct tier_work *works, *free_works;
    struct speeds_turns turns;
    uint64_t posted;
    bool immediate;
};

static struct drive *drive_of(struct tier *tier) { return (struct drive *)tier; }

void drive_set_immediate(struct tier *tier, bool immediate) {
    if (tier) drive_of(tier)->immediate = immediate;
}

static void *no_address(struct tier *tier) { return NULL; }

/* Requests end in turn, unless random times or a fault change that. */
static uint64_t done_at(struct drive *d, const struct tier_request *r, uint64_t which) {
    struct run *run = d->rank->run;
    uint64_t now = run->clock.now_ns,
             draw = random_draw(run->setup->seed, RANDOM_DRIVE, d->rank->index, which);
    if (run->setup->chaos_ns) return now + run_chaos_ns(run, RANDOM_DRIVE, d->rank->index, which);
    uint64_t done_ns = speeds_transfer(&run->setup->speeds, &d->turns, now, r->write, r->bytes), late = 0;
    bool delayed = sim_fault_on(&run->faults, SIM_DELAY) && draw % 8 == 0;
    if (delayed || sim_fault_on(&run->faults, SIM_REORDER))
        late = random_below(draw, 2 * (done_ns - now) + 1);
    return done_ns + late;
}

static void move(struct drive *d, struct tier_work *work) {
    const struct tier_request *r = &work->request;
    if (!d->bytes) return;
    if (r->write && memcmp(r->memory, work->copy, r->bytes))
        run_violated(d->rank->run, d->rank->index, ZERO_E_INTERNAL,
                     "memory changed while %" PRIu64
                     " bytes of it were being written to the drive at offset %" PRIu64,
                     r->bytes, r->offset);
    memcpy(r->write ? d->bytes + r->offset : r->memory, r->write ? r->memory : d->bytes + r->offset,
           r->bytes);
    free(work->copy);
    work->copy = NULL;
}

/* With data: poisons the memory of a read until the read ends, and copies the memory of a write, to see changes. */
static zero_status hold(struct drive *d, struct tier_work *work, struct zero_error *error) {
    const struct tier_request *r = &work->request;
    if (!d->bytes || !r->bytes) return ZERO_OK;
    if (!r->write) {
        memset(r->memory, 0xff, r->bytes);
        return ZERO_OK;
    }
    work->copy = malloc(r->bytes);
    if (!work->copy) return error_set(error, ZERO_E_MEMORY, "no memory for a virtual drive's request");
    memcpy(work->copy, r->memory, r->bytes);
    return ZERO_OK;
}

static bool must_fail(const struct drive *d, uint64_t which) {
    const struct sim_faults *f = &d->rank->run->faults;
    return sim_fault_on(f, SIM_DRIVE) && d->rank->index == f->rank[SIM_DRIVE] && which == f->drive_request;
}

static zero_status drive_post(struct tier *tier, const struct tier_request *r, struct tier_work **out_work,
                              struct zero_error *error) {
    struct drive *d = drive_of(tier);
    TRY(tier_check(tier, r, error));
    struct tier_work *work = d->free_works;
    if (!work)
        return error_set(error, ZERO_E_ORDER, "more requests to a virtual drive than it was opened for");
    *work = (struct tier_work){.request = *r, .next_free = work->next_free};
    TRY(hold(d, work, error));
    d->free_works = work->next_free;
    *out_work = work;
    if (d->immediate) return ZERO_OK;
    uint64_t which = d->posted++;
    work->fails = must_fail(d, which);
    work->done_at_ns = done_at(d, r, which);
    clock_add(&d->rank->run->clock, work->done_at_ns, EVENT_WAKE, d->rank->index);
    return ZERO_OK;
}

static zero_status refuse(struct drive *d, const struct tier_request *r, struct zero_error *error) {
    struct run *run = d->rank->run;
    run->faulted |= 1u << SIM_DRIVE;
    run->fault_ns = run->clock.now_ns;
    return error_set(error, ZERO_E_IO,
                     "tier nvme: %s of %" PRIu64 " bytes at offset %" PRIu64
                     " of the virtual drive of rank %" PRIu32 ": Input/output error",
                     r->write ? "write" : "read", r->bytes, r->offset, d->rank->index);
}

static zero_status drive_test(struct tier *tier, struct tier_work *work, bool *out_done,
                              struct zero_error *error) {
    struct drive *d = drive_of(tier);
    *out_done = d->rank->run->clock.now_ns >= work->done_at_ns;
    if (!*out_done) return ZERO_OK;
    move(d, work);
    work->next_free = d->free_works;
    d->free_works = work;
    if (work->fails) return refuse(d, &work->request, error);
    *(work->request.write ? &tier->written_bytes : &tier->read_bytes) += work->request.bytes;
    return ZERO_OK;
}

static void drive_wait(struct tier *tier, uint64_t timeout_ns) {}

static zero_status drive_sync(struct tier *tier, struct zero_error *error) { return ZERO_OK; }

static void drive_where(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity) {
    snprintf(out, capacity, "a virtual drive at offset %" PRIu64, offset);
}

static void drive_close(struct tier *tier) {
    struct drive *d = drive_of(tier);
    uint32_t count = d->works ? executor_requests_max(&d->rank->run->blueprint.plan) : 0;
    for (uint32_t i = 0; i < count; i++) free(d->works[i].copy);
    free(d->works);
    free(d->bytes);
    free(d);
}

static const struct tier_ops drive_ops = {.name = "virtual drive",
                                          .close = drive_close,
                                          .address = no_address,
                                          .post = drive_post,
                                          .test = drive_test,
                                          .wait = drive_wait,
                                          .sync = drive_sync,
                                          .where = drive_where};

zero_status drive_open(struct rank *rank, struct zero_error *error) {
    const struct plan *plan = &rank->run->blueprint.plan;
    uint64_t bytes = plan->tier_bytes[TIER_NVME];
    if (!bytes) return ZERO_OK;
    struct drive *d = calloc(1, sizeof *d);
    if (!d) return error_set(error, ZERO_E_MEMORY, "no memory for a virtual drive");
    d->base = (struct tier){.ops = &drive_ops, .bytes = bytes, .alignment = 1};
    d->rank = rank;
    rank->drive = &d->base;
    uint32_t count = executor_requests_max(plan);
    d->works = calloc(count, sizeof *d->works);
    if (rank->run->setup->host) d->bytes = calloc(1, bytes);
    if (!d->works || (rank->run->setup->host && !d->bytes))
        return error_set(error, ZERO_E_MEMORY, "no memory for a virtual drive of %" PRIu64 " bytes", bytes);
    for (uint32_t i = count; i-- > 0;) {
        d->works[i].next_free = d->free_works;
        d->free_works = &d->works[i];
    }
    return ZERO_OK;
}
