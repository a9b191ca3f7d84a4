/* A decorator of the io table that fails on purpose, below the retries of a lane: errors, short transfers, late
 * completions, and completions in another order. Faults that a lane can repair leave the bytes right.
 *
 * A transfer is in the inner io, or its result is held here until wait reports it. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "tests/offload/faults.h"

enum { DELAY_NS_MAX = 200000 };

struct held {
    struct io_done done;
    bool ready; /* may be reported now; false: another completion must come first */
};

struct faulty {
    struct io base;
    struct io *inner;
    struct fault_stream stream;
    uint32_t depth, alignment;
    uint32_t inside; /* number of transfers in the inner io */
    struct held *held;
    uint32_t held_count;
    bool *one_byte; /* by tag: report 1 byte instead of the inner result */
};

static void hold(struct faulty *f, struct io_done done, bool ready) {
    f->held[f->held_count++] = (struct held){done, ready};
}

static int error_drawn(struct faulty *f, bool write) {
    if (fault_fires(&f->stream, FAULT_EIO)) return EIO;
    if (write && fault_fires(&f->stream, FAULT_ENOSPC)) return ENOSPC;
    if (fault_fires(&f->stream, FAULT_EINTR)) return EINTR;
    if (fault_fires(&f->stream, FAULT_EAGAIN)) return EAGAIN;
    return 0;
}

static void faulty_submit(struct io *io, const struct io_transfer *transfer) {
    struct faulty *f = (struct faulty *)io;
    struct io_transfer t = *transfer;
    int error = error_drawn(f, t.write);
    if (error) {
        hold(f, (struct io_done){t.tag, -error}, true);
        return;
    }
    f->one_byte[t.tag] = fault_fires(&f->stream, FAULT_ONE_BYTE);
    if (f->one_byte[t.tag])
        t.bytes = f->alignment; /* a direct transfer cannot move one byte, but can report one */
    else if (t.bytes > f->alignment && fault_fires(&f->stream, FAULT_SHORT))
        t.bytes = f->alignment * (uint32_t)(1 + fault_below(&f->stream, t.bytes / f->alignment - 1));
    f->inside++;
    f->inner->ops->submit(f->inner, &t);
}

/* Takes a held result that may be reported now; any held result if nothing else can come. False: there is none. */
static bool let_go(struct faulty *f, struct io_done *out_done) {
    uint32_t start = (uint32_t)fault_below(&f->stream, f->held_count);
    for (uint32_t i = 0; i < f->held_count; i++) {
        uint32_t at = (start + i) % f->held_count;
        if (!f->held[at].ready && f->inside) continue;
        *out_done = f->held[at].done;
        f->held[at] = f->held[--f->held_count];
        return true;
    }
    return false;
}

static void sleep_a_little(struct faulty *f) {
    nanosleep(&(struct timespec){.tv_nsec = (long)fault_below(&f->stream, DELAY_NS_MAX)}, NULL);
}

static void collect(struct faulty *f) {
    struct io_done done;
    if (!f->inner->ops->wait(f->inner, &done, 1)) return;
    f->inside--;
    if (f->one_byte[done.tag] && done.result > 0) done.result = 1;
    while (fault_fires(&f->stream, FAULT_TRANSFER_DELAYED)) sleep_a_little(f);
    uint32_t before = f->held_count;
    bool reordered = f->inside && fault_fires(&f->stream, FAULT_TRANSFER_REORDERED);
    hold(f, done, !reordered);
    /* this result overtakes it */
    for (uint32_t i = 0; !reordered && i < before; i++) f->held[i].ready = true;
}

static uint32_t faulty_wait(struct io *io, struct io_done *out_done, uint32_t capacity) {
    struct faulty *f = (struct faulty *)io;
    uint32_t count = 0;
    while (count < capacity && let_go(f, &out_done[count])) count++;
    if (count) return count;
    collect(f);
    while (count < capacity && let_go(f, &out_done[count])) count++;
    return count;
}

static void faulty_start(struct io *io) {
    struct io *inner = ((struct faulty *)io)->inner;
    inner->ops->start(inner);
}

static void faulty_wake(struct io *io) {
    struct io *inner = ((struct faulty *)io)->inner;
    inner->ops->wake(inner);
}

static void faulty_close(struct io *io) {
    struct faulty *f = (struct faulty *)io;
    f->inner->ops->close(f->inner);
    free(f->one_byte);
    free(f->held);
    free(f);
}

static const struct io_ops io_faulty = {.name = "faulty",
                                        .close = faulty_close,
                                        .submit = faulty_submit,
                                        .start = faulty_start,
                                        .wait = faulty_wait,
                                        .wake = faulty_wake};

zero_status faulty_io_open(struct tier_hook *hook, const struct io_options *options, bool no_uring,
                           struct io **out_io, struct zero_error *error) {
    struct io_options honest = *options;
    struct io *inner;
    honest.hook = NULL;
    zero_status status = io_open(&honest, no_uring, &inner, error);
    if (status) return status;
    struct faulty *f = calloc(1, sizeof *f);
    *f = (struct faulty){.base = *inner,
                         .inner = inner,
                         .stream = fault_stream_make((struct faults *)hook, options->index),
                         .depth = options->depth,
                         .alignment = options->alignment,
                         .held = calloc(options->depth, sizeof *f->held),
                         .one_byte = calloc(options->depth, sizeof *f->one_byte)};
    f->base.ops = &io_faulty;
    *out_io = &f->base;
    return ZERO_OK;
}
