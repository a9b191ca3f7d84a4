/* The host's access to chunks on the drive, and to the pages that commit a step. The access slot holds one chunk. In a
 * sweep, the slots of the staging ring hold more: between steps they are idle, unless a skipped step left chunks in
 * them. So the next chunks are read, and the last ones written, while the host works on one.
 *
 *   a slot:  free --> coming --> there --(changed)--> dirty --(the host goes on to another chunk)--> going --> there
 *
 * Parts of a chunk, its state, its parameters and its gradient, come and go each by itself. Functions are called between steps
 * (executor_commit: in a step, while other transfers are in flight). Only executor_chunk_poll, executor_chunk_forget
 * and executor_chunk_written do not wait for their transfers. */
#include "engine/executor/drive/drive.h"

#include <string.h>
#include <time.h>

enum { WAIT_NS = 20 * 1000 };

/* The first is the access slot; the slots of the ring follow. */
static uint8_t *memory_of(const struct executor *e, uint32_t slot) {
    return slot ? slot_address(e, slot - 1) : access_slot(e);
}

/* The chunk, as if only these parts of it were on the drive. */
static struct chunk chunk_parts(const struct executor *e, uint32_t region, uint32_t index, uint8_t parts) {
    struct chunk c = chunk_layout_at(&e->o.plan->layout, region, index);
    c.state &= (parts & CHUNK_STATE) != 0;
    c.params &= (parts & CHUNK_PARAMS) != 0;
    c.grads &= (parts & CHUNK_GRADS) != 0;
    return c;
}

static bool busy(const struct held *h) { return h->coming || h->going; }

static bool holds(const struct held *h, uint32_t region, uint32_t index) {
    return (h->there || busy(h)) && h->region == region && h->chunk == index;
}

/* ---- one slot ---- */

static zero_status begin_read(struct executor *e, uint32_t slot, uint8_t parts) {
    struct held *h = &e->access.held[slot];
    struct chunk c = chunk_parts(e, h->region, h->chunk, parts);
    h->item = (struct item){0};
    h->coming = parts;
    zero_status status = transfer_read(e, &h->item, h->region, &c, memory_of(e, slot));
    if (status) h->coming = 0;
    return status;
}

static zero_status begin_write(struct executor *e, uint32_t slot) {
    struct held *h = &e->access.held[slot];
    struct chunk c = chunk_parts(e, h->region, h->chunk, h->dirty);
    h->item = (struct item){0};
    h->dirty = 0;
    h->going = true;
    transfer_sum(e, &h->item, &c, memory_of(e, slot));
    return transfer_write(e, &h->item, h->region, &c, memory_of(e, slot));
}

/* Tests whether the slot's transfer is done, and verifies the bytes that were read. A failure here is a failure of
 * the executor. */
static zero_status test_transfer(struct executor *e, uint32_t slot) {
    struct held *h = &e->access.held[slot];
    bool done;
    if (!busy(h)) return ZERO_OK;
    zero_status status = transfer_done(e, &h->item, &done);
    if (!status && !done) return ZERO_OK;
    if (!status && h->coming) {
        struct chunk c = chunk_parts(e, h->region, h->chunk, h->coming);
        status = transfer_check(e, h->region, &c, memory_of(e, slot));
        h->there |= h->coming;
    }
    if (status) h->there = 0;
    h->coming = 0;
    h->going = false;
    return status;
}

static void doze(void) { nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL); }

static zero_status wait_for(struct executor *e, struct item *item) {
    bool done = false;
    while (!done) {
        TRY(transfer_done(e, item, &done));
        if (!done) doze();
    }
    return ZERO_OK;
}

/* ---- all slots ---- */

static void forget(struct executor *e, uint32_t first) {
    for (uint32_t i = first; i <= e->o.plan->layout.slots; i++) e->access.held[i].there = 0;
}

/* Also ends a sweep. */
zero_status access_flush(struct executor *e) {
    struct access *a = &e->access;
    zero_status status = e->error.code;
    for (uint32_t i = 0; i < a->count && !status; i++)
        if (a->held[i].dirty) status = begin_write(e, i);
    for (uint32_t i = 0; i < a->count && !status; i++)
        while (!(status = test_transfer(e, i)) && busy(&a->held[i])) doze();
    a->count = 1;
    a->current = a->next = 0;
    a->regions = 0;
    a->parts = 0;
    forget(e, 1);
    return status;
}

/* Claims the slot that has held its chunk for the longest time. *out is UINT32_MAX if that slot is busy. */
static zero_status claim(struct executor *e, uint32_t region, uint32_t index, uint32_t *out) {
    struct access *a = &e->access;
    *out = UINT32_MAX;
    zero_status status = test_transfer(e, a->next);
    if (status || busy(&a->held[a->next])) return status;
    *out = a->next;
    a->next = (a->next + 1) % a->count;
    a->held[*out] = (struct held){.region = region, .chunk = index};
    return ZERO_OK;
}

