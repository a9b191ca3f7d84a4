#include "engine/checkpoint/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"

enum { SLOTS = 4, SLOT_BYTES = 1 << 20, PAGE_BYTES = 4096 };

struct slot {
    bool busy; /* on its way */
    uint64_t offset;
    uint32_t bytes;
};

struct direct {
    int file, direct_file;
    struct io *io;
    uint8_t *memory;
    struct slot slot[SLOTS];
    uint32_t filling; /* the slot that takes bytes now */
    uint64_t end;     /* behind the last byte that was taken */
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

/* Through the page cache: what is short of a page, and the rest of a transfer that was cut short. */
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

static void finish(struct direct *d, const struct io_done *done) {
    struct slot *s = &d->slot[done->tag];
    s->busy = false;
    if (done->result < 0)
        fail(d, done->result);
    else if ((uint32_t)done->result < s->bytes)
        write_plainly(d, memory_of(d, done->tag) + done->result, s->bytes - (uint32_t)done->result,
                      s->offset + (uint64_t)done->result);
}

static void await(struct direct *d, uint32_t slot) {
    struct io_done done[SLOTS];
    while (d->slot[slot].busy) {
        int count = d->io->ops->wait(d->io, done, SLOTS);
        if (count < 0) fail(d, count), d->slot[slot].busy = false;
        for (int i = 0; i < count; i++) finish(d, &done[i]);
    }
}

static void submit(struct direct *d, uint32_t bytes) {
    struct slot *s = &d->slot[d->filling];
    s->bytes = bytes;
    s->busy = true;
    d->io->ops->submit(d->io, &(struct io_transfer){.write = true,
                                                    .tag = d->filling,
                                                    .bytes = bytes,
                                                    .offset = s->offset,
                                                    .memory = memory_of(d, d->filling)});
}

/* The next slot, to be filled from `offset`. */
static void turn(struct direct *d, uint64_t offset) {
    d->filling = (d->filling + 1) % SLOTS;
    await(d, d->filling);
    d->slot[d->filling] = (struct slot){.offset = offset};
}

/* ---- the stream ---- */

bool direct_takes(const struct direct *d, uint64_t offset) {
    return d->streaming ? offset == d->end : offset % PAGE_BYTES == 0;
}

int direct_write(struct direct *d, const void *from, size_t bytes, uint64_t offset) {
    const uint8_t *at = from;
    if (!d->streaming) turn(d, offset), d->end = offset, d->streaming = true;
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
    for (uint32_t i = 0; i < SLOTS; i++) await(d, i);
    return d->failure;
}

/* ---- life ---- */

static bool open_io(struct direct *d, const char *path) {
    struct zero_error ignored;
    error_clear(&ignored);
    d->direct_file = open(path, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    d->memory = aligned_alloc(PAGE_BYTES, SLOTS * SLOT_BYTES);
    struct io_options options = {.file = d->direct_file, .depth = SLOTS, .alignment = PAGE_BYTES};
    return d->direct_file >= 0 && d->memory && io_open(&options, false, &d->io, &ignored) == ZERO_OK;
}

struct direct *direct_open(const char *path, int file) {
    struct direct *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->file = file;
    if (open_io(d, path)) return d;
    direct_close(d);
    return NULL;
}

void direct_close(struct direct *d) {
    if (!d) return;
    if (d->io) {
        for (uint32_t i = 0; i < SLOTS; i++) await(d, i);
        d->io->ops->close(d->io);
    }
    if (d->direct_file >= 0) close(d->direct_file);
    free(d->memory);
    free(d);
}
