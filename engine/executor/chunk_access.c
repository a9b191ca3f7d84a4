/* The host's access to chunks on the drive, and to the pages that commit a step. It uses the access slot, which the
 * staging ring does not use, for one chunk at a time. Its functions are called between steps (executor_commit: in a
 * step, while other transfers are in flight). They wait for their transfers, except executor_chunk_poll. */
#include <string.h>
#include <time.h>

#include "engine/executor/steps.h"

enum { WAIT_NS = 20 * 1000 };

static zero_status wait_for(struct executor *e, struct item *item) {
    bool done = false;
    zero_status status = ZERO_OK;
    while (!status && !done) {
        status = transfer_done(e, item, &done);
        if (!status && !done) nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    }
    return status;
}

/* The chunk in the access slot, as far as that slot has it. */
static struct chunk accessed(const struct executor *e) {
    const struct access *a = &e->access;
    struct chunk c = chunk_layout_at(&e->o.plan->layout, a->region, a->chunk);
    c.state &= !a->gradient, c.params &= !a->gradient, c.grads &= a->gradient;
    return c;
}

zero_status access_flush(struct executor *e) {
    struct access *a = &e->access;
    if (!a->valid || !a->dirty) return e->error.code;
    struct chunk c = accessed(e);
    struct item item = {0};
    a->dirty = false;
    zero_status status = transfer_write(e, &item, a->region, &c, access_slot(e));
    return status ? status : wait_for(e, &item);
}

/* Tests whether the chunk on its way has come, and checks it. A failure here is a failure of the executor. */
static zero_status arrive(struct executor *e) {
    struct access *a = &e->access;
    bool done;
    zero_status status = transfer_done(e, &a->item, &done);
    if (!status && !done) return ZERO_OK;
    struct chunk c = accessed(e);
    a->coming = false;
    if (!status) status = transfer_check(e, a->region, &c, access_slot(e));
    a->valid = !status;
    return status;
}

static zero_status poll_access(struct executor *e, uint32_t region, uint32_t chunk, bool gradient,
                               uint8_t **out, bool *out_there) {
    struct access *a = &e->access;
    *out = access_slot(e);
    *out_there = false;
    if (a->coming) {
        zero_status status = arrive(e);
        if (status || a->coming) return status;
    }
    *out_there = a->valid && a->region == region && a->chunk == chunk && a->gradient == gradient;
    if (*out_there) return ZERO_OK;
    zero_status status = access_flush(e);
    if (status) return status;
    *a = (struct access){.region = region, .chunk = chunk, .gradient = gradient, .coming = true};
    struct chunk c = accessed(e);
    status = transfer_read(e, &a->item, region, &c, *out);
    a->coming = !status;
    return status;
}

zero_status executor_chunk_poll(struct executor *e, uint32_t region, uint32_t chunk, uint8_t **out,
                                bool *out_there) {
    return poll_access(e, region, chunk, false, out, out_there);
}

zero_status executor_gradient_poll(struct executor *e, uint32_t region, uint32_t chunk, uint8_t **out,
                                   bool *out_there) {
    const struct timeline *stores = &e->stream[STREAM_GRAD];
    bool moved;
    *out_there = false;
    if (stores->retired != stores->emitted) return executor_poll(e, &moved);
    return poll_access(e, region, chunk, true, out, out_there);
}

zero_status executor_chunk(struct executor *e, uint32_t region, uint32_t chunk, uint8_t **out) {
    bool there;
    zero_status status;
    while (!(status = executor_chunk_poll(e, region, chunk, out, &there)) && !there)
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    return status;
}

void executor_chunk_forget(struct executor *e) { e->access.valid = false; }

void executor_chunk_written(struct executor *e) { e->access.dirty = true; }

void executor_refetch(struct executor *e) { offload_drop(&e->offload); }

zero_status executor_clear_state(struct executor *e) {
    zero_status status = access_flush(e);
    for (uint64_t i = 0; i < e->o.plan->layout.chunks; i++) e->stored[i].generation = 0;
    e->access.valid = false;
    offload_drop(&e->offload);
    return status;
}

/* ---- commits, with a shadow ---- */

uint64_t executor_epoch(const struct executor *e) { return e->epoch; }
void executor_begin_epoch(struct executor *e, uint64_t epoch) { e->epoch = epoch; }

static zero_status move_page(struct executor *e, bool write, uint32_t which) {
    struct item item = {0};
    uint64_t place = e->o.plan->row_offset[MEMORY_COMMITS] + which * CHUNK_ALIGN_BYTES;
    zero_status status = transfer_post(e, &item, write, place, CHUNK_ALIGN_BYTES, access_slot(e));
    return status ? status : wait_for(e, &item);
}

zero_status executor_commit(struct executor *e, const void *page) {
    zero_status status = access_flush(e);
    e->access.valid = false;
    if (!e->o.without_data) memcpy(access_slot(e), page, CHUNK_ALIGN_BYTES);
    if (!status) status = move_page(e, true, e->epoch % 2);
    if (!status) status = e->o.drive->ops->sync(e->o.drive, &e->error);
    if (!status) e->epoch++;
    return status;
}

zero_status executor_read_commit(struct executor *e, uint32_t which, void *page) {
    zero_status status = access_flush(e);
    e->access.valid = false;
    if (!status) status = move_page(e, false, which);
    memcpy(page, access_slot(e), CHUNK_ALIGN_BYTES);
    return status;
}

zero_status executor_forget_commits(struct executor *e) {
    zero_status status = access_flush(e);
    e->access.valid = false;
    memset(access_slot(e), 0, CHUNK_ALIGN_BYTES);
    for (uint32_t which = 0; which < 2 && !status; which++) status = move_page(e, true, which);
    return status ? status : e->o.drive->ops->sync(e->o.drive, &e->error);
}

zero_status executor_resume(struct executor *e, uint64_t epoch) {
    zero_status status = access_flush(e);
    for (uint64_t i = 0; i < e->o.plan->layout.chunks; i++) {
        e->stored[i].generation = epoch;
        e->stored[i].resumed = true;
    }
    e->access.valid = false;
    e->epoch = epoch + 1;
    offload_drop(&e->offload);
    return status;
}