static uint32_t find(const struct access *a, uint32_t region, uint32_t index) {
    for (uint32_t i = 0; i < a->count; i++)
        if (holds(&a->held[i], region, index)) return i;
    return UINT32_MAX;
}

void executor_chunk_forget(struct executor *e) { forget(e, 0); }

/* ---- reading ahead ---- */

/* The place of a chunk in the order of a sweep. */
struct sweep_place {
    uint32_t at, chunk; /* at: index in the order */
};

static uint32_t region_at(const struct access *a, uint32_t at) { return a->order ? a->order[at] : at; }

/* The next chunk in the order of which any of these parts is on the drive. False: there is none. */
static bool next_place(const struct executor *e, struct sweep_place *place, uint8_t parts) {
    const struct access *a = &e->access;
    for (place->chunk++; place->at < a->regions; place->at++, place->chunk = 0) {
        uint32_t region = region_at(a, place->at);
        for (; place->chunk < e->o.plan->layout.region[region].chunks; place->chunk++) {
            struct chunk c = chunk_parts(e, region, place->chunk, parts);
            if (c.state || c.params) return true;
        }
    }
    return false;
}

/* Reads the chunks that follow the current one into the slots that are neither busy nor hold a chunk that the host has
 * not come to yet. */
static zero_status read_ahead(struct executor *e, uint8_t parts) {
    struct access *a = &e->access;
    const struct held *current = &a->held[a->current];
    struct sweep_place place = {a->at, current->chunk};
    while (place.at < a->regions && region_at(a, place.at) != current->region) place.at++;
    if (place.at >= a->regions) return ZERO_OK;
    a->at = place.at;
    zero_status status = ZERO_OK;
    for (uint32_t k = 1; k < a->count && next_place(e, &place, parts) && !status; k++) {
        uint32_t region = region_at(a, place.at), slot;
        if (find(a, region, place.chunk) != UINT32_MAX) continue;
        if (a->next == a->current || a->held[a->next].unseen) break;
        status = claim(e, region, place.chunk, &slot);
        if (status || slot == UINT32_MAX) break;
        a->held[slot].unseen = true;
        status = begin_read(e, slot, parts);
    }
    return status;
}

/* ---- the calls ---- */

void executor_sweep(struct executor *e, const uint16_t *order, uint32_t regions, uint8_t parts) {
    struct access *a = &e->access;
    a->order = order;
    a->regions = regions;
    a->parts = parts;
    a->at = 0;
    a->count = e->offload.ahead ? 1 : 1 + e->o.plan->layout.slots;
}

/* Makes the slot of this chunk the current one. The chunk that the host leaves goes to the drive. */
static zero_status turn_to(struct executor *e, uint32_t region, uint32_t index) {
    struct access *a = &e->access;
    uint32_t slot = find(a, region, index);
    zero_status status = ZERO_OK;
    if (slot == a->current) return ZERO_OK;
    if (a->held[a->current].dirty) status = begin_write(e, a->current);
    if (!status && slot == UINT32_MAX) status = claim(e, region, index, &slot);
    if (status || slot == UINT32_MAX) return status;
    a->current = slot;
    a->held[slot].unseen = false;
    return ZERO_OK;
}

zero_status executor_chunk_poll(struct executor *e, uint32_t region, uint32_t index, uint8_t parts,
                                uint8_t **out, bool *out_there) {
    struct access *a = &e->access;
    *out_there = false;
    parts |= a->parts;
    zero_status status = turn_to(e, region, index);
    struct held *h = &a->held[a->current];
    if (status || h->region != region || h->chunk != index) return status;
    status = test_transfer(e, a->current);
    if (!status && !busy(h) && parts & ~h->there) status = begin_read(e, a->current, parts & ~h->there);
    if (!status) status = read_ahead(e, parts);
    *out = memory_of(e, a->current);
    *out_there = !status && !busy(h);
    return status;
}

zero_status executor_gradient_poll(struct executor *e, uint32_t region, uint32_t index, uint8_t **out,
                                   bool *out_there) {
    const struct timeline *stores = &e->stream[STREAM_GRAD];
    bool moved;
    *out_there = false;
    if (stores->retired != stores->emitted) return executor_poll(e, &moved);
    return executor_chunk_poll(e, region, index, CHUNK_GRADS, out, out_there);
}

zero_status executor_chunk(struct executor *e, uint32_t region, uint32_t index, uint8_t parts,
                           uint8_t **out) {
    bool there;
    zero_status status;
    while (!(status = executor_chunk_poll(e, region, index, parts, out, &there)) && !there) doze();
    return status;
}

