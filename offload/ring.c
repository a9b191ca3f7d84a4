/* Transfers by io_uring: the file and the buffers are registered where the system allows. A poll of an
 * eventfd waits among the transfers, so that one sleep ends for both a completion and a new request. */
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "offload/io.h"

#define REGISTERED_BYTES_MAX (UINT64_C(1) << 30) /* of one buffer: the kernel's limit */
#define TAG_WAKE UINT64_MAX

struct ring {
    struct io base;
    struct io_uring uring;
    int file, wake_file;
    bool fixed_file, armed;
    struct iovec *buffers;
    uint32_t buffer_count; /* registered; 0: none */
};

static zero_status check_operations(struct io_uring *uring, struct zero_error *error) {
    static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED,
                                 IORING_OP_POLL_ADD};
    struct io_uring_probe *probe = io_uring_get_probe_ring(uring);
    bool all = probe;
    for (size_t i = 0; all && i < sizeof needed / sizeof *needed; i++)
        all = io_uring_opcode_supported(probe, needed[i]);
    io_uring_free_probe(probe);
    return all ? ZERO_OK
               : error_set(error, ZERO_E_UNSUPPORTED, "io_uring of this kernel lacks plain reads and writes");
}

/* Buffers count against the limit, and so does the ring itself in some kernels. */
static const char *memlock_hint(int number) {
    return number == ENOMEM ? "; the memlock limit, ulimit -l, may be too low" : "";
}

static uint32_t count_buffers(const struct io_options *o) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < o->buffer_count; i++)
        count += (o->buffers[i].bytes + REGISTERED_BYTES_MAX - 1) / REGISTERED_BYTES_MAX;
    return count <= INT32_MAX ? (uint32_t)count : 0;
}

static void cut_buffers(const struct io_options *o, struct iovec *out) {
    for (uint32_t i = 0; i < o->buffer_count; i++)
        for (uint64_t at = 0; at < o->buffers[i].bytes; at += REGISTERED_BYTES_MAX) {
            uint64_t left = o->buffers[i].bytes - at;
            *out++ = (struct iovec){.iov_base = (uint8_t *)o->buffers[i].data + at,
                                    .iov_len = left < REGISTERED_BYTES_MAX ? left : REGISTERED_BYTES_MAX};
        }
}

/* Without registration the kernel pins pages at each transfer: slower by a little, otherwise the same. */
static void register_all(struct ring *ring, const struct io_options *o) {
    ring->fixed_file = io_uring_register_files(&ring->uring, &ring->file, 1) == 0;
    uint32_t count = count_buffers(o);
    if (!count) return;
    ring->buffers = calloc(count, sizeof *ring->buffers);
    int result = ring->buffers ? 0 : -ENOMEM;
    if (!result) {
        cut_buffers(o, ring->buffers);
        result = io_uring_register_buffers(&ring->uring, ring->buffers, count);
    }
    if (!result) {
        ring->buffer_count = count;
        return;
    }
    snprintf(ring->base.remark, sizeof ring->base.remark,
             "staging buffers are not registered with io_uring (%s%s); transfers pin their pages one by one",
             strerror(-result), memlock_hint(-result));
}

/* A ring that is opened may lie where another thread's has just been. The kernel orders the two, which a thread
 * sanitizer cannot see (liburing's own system calls): the count, written before the one goes and read after the
 * other came, tells it. */
static atomic_uint rings_closed;

static void exit_queue(struct ring *ring) {
    atomic_fetch_add_explicit(&rings_closed, 1, memory_order_release);
    io_uring_queue_exit(&ring->uring);
}

