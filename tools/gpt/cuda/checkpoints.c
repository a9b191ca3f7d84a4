/* Keeps activation checkpoints in pinned host memory, or behind it on the drive. A checkpoint is the input of a segment's first block. On
 * the device, checkpoints use two slots: segment s uses slot s % 2.
 *
 *   forward   The forward writes the slot. A separate stream copies the slot to the host while blocks compute. Then the
 *             checkpoint of segment s + 2 uses the slot.
 *   backward  The first block of segment s + 2 is the last to use the slot. After its backward the checkpoint of segment s
 *             is copied back, while segment s + 1 computes.
 *
 * The last two segments' checkpoints stay in their slots. Before the engine's stream uses a slot, it waits for the
 * slot's last copy; a copy waits for the slot's last use. Copies and waits are between the phases, outside of
 * graphs.
 *
 * With several micro-batches in a use, each has slots of its own; they share the slots' events, so that a wait is for the copies of all.
 *
 * In host memory, segment s uses slot s % slots. Without the drive there is a slot for each segment. With it there are a few: the
 * checkpoint of segment s is stored at place s of the scratch before that of segment s + slots uses the slot, and it is fetched into
 * the slot after that of segment s + slots was copied back. The last `slots` checkpoints are not stored. A store starts when the host
 * sees that the copy before it has ended; a fetch, too. The host waits for a copy only if it needs the slot at once. */
#include "tools/gpt/cuda/state.h"

static void check(struct cuda_gpt *c, CUresult result) {
    cuda_keep(c, result, "moving activation checkpoints");
}

void cuda_keep_scratch(struct cuda_gpt *c, zero_status status) {
    if (status && !c->error.code) error_set(&c->error, status, "%s", zero_last_error());
}

zero_status cuda_checkpoints_open(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_driver *d = &c->driver;
    struct cuda_checkpoints *k = &c->checkpoints;
    if (!cuda_checkpoint_slots(&gpt->config)) return ZERO_OK;
    check(c, d->cuStreamCreate(&k->stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2 && !c->error.code; i++) {
        check(c, d->cuEventCreate(&k->used[i], CU_EVENT_DISABLE_TIMING));
        check(c, d->cuEventCreate(&k->moved[i], CU_EVENT_DISABLE_TIMING));
    }
    for (int i = 0; i < CUDA_CHECKPOINT_SLOTS && !c->error.code && checkpoints_leave(&gpt->config); i++)
        check(c, d->cuEventCreate(&k->slot[i].copied, CU_EVENT_DISABLE_TIMING));
    return c->error.code;
}

void cuda_checkpoints_close(struct gpt *gpt) {
    const struct cuda_driver *d = &gpt->cuda->driver;
    struct cuda_checkpoints *k = &gpt->cuda->checkpoints;
    if (!k->stream) return;
    d->cuStreamSynchronize(k->stream);
    for (int i = 0; i < 2; i++) {
        if (k->used[i]) d->cuEventDestroy(k->used[i]);
        if (k->moved[i]) d->cuEventDestroy(k->moved[i]);
    }
    for (int i = 0; i < CUDA_CHECKPOINT_SLOTS; i++) {
        if (k->slot[i].in_flight) zero_scratch_wait(gpt->checkpoints.scratch, k->slot[i].place);
        if (k->slot[i].copied) d->cuEventDestroy(k->slot[i].copied);
    }
    d->cuStreamDestroy(k->stream);
}

/* True if block `index` is the first of a segment, and checkpoints move at all. */
static bool begins_segment(const struct gpt *gpt, uint32_t index, uint32_t *out_segment) {
    if (!gpt->cuda->checkpoints.stream || gpt->cuda->error.code) return false;
    *out_segment = index / gpt->config.recompute;
    return index < gpt->config.layers && index % gpt->config.recompute == 0;
}

/* ---- pinned memory and the drive ---- */

static uint32_t slot_of(const struct gpt *gpt, uint32_t segment) {
    return segment % cuda_checkpoint_slots(&gpt->config);
}

static char *slot_memory(const struct gpt *gpt, uint32_t slot) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    return m->checkpoints + ((uint64_t)slot * gpt->config.micros + gpt->pass.micro) * m->checkpoint_bytes;
}

static void store(struct gpt *gpt, uint32_t slot) {
    struct cuda_pinned_slot *s = &gpt->cuda->checkpoints.slot[slot];
    cuda_keep_scratch(gpt->cuda,
                      zero_scratch_store(gpt->checkpoints.scratch, s->place, slot_memory(gpt, slot)));
    s->waits = false, s->in_flight = true;
}

/* Starts the stores whose copy has ended. */
static void store_copied(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    for (uint32_t i = 0; i < CUDA_CHECKPOINT_SLOTS && !c->error.code; i++)
        if (c->checkpoints.slot[i].waits && !c->driver.cuEventQuery(c->checkpoints.slot[i].copied))
            store(gpt, i);
}