void executor_chunk_written(struct executor *e, uint8_t parts) {
    e->access.held[e->access.current].dirty |= parts;
}

void executor_refetch(struct executor *e) { offload_drop(&e->offload); }

zero_status executor_clear_chunks(struct executor *e) {
    zero_status status = access_flush(e);
    for (uint64_t i = 0; i < e->o.plan->layout.chunks; i++)
        memset(e->stored[i].part, 0, sizeof e->stored[i].part), e->stored[i].has_params = false;
    executor_chunk_forget(e);
    offload_drop(&e->offload);
    return status;
}

zero_status executor_end_sweep(struct executor *e) { return access_flush(e); }

/* ---- commits, with a shadow ---- */

bool executor_commits(const struct executor *e) { return e->commits; }
void executor_set_commits(struct executor *e, bool commits) { e->commits = commits; }

bool executor_commits_before(const struct executor *e, const struct event *event) {
    const struct policy *p = e->o.shape.policy;
    bool begins = event->kind == EVENT_BEGIN || event->kind == EVENT_GO_ON || event->kind == EVENT_RECOMPUTE,
         updates = p->last && !p->evaluating && p->update_in_backward;
    return e->commits && begins && updates && event->position >= p->uses;
}

uint64_t executor_epoch(const struct executor *e) { return e->epoch; }
void executor_begin_epoch(struct executor *e, uint64_t epoch) { e->epoch = epoch; }

static zero_status move_page(struct executor *e, bool write, uint32_t which) {
    struct item item = {0};
    uint64_t place = e->o.plan->row_offset[MEMORY_COMMITS] + which * CHUNK_ALIGN_BYTES;
    zero_status status = transfer_post(e, &item, write, place, CHUNK_ALIGN_BYTES, access_slot(e));
    return status ? status : wait_for(e, &item);
}

/* Empties the access slot for a page. */
static zero_status empty(struct executor *e) {
    zero_status status = access_flush(e);
    executor_chunk_forget(e);
    return status;
}

static bool is_of_epoch(const struct executor *e, const struct chunk *c) {
    bool is = true;
    for (int part = 0; part < RECORD_PARTS; part++)
        is &= !c->part[part].bytes || e->stored[c->index].part[part].generation == e->epoch;
    return is;
}

/* In the order of refresh, so that the chunks are read ahead. */
zero_status executor_complete_epoch(struct executor *e) {
    const struct policy *p = e->o.shape.policy;
    const struct chunk_layout *layout = &e->o.plan->layout;
    zero_status status = e->error.code;
    bool sweeps = false;
    for (uint32_t k = 0; k < p->refreshes && !status; k++)
        for (uint32_t i = 0; i < layout->region[p->refresh[k]].chunks && !status; i++) {
            struct chunk c = chunk_layout_at(layout, p->refresh[k], i);
            uint8_t *slot;
            if (!c.state || is_of_epoch(e, &c)) continue;
            if (!sweeps) executor_sweep(e, p->refresh, p->refreshes, CHUNK_STATE);
            sweeps = true;
            status = executor_chunk(e, p->refresh[k], i, CHUNK_STATE, &slot);
            if (!status) executor_chunk_written(e, CHUNK_STATE);
        }
    return sweeps && !status ? access_flush(e) : status;
}

zero_status executor_commit(struct executor *e, const void *page) {
    e->commits = false;
    zero_status status = empty(e);
    if (!e->m.without_data) memcpy(access_slot(e), page, CHUNK_ALIGN_BYTES);
    if (!status) status = move_page(e, true, e->epoch % 2);
    if (!status) status = e->m.drive->ops->sync(e->m.drive, &e->error);
    if (!status) e->epoch++;
    return status;
}

zero_status executor_read_commit(struct executor *e, uint32_t which, void *page) {
    zero_status status = empty(e);
    if (!status) status = move_page(e, false, which);
    memcpy(page, access_slot(e), CHUNK_ALIGN_BYTES);
    return status;
}

zero_status executor_forget_commits(struct executor *e) {
    e->commits = false;
    zero_status status = empty(e);
    memset(access_slot(e), 0, CHUNK_ALIGN_BYTES);
    for (uint32_t which = 0; which < 2 && !status; which++) status = move_page(e, true, which);
    return status ? status : e->m.drive->ops->sync(e->m.drive, &e->error);
}

zero_status executor_resume(struct executor *e, uint64_t epoch) {
    zero_status status = empty(e);
    for (uint64_t i = 0; i < e->o.plan->layout.chunks; i++) {
        for (int part = 0; part < RECORD_PARTS; part++)
            e->stored[i].part[part] = (struct version){.generation = epoch, .resumed = true};
    }
    e->epoch = epoch + 1;
    offload_drop(&e->offload);
    return status;
}
