/* Vertical order, where each block is computed again in its backward: micro-batches wait while others are computed. Two sets of arrays
 * take turns, so a few graphs replay all micro-batches, whatever their number. Each micro-batch keeps the inputs of all blocks, the
 * head's input and the stream's gradient in memory of its own, on the device or pinned: its home. Two streams copy between homes and
 * sets while the engine's stream computes.
 *
 *   in    the next micro-batch's input, and in the backward its gradient, into the other set
 *   out   the output, or the gradient, that the last micro-batch wrote
 *
 * Position p of the stream is the input of block p, or of the head. A set has three buffers: positions take turns with two of them, so
 * that a block reads one and writes the other, and the gradient has the third.
 *
 * Before a copy writes a buffer, it waits for all work that the engine's stream has by then, and for the copy of what the buffer had.
 * Before it reads a home, it waits for the last copy to the micro-batch's homes. Work waits for the copy to what it reads, and for the
 * copy of what it overwrites. What is still in a buffer is not copied back.
 *
 * With checkpoints on the drive the homes of inputs are the slots of checkpoints.h. */
#include <stdlib.h>

#include "tools/gpt/cuda/state.h"

static void check(struct cuda_gpt *c, CUresult result) {
    cuda_keep(c, result, "moving inputs of micro-batches");
}

zero_status cuda_waiting_open(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    const struct cuda_driver *d = &c->driver;
    struct cuda_waiting *w = &c->waiting;
    if (!recomputes_in_use(&gpt->config)) return ZERO_OK;
    w->left = calloc(gpt->config.micros, sizeof *w->left);
    if (!w->left) return ZERO_E_MEMORY;
    check(c, d->cuStreamCreate(&w->in, CU_STREAM_NON_BLOCKING));
    check(c, d->cuStreamCreate(&w->out, CU_STREAM_NON_BLOCKING));
    check(c, d->cuEventCreate(&w->mark, CU_EVENT_DISABLE_TIMING));
    for (uint32_t m = 0; m < gpt->config.micros; m++)
        check(c, d->cuEventCreate(&w->left[m], CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 2 * CUDA_BUFFERS; i++)
        check(c, d->cuEventCreate(&w->buffer[i / 2][i % 2].arrived, CU_EVENT_DISABLE_TIMING));
    return c->error.code;
}

static void destroy(const struct cuda_driver *d, CUevent event) {
    if (event) d->cuEventDestroy(event);
}

void cuda_waiting_close(struct gpt *gpt) {
    const struct cuda_driver *d = &gpt->cuda->driver;
    struct cuda_waiting *w = &gpt->cuda->waiting;
    for (int i = 0; i < 2; i++) {
        CUstream stream = i ? w->out : w->in;
        if (stream) d->cuStreamSynchronize(stream), d->cuStreamDestroy(stream);
    }
    for (int i = 0; i < 2 * CUDA_BUFFERS; i++) destroy(d, w->buffer[i / 2][i % 2].arrived);
    for (uint32_t m = 0; w->left && m < gpt->config.micros; m++) destroy(d, w->left[m]);
    destroy(d, w->mark);
    free(w->left);
}

/* ---- buffers and homes ---- */

static uint32_t kind_of(enum cuda_stream stream, uint32_t position) {
    return stream == CUDA_GRADIENT ? CUDA_BUFFERS - 1 : position % 2;
}

static void *memory_of(const struct gpt *gpt, enum cuda_stream stream, uint32_t position, uint32_t set) {
    const struct cuda_set *s = &gpt->cuda->memory.set[set];
    return stream == CUDA_GRADIENT ? s->gradient : s->residual[position];
}

/* Gradients with their sums. */
static void *home_of(const struct gpt *gpt, enum cuda_stream stream, uint32_t position, uint32_t micro) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    if (stream == CUDA_GRADIENT) return m->gradients + micro * m->gradient_bytes;
    if (gpt->checkpoints.place) return checkpoints_at(gpt, position, micro);
    return m->inputs + ((uint64_t)position * gpt->config.micros + micro) * m->checkpoint_bytes;
}

static bool has(const struct cuda_buffer *b, uint32_t position, uint32_t micro) {
    return b->filled && b->position == position && b->micro == micro;
}

static void await(struct cuda_gpt *c, CUstream stream, CUevent event) {
    check(c, c->driver.cuStreamWaitEvent(stream, event, 0));
}

static void await_engine(struct cuda_gpt *c, CUstream stream) {
    check(c, c->driver.cuEventRecord(c->waiting.mark, c->stream));
    await(c, stream, c->waiting.mark);
}