/* Waits until the slot may take something else: for its copy, and for the transfer after it. */
static void free_slot(struct gpt *gpt, uint32_t slot) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_pinned_slot *s = &c->checkpoints.slot[slot];
    check(c, c->driver.cuEventSynchronize(s->copied));
    if (s->waits && !c->error.code) store(gpt, slot);
    if (s->in_flight) cuda_keep_scratch(c, zero_scratch_wait(gpt->checkpoints.scratch, s->place));
    s->in_flight = false;
}

static void fetch(struct gpt *gpt, uint32_t segment) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t slot = slot_of(gpt, segment);
    struct cuda_pinned_slot *s = &c->checkpoints.slot[slot];
    free_slot(gpt, slot);
    if (c->error.code) return;
    cuda_keep_scratch(c, zero_scratch_fetch(gpt->checkpoints.scratch, segment, slot_memory(gpt, slot)));
    s->place = segment, s->in_flight = true;
}

/* Reads ahead into the slots that have been copied back, down from segment `returned`. */
static void fetch_copied(struct gpt *gpt, uint32_t returned) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_checkpoints *k = &c->checkpoints;
    while (k->unread > gpt->checkpoints.first && !c->error.code) {
        uint32_t segment = k->unread - 1;
        if (segment + CUDA_CHECKPOINT_SLOTS < returned) return;
        if (c->driver.cuEventQuery(k->slot[slot_of(gpt, segment)].copied)) return;
        fetch(gpt, segment);
        k->unread = segment;
    }
}

/* The segment's checkpoint is in its slot. */
static void fetched(struct gpt *gpt, uint32_t segment) {
    struct cuda_checkpoints *k = &gpt->cuda->checkpoints;
    if (segment >= checkpoints_leave(&gpt->config)) return;
    if (segment < k->unread) fetch(gpt, k->unread = segment);
    free_slot(gpt, slot_of(gpt, segment));
}

/* ---- copies ---- */

/* `out`: from the device to the host; else back. */
static void move(struct gpt *gpt, uint32_t segment, bool out) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_driver *d = &c->driver;
    struct cuda_checkpoints *k = &c->checkpoints;
    uint32_t slot = slot_of(gpt, segment);
    CUdeviceptr here = (CUdeviceptr)(uintptr_t)c->memory.residual[segment * gpt->config.recompute];
    CUdeviceptr there = (CUdeviceptr)(uintptr_t)slot_memory(gpt, slot);
    uint64_t bytes = (uint64_t)gpt->pass.rows * gpt->config.width * c->number_bytes;
    check(c, d->cuEventRecord(k->used[segment % 2], c->stream));
    check(c, d->cuStreamWaitEvent(k->stream, k->used[segment % 2], 0));
    check(c, d->cuMemcpyAsync(out ? there : here, out ? here : there, bytes, k->stream));
    check(c, d->cuEventRecord(k->moved[segment % 2], k->stream));
    if (gpt->checkpoints.scratch) check(c, d->cuEventRecord(k->slot[slot].copied, k->stream));
}

static void move_out(struct gpt *gpt, uint32_t segment) {
    struct cuda_checkpoints *k = &gpt->cuda->checkpoints;
    uint32_t leave = checkpoints_leave(&gpt->config), slot = slot_of(gpt, segment);
    if (gpt->checkpoints.scratch) free_slot(gpt, slot);
    move(gpt, segment, true);
    if (!gpt->checkpoints.scratch) return;
    k->slot[slot].waits = segment < leave;
    k->slot[slot].place = segment;
    k->unread = leave;
    store_copied(gpt);
}

static void move_back(struct gpt *gpt, uint32_t segment) {
    if (gpt->checkpoints.scratch) fetched(gpt, segment);
    move(gpt, segment, false);
    if (gpt->checkpoints.scratch) fetch_copied(gpt, segment);
}

static void wait(struct cuda_gpt *c, uint32_t slot) {
    check(c, c->driver.cuStreamWaitEvent(c->stream, c->checkpoints.moved[slot], 0));
}

void cuda_checkpoints_room(struct gpt *gpt, uint32_t index) {
    uint32_t segment;
    if (begins_segment(gpt, index, &segment)) wait(gpt->cuda, segment % 2);
}

void cuda_checkpoints_written(struct gpt *gpt, uint32_t index) {
    uint32_t segment;
    if (!begins_segment(gpt, index, &segment) || !gpt->pass.trains || segment < gpt->checkpoints.first)
        return;
    if (segment + 2 < cuda_segments(&gpt->config)) move_out(gpt, segment);
}

void cuda_checkpoints_back(struct gpt *gpt, uint32_t index) {
    uint32_t segment;
    if (!begins_segment(gpt, index, &segment)) return;
    if (segment >= 2 && segment - 2 >= gpt->checkpoints.first) move_back(gpt, segment - 2);
    if (segment >= 1) wait(gpt->cuda, (segment - 1) % 2); /* its blocks are computed again next */
}
