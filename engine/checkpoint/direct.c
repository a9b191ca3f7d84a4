#include "engine/checkpoint/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"

enum {
    OWN_BYTES = 4 << 20,
    SLOT_BYTES = 512 << 10,
    PAGE_BYTES = 4096,
    DEPTH = 8 /* transfers in flight */
};

/* FREE -> filling -> FULL -> FLYING -> FREE, in the order of the ring. */
enum slot_state { FREE, FULL, FLYING };

struct slot {
    enum slot_state state;
    uint64_t offset;
    uint32_t bytes;
};

enum { NO_SLOT = UINT32_MAX };

struct direct {
    int file, direct_file;
    struct io *io;
    uint8_t *memory, *own; /* own: allocated and freed by this file; else NULL */
    struct slot *slot;
    uint32_t slots;
    uint32_t flight[DEPTH]; /* slot of each transfer, by the transfer's tag; or NO_SLOT */
    uint32_t filling;       /* the slot that is being filled */
    uint32_t next;          /* the next slot to submit; if it is `filling`, no slot is full */
    uint64_t end;           /* file offset after the last byte that was taken */
    bool streaming;
    int failure; /* the first one, as -errno */
};

static uint8_t *memory_of(const struct direct *d, uint32_t slot) {
    return d->memory + (size_t)slot * SLOT_BYTES;
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
    for (uint32_t tag; d->slot[d->next].state == FULL && free_tag(d, &tag);
         d->next = (d->next + 1) % d->slots) {
        struct slot *s = &d->slot[d->next];
        s->state = FLYING;
        d->flight[tag] = d->next;
        d->io->ops->submit(d->io, &(struct io_transfer){.write = true,
                                                        .tag = tag,
                                                        .bytes = s->bytes,
                                                        .offset = s->offset,
                                                        .memory = memory_of(d, d->next)});
        launched = true;
    }
    if (launched) d->io->ops->start(d->io);
}

static void await(struct direct *d, uint32_t slot) {
    struct io_done done[DEPTH];
    while (d->slot[slot].state != FREE) {
        uint32_t count = d->io->ops->wait(d->io, done, DEPTH);
        for (uint32_t i = 0; i < count; i++) finish(d, &done[i]);
        launch(d);
    }
}

static void submit(struct direct *d, uint32_t bytes) {
    d->slot[d->filling].bytes = bytes;
    d->slot[d->filling].state = FULL;
    launch(d);
}

/* Goes to the next slot, waits until it is free, and fills it from `offset`. */
static void turn(struct direct *d, uint64_t offset) {
    d->filling = (d->filling + 1) % d->slots;
    await(d, d->filling);
    d->slot[d->filling] = (struct slot){.offset = offset};
}

/* ---- the stream ---- */

bool direct_takes(const struct direct *d, uint64_t offset) {
    return d->streaming ? offset == d->end : offset % PAGE_BYTES == 0;
}

/* Begins a stream. No slot is full between streams, so the slot that is filled first is the next to submit. */
static void begin(struct direct *d, uint64_t offset) {
    d->slot[d->filling] = (struct slot){.offset = offset};
    d->next = d->filling;
    d->end = offset;
    d->streaming = true;
}

int direct_write(struct direct *d, const void *from, size_t bytes, uint64_t offset) {
    const uint8_t *at = from;
    if (!d->streaming) begin(d, offset);
    while (bytes) {
        struct slot *s = &d->slot[d->filling];
        size_t some = SLOT_BYTES - s->bytes < bytes ? SLOT_BYTES - s->bytes : bytes;
        memcpy(memory_of(d, d->filling) + s->bytes, at, some);
        s->bytes += (uint32_t)some;
        at += some, bytes -= some, d->end += some;
        if (s->bytes == SLOT_BYTES) submit(d, SLOT_BYTES), turn(d, d->end);
    }
    return d->failure;
}

int direct_flush(struct direct *d) {
    if (d->streaming) {
        struct slot *s = &d->slot[d->filling];
        uint32_t whole = s->bytes / PAGE_BYTES * PAGE_BYTES, rest = s->bytes - whole;
        uint64_t offset = s->offset;
        if (whole) submit(d, whole);
        write_plainly(d, memory_of(d, d->filling) + whole, rest, offset + whole);
    }
    d->streaming = false;
    for (uint32_t i = 0; i < d->slots; i++) await(d, i);
    return d->failure;
}

/* ---- life ---- */

static bool take_memory(struct direct *d, const struct storage_staging *staging) {
    uint64_t bytes = staging ? staging->bytes : OWN_BYTES;
    d->slots = (uint32_t)(bytes / SLOT_BYTES);
    d->slot = calloc(d->slots + 1, sizeof *d->slot);
    if (!staging) d->own = aligned_alloc(PAGE_BYTES, OWN_BYTES);
    d->memory = staging ? staging->memory : d->own;
    return d->slots > 1 && d->slot && d->memory;
}

static bool open_io(struct direct *d, const char *path, const struct storage_staging *staging) {
    struct zero_error ignored;
    struct faults *faults = staging ? staging->faults : NULL;
    error_clear(&ignored);
    d->direct_file = open(path, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    struct io_options options = {.file = d->direct_file, .depth = DEPTH, .alignment = PAGE_BYTES};
    if (d->direct_file < 0 || !take_memory(d, staging)) return false;
    struct io *io;
    zero_status status = io_open(&options, false, &io, &ignored);
    if (!status && faults) status = io_faulty_wrap(io, &options, faults, 0, &io, &ignored);
    if (!status) d->io = io;
    return !status;
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
        for (uint32_t i = 0; i < d->slots; i++)
            if (d->slot[i].state == FLYING) await(d, i);
        d->io->ops->close(d->io);
    }
    if (d->direct_file >= 0) close(d->direct_file);
    free(d->slot);
    free(d->own);
    free(d);
}