static void copy(struct gpt *gpt, CUstream stream, enum cuda_stream what, void *to, const void *from) {
    struct cuda_gpt *c = gpt->cuda;
    uint64_t input_bytes = (uint64_t)gpt->pass.rows * gpt->config.width * c->number_bytes,
             bytes = what == CUDA_GRADIENT ? c->memory.gradient_bytes : input_bytes;
    check(c,
          c->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream));
}

/* ---- a pass ---- */

/* An evaluation has one micro-batch, which stays in its set. */
static bool waits(const struct gpt *gpt) { return gpt->cuda->waiting.in && gpt->pass.micros > 1; }

void cuda_waiting_pass(struct gpt *gpt) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_waiting *w = &c->waiting;
    if (!w->in) return;
    for (int i = 0; i < 2; i++) { /* what an earlier pass left under way */
        check(c, c->driver.cuEventRecord(w->mark, i ? w->out : w->in));
        await(c, c->stream, w->mark);
    }
    for (int i = 0; i < 2 * CUDA_BUFFERS; i++) w->buffer[i / 2][i % 2].filled = false;
}

void cuda_waiting_await_input(struct gpt *gpt, uint32_t micro) {
    struct cuda_gpt *c = gpt->cuda;
    check(c, c->driver.cuEventSynchronize(c->waiting.left[micro]));
}

void cuda_waiting_await_read(struct gpt *gpt, uint32_t index) {
    struct cuda_gpt *c = gpt->cuda;
    check(c, c->driver.cuEventSynchronize(c->waiting.buffer[kind_of(CUDA_INPUT, index)][c->set].arrived));
}

/* Unless it is there or on its way. */
static void fetch(struct gpt *gpt, enum cuda_stream stream, uint32_t position, uint32_t micro, uint32_t set) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_waiting *w = &c->waiting;
    struct cuda_buffer *b = &w->buffer[kind_of(stream, position)][set];
    if (position == CUDA_NONE || has(b, position, micro) || c->error.code) return;
    if (stream == CUDA_INPUT && gpt->checkpoints.turned)
        cuda_keep_scratch(c, checkpoints_need(gpt, position, micro));
    await_engine(c, w->in);
    if (b->filled) await(c, w->in, w->left[b->micro]);
    await(c, w->in, w->left[micro]);
    copy(gpt, w->in, stream, memory_of(gpt, stream, position, set), home_of(gpt, stream, position, micro));
    check(c, c->driver.cuEventRecord(b->arrived, w->in));
    b->filled = true, b->position = position, b->micro = micro;
}

static void fetch_all(struct gpt *gpt, struct cuda_reads reads, uint32_t micro, uint32_t set) {
    for (int s = 0; s < CUDA_STREAMS; s++) fetch(gpt, (enum cuda_stream)s, reads.position[s], micro, set);
}

void cuda_waiting_begin(struct gpt *gpt, struct cuda_reads reads, struct cuda_reads next) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t micro = gpt->pass.micro;
    bool last = micro + 1 == gpt->pass.micros;
    if (!waits(gpt)) return;
    fetch_all(gpt, reads, micro, c->set);
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (reads.position[s] != CUDA_NONE)
            await(c, c->stream,
                  c->waiting.buffer[kind_of((enum cuda_stream)s, reads.position[s])][c->set].arrived);
    fetch_all(gpt, last ? next : reads, last ? 0 : micro + 1, c->set ^ 1);
}

void cuda_waiting_writes(struct gpt *gpt, enum cuda_stream stream, uint32_t position) {
    struct cuda_gpt *c = gpt->cuda;
    if (!waits(gpt)) return;
    struct cuda_buffer *b = &c->waiting.buffer[kind_of(stream, position)][c->set];
    await(c, c->stream, b->arrived);
    if (b->filled) await(c, c->stream, c->waiting.left[b->micro]);
    b->filled = true, b->position = position, b->micro = gpt->pass.micro;
}

void cuda_waiting_wrote(struct gpt *gpt, enum cuda_stream stream, uint32_t position) {
    struct cuda_gpt *c = gpt->cuda;
    struct cuda_waiting *w = &c->waiting;
    uint32_t micro = gpt->pass.micro;
    if (!waits(gpt) || c->error.code) return;
    await_engine(c, w->out);
    copy(gpt, w->out, stream, home_of(gpt, stream, position, micro),
         memory_of(gpt, stream, position, c->set));
    check(c, c->driver.cuEventRecord(w->left[micro], w->out));
}
