#include "engine/checkpoint/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"

enum {
    OWN_BYTES = 4 << 20,
    SLOT_BYTES_MAX = 512 << 10,
    SLOTS_LEAST = 8,
    PAGE_BYTES = 4096,
    DEPTH = 8,  /* transfers in flight */
    STREAMS = 4 /* a checkpoint's weights, two states and averages are written side by side */
};

enum { NO_SLOT = UINT32_MAX };

/* FREE -> filling, by a stream -> FULL, in the queue -> FLYING -> FREE. */
enum slot_state { FREE, FILLING, FULL, FLYING };

struct slot {
    enum slot_state state;
    uint64_t offset;
    uint32_t bytes;
};

struct stream {
    uint64_t end;     /* file offset after the last byte that was taken */
    uint32_t filling; /* the slot that is being filled; or NO_SLOT */
    uint64_t used;    /* when, by direct.writes; 0: no stream */
};

struct direct {
    int file, direct_file;
    struct io *io;
    uint8_t *memory, *own; /* own: allocated and freed by this file; else NULL */
    struct slot *slot;
    uint32_t slots, slot_bytes;
    uint32_t *queue;        /* slots, a ring of FULL ones, in the order of submission */
    uint32_t queued, first; /* their number; the place of the first */
    uint32_t flight[DEPTH]; /* slot of each transfer, by the transfer's tag; or NO_SLOT */
    struct stream stream[STREAMS];
    uint64_t writes;
    int failure; /* the first one, as -errno */
};

static uint8_t *memory_of(const struct direct *d, uint32_t slot) {
    return d->memory + (size_t)slot * d->slot_bytes;
}

/* ---- in flight ---- */

static void fail(struct direct *d, int failure) {
    if (!d->failure) d->failure = failure;
}

/* Writes through the page cache: bytes that do not fill a page, and the rest of a short transfer. */
static void write_plainly(struct direct *d, const uint8_t *from, size_t bytes, uint64_t offset) {
    while (bytes) {
        ssize_t put = pwrite(d->file, from, bytes, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            fail(d, put < 0 ? -errno : -ENOSPC);
            return;
        }
        from += put, bytes -= (size_t)put, offset += (uint64_t)put;
    }
}

/* Frees the slot of a transfer that is done. EINTR and EAGAIN mean that it moved nothing; the rest is then written
 * through the page cache. */
static void finish(struct direct *d, const struct io_done *done) {
    uint32_t slot = d->flight[done->tag];
    struct slot *s = &d->slot[slot];
    int32_t moved = done->result == -EINTR || done->result == -EAGAIN ? 0 : done->result;
    s->state = FREE;
    d->flight[done->tag] = NO_SLOT;
    if (moved < 0)
        fail(d, moved);
    else if ((uint32_t)moved < s->bytes)
        write_plainly(d, memory_of(d, slot) + moved, s->bytes - (uint32_t)moved, s->offset + (uint64_t)moved);
}

static bool free_tag(const struct direct *d, uint32_t *out) {
    for (*out = 0; *out < DEPTH; ++*out)
        if (d->flight[*out] == NO_SLOT) return true;
    return false;
}

/* Submits full slots in order, while transfers are free. */
static void launch(struct direct *d) {
    bool launched = false;
    for (uint32_t tag; d->queued && free_tag(d, &tag); d->queued--, d->first = (d->first + 1) % d->slots) {
        uint32_t slot = d->queue[d->first];
        struct slot *s = &d->slot[slot];
        s->state = FLYING;
        d->flight[tag] = slot;
        d->io->ops->submit(d->io, &(struct io_transfer){.write = true,
                                                        .tag = tag,
                                                        .bytes = s->bytes,
                                                        .offset = s->offset,
                                                        .memory = memory_of(d, slot)});
        launched = true;
    }
    if (launched) d->io->ops->start(d->io);
}

static void submit(struct direct *d, uint32_t slot, uint32_t bytes) {
    d->slot[slot].bytes = bytes;
    d->slot[slot].state = FULL;
    d->queue[(d->first + d->queued++) % d->slots] = slot;
    launch(d);
}

static void await_some(struct direct *d) {
    struct io_done done[DEPTH];
    uint32_t count = d->io->ops->wait(d->io, done, DEPTH);
    for (uint32_t i = 0; i < count; i++) finish(d, &done[i]);
    launch(d);
}

static void await_all(struct direct *d) {
    for (uint32_t i = 0; i < d->slots; i++)
        while (d->slot[i].state == FULL || d->slot[i].state == FLYING) await_some(d);
}