static zero_status ring_open(const struct io_options *options, struct io **out_io, struct zero_error *error) {
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring) return error_set(error, ZERO_E_MEMORY, "no memory for a ring");
    ring->base.ops = &io_ring;
    ring->file = options->file;
    zero_status status;
    int result = io_uring_queue_init(options->depth + 1, &ring->uring, 0);
    if (result < 0) {
        status = error_set(error, ZERO_E_UNSUPPORTED, "the system refuses io_uring: %s%s", strerror(-result),
                           memlock_hint(-result));
        goto free_ring;
    }
    (void)atomic_load_explicit(&rings_closed, memory_order_acquire);
    status = check_operations(&ring->uring, error);
    if (status) goto exit_queue;
    ring->wake_file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->wake_file < 0) {
        status = error_set(error, ZERO_E_UNSUPPORTED, "the system refuses an eventfd: %s", strerror(errno));
        goto exit_queue;
    }
    register_all(ring, options);
    *out_io = &ring->base;
    return ZERO_OK;
exit_queue:
    exit_queue(ring);
free_ring:
    free(ring);
    return status;
}

static void ring_close(struct io *io) {
    struct ring *ring = (struct ring *)io;
    exit_queue(ring);
    close(ring->wake_file);
    free(ring->buffers);
    free(ring);
}

/* The registered buffer that holds all of a transfer's memory, or -1. */
static int buffer_of(const struct ring *ring, const struct io_transfer *t) {
    for (uint32_t i = 0; i < ring->buffer_count; i++) {
        const struct iovec *b = &ring->buffers[i];
        uint64_t at = (uint64_t)((uintptr_t)t->memory - (uintptr_t)b->iov_base);
        if (at < b->iov_len && t->bytes <= b->iov_len - at) return (int)i;
    }
    return -1;
}

static void ring_submit(struct io *io, const struct io_transfer *t) {
    struct ring *ring = (struct ring *)io;
    /* There is always one: the queue holds depth + 1. */
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    int file = ring->fixed_file ? 0 : ring->file, buffer = buffer_of(ring, t);
    if (buffer >= 0 && t->write)
        io_uring_prep_write_fixed(sqe, file, t->memory, t->bytes, t->offset, buffer);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, file, t->memory, t->bytes, t->offset, buffer);
    else if (t->write)
        io_uring_prep_write(sqe, file, t->memory, t->bytes, t->offset);
    else
        io_uring_prep_read(sqe, file, t->memory, t->bytes, t->offset);
    if (ring->fixed_file) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, t->tag);
}

static void arm(struct ring *ring) {
    if (ring->armed) return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    io_uring_prep_poll_add(sqe, ring->wake_file, POLLIN);
    io_uring_sqe_set_data64(sqe, TAG_WAKE);
    ring->armed = true;
}

static void disarm(struct ring *ring) {
    uint64_t ignored;
    while (read(ring->wake_file, &ignored, sizeof ignored) < 0 && errno == EINTR) continue;
    ring->armed = false;
}

/* What the system does not take now is taken by the next wait. */
static void ring_start(struct io *io) { io_uring_submit(&((struct ring *)io)->uring); }

static int ring_wait(struct io *io, struct io_done *out_done, uint32_t capacity) {
    struct ring *ring = (struct ring *)io;
    arm(ring);
    int result = io_uring_submit_and_wait(&ring->uring, 1);
    if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) return result;
    uint32_t count = 0;
    struct io_uring_cqe *cqe;
    while (count < capacity && io_uring_peek_cqe(&ring->uring, &cqe) == 0) {
        if (cqe->user_data == TAG_WAKE)
            disarm(ring);
        else
            out_done[count++] = (struct io_done){.tag = (uint32_t)cqe->user_data, .result = cqe->res};
        io_uring_cqe_seen(&ring->uring, cqe);
    }
    return (int)count;
}

static void ring_wake(struct io *io) {
    uint64_t one = 1;
    while (write(((struct ring *)io)->wake_file, &one, sizeof one) < 0 && errno == EINTR) continue;
}

const struct io_ops io_ring = {.name = "io_uring",
                               .open = ring_open,
                               .close = ring_close,
                               .submit = ring_submit,
                               .start = ring_start,
                               .wait = ring_wait,
                               .wake = ring_wake};
