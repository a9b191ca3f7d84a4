/* Keeps activation checkpoints in pinned host memory. A checkpoint is the input of a segment's first block. On the
 * device, checkpoints use two slots: segment s uses slot s % 2.
 *
 *   forward The forward writes the slot. A separate stream copies the slot to the host while blocks compute. Then the
 *             checkpoint of segment s + 2 uses the slot.
 *   backward The first block of segment s + 2 is the last to use the slot. After its backward the checkpoint of segment
 *   s
 *             is copied back, while segment s + 1 computes.
 *
 * The last two segments' checkpoints stay in their slots. Before the engine's stream uses a slot, it waits for the
 * slot's last copy; a copy waits for the slot's last use. Copies and waits are between the phases, outside of
 * graphs. */
#include "tools/gpt/cuda/state.h"

static void check(struct cuda_gpt *c, CUresult result) {
    if (!c->error.code)
        cuda_check(&c->driver, result, &c->error, "the GPT on the GPU: moving activation checkpoints");
}

zero_status cuda_checkpoints_open(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_driver *d = &c->driver;
    struct cuda_checkpoints *k = &c->checkpoints;
    if (gpt->config.checkpoints != ZERO_CPU || cuda_segments(&gpt->config) <= 2) return ZERO_OK;
    check(c, d->cuStreamCreate(&k->stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2 && !c->error.code; i++) {
        check(c, d->cuEventCreate(&k->used[i], CU_EVENT_DISABLE_TIMING));
        check(c, d->cuEventCreate(&k->moved[i], CU_EVENT_DISABLE_TIMING));
    }
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
    d->cuStreamDestroy(k->stream);
}

/* True if block `index` is the first of a segment, and checkpoints move at all. */
static bool begins_segment(const struct gpt *gpt, uint32_t index, uint32_t *out_segment) {
    if (!gpt->cuda->checkpoints.stream || gpt->cuda->error.code) return false;
    *out_segment = index / gpt->config.recompute;
    return index < gpt->config.layers && index % gpt->config.recompute == 0;
}

/* `out`: from the device to the host; else back. */
static void move(struct gpt *gpt, uint32_t segment, bool out) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_driver *d = &c->driver;
    struct cuda_checkpoints *k = &c->checkpoints;
    CUdeviceptr here = (CUdeviceptr)(uintptr_t)c->memory.residual[segment * gpt->config.recompute];
    CUdeviceptr there =
        (CUdeviceptr)(uintptr_t)(c->memory.checkpoints + segment * c->memory.checkpoint_bytes);
    uint64_t bytes = (uint64_t)gpt->pass.rows * gpt->config.width * c->number_bytes;
    check(c, d->cuEventRecord(k->used[segment % 2], c->stream));
    check(c, d->cuStreamWaitEvent(k->stream, k->used[segment % 2], 0));
    check(c, d->cuMemcpyAsync(out ? there : here, out ? here : there, bytes, k->stream));
    check(c, d->cuEventRecord(k->moved[segment % 2], k->stream));
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
    if (!begins_segment(gpt, index, &segment) || !gpt->pass.trains) return;
    if (segment + 2 < cuda_segments(&gpt->config)) move(gpt, segment, true);
}

void cuda_checkpoints_back(struct gpt *gpt, uint32_t index) {
    uint32_t segment;
    if (!begins_segment(gpt, index, &segment)) return;
    if (segment >= 2) move(gpt, segment - 2, false);
    if (segment >= 1) wait(gpt->cuda, (segment - 1) % 2); /* its blocks are computed again next */
}