/* There are more slots than streams, so one becomes free. */
static uint32_t take_slot(struct direct *d, uint64_t offset) {
    for (;; await_some(d))
        for (uint32_t i = 0; i < d->slots; i++)
            if (d->slot[i].state == FREE) {
                d->slot[i] = (struct slot){.state = FILLING, .offset = offset};
                return i;
            }
}

/* ---- streams ---- */

static void end_stream(struct direct *d, struct stream *stream) {
    uint32_t slot = stream->used ? stream->filling : NO_SLOT;
    stream->used = 0;
    if (slot == NO_SLOT) return;
    struct slot *s = &d->slot[slot];
    uint32_t whole = s->bytes / PAGE_BYTES * PAGE_BYTES;
    write_plainly(d, memory_of(d, slot) + whole, s->bytes - whole, s->offset + whole);
    s->state = FREE;
    if (whole) submit(d, slot, whole);
}

/* The stream that the offset continues; or a new one, which replaces the least recently used stream. */
static struct stream *stream_at(struct direct *d, uint64_t offset) {
    struct stream *oldest = d->stream;
    for (struct stream *s = d->stream; s < d->stream + STREAMS; s++) {
        if (s->used && s->end == offset) return s;
        if (s->used < oldest->used) oldest = s;
    }
    end_stream(d, oldest);
    *oldest = (struct stream){.end = offset, .filling = NO_SLOT};
    return oldest;
}

/* Takes some of the bytes, at least one. */
static size_t take(struct direct *d, struct stream *stream, const uint8_t *from, size_t bytes) {
    size_t some = PAGE_BYTES - stream->end % PAGE_BYTES;
    if (stream->filling == NO_SLOT && some < PAGE_BYTES) {
        some = some < bytes ? some : bytes;
        write_plainly(d, from, some, stream->end);
        return some;
    }
    if (stream->filling == NO_SLOT) stream->filling = take_slot(d, stream->end);
    struct slot *s = &d->slot[stream->filling];
    some = d->slot_bytes - s->bytes < bytes ? d->slot_bytes - s->bytes : bytes;
    memcpy(memory_of(d, stream->filling) + s->bytes, from, some);
    s->bytes += (uint32_t)some;
    if (s->bytes == d->slot_bytes) submit(d, stream->filling, s->bytes), stream->filling = NO_SLOT;
    return some;
}

int direct_write(struct direct *d, const void *from, size_t bytes, uint64_t offset) {
    struct stream *stream = stream_at(d, offset);
    const uint8_t *at = from;
    stream->used = ++d->writes;
    for (size_t some; bytes; at += some, bytes -= some, stream->end += some)
        some = take(d, stream, at, bytes);
    return d->failure;
}

int direct_flush(struct direct *d) {
    for (int i = 0; i < STREAMS; i++) end_stream(d, &d->stream[i]);
    await_all(d);
    return d->failure;
}

/* ---- life ---- */

static bool take_memory(struct direct *d, const struct storage_staging *staging) {
    uint64_t bytes = staging ? staging->bytes : OWN_BYTES;
    uint64_t slot = bytes / SLOTS_LEAST / PAGE_BYTES * PAGE_BYTES;
    d->slot_bytes = (uint32_t)(slot < SLOT_BYTES_MAX ? slot : SLOT_BYTES_MAX);
    if (!d->slot_bytes) return false;
    d->slots = (uint32_t)(bytes / d->slot_bytes);
    d->slot = calloc(d->slots, sizeof *d->slot);
    d->queue = calloc(d->slots, sizeof *d->queue);
    if (!staging) d->own = aligned_alloc(PAGE_BYTES, OWN_BYTES);
    d->memory = staging ? staging->memory : d->own;
    return d->slot && d->queue && d->memory;
}

static bool open_io(struct direct *d, const char *path, const struct storage_staging *staging) {
    struct zero_error ignored;
    error_clear(&ignored);
    d->direct_file = open(path, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    struct io_options options = {.file = d->direct_file,
                                 .depth = DEPTH,
                                 .alignment = PAGE_BYTES,
                                 .hook = staging ? staging->hook : NULL};
    if (d->direct_file < 0 || !take_memory(d, staging)) return false;
    return !io_open(&options, false, &d->io, &ignored);
}

struct direct *direct_open(const char *path, int file, const struct storage_staging *staging) {
    struct direct *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->file = file;
    for (uint32_t i = 0; i < DEPTH; i++) d->flight[i] = NO_SLOT;
    if (open_io(d, path, staging)) return d;
    direct_close(d);
    return NULL;
}

void direct_close(struct direct *d) {
    if (!d) return;
    if (d->io) {
        await_all(d);
        d->io->ops->close(d->io);
    }
    if (d->direct_file >= 0) close(d->direct_file);
    free(d->slot);
    free(d->queue);
    free(d->own);
    free(d);
}
