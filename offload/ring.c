/* Transfers by io_uring. The file and the buffers are registered if the system allows it. The poll of an eventfd is
 * one of the submitted entries, so that one sleep ends for a completion as well as for a new request.
 *
 *   submitted --enter--> taken by the kernel --completion--> reported
 *        \--the ring breaks--> refused -----------------------^
 *
 * If the kernel refuses entries for the moment, the ring sleeps and tries again. If the kernel refuses for good, the
 * ring is broken. Transfers that the kernel has not taken are reported with the error, now and later. The kernel
 * still owns the transfers that it has taken, until they complete. Their completions are read from memory that both
 * share. */
#include <errno.h>
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

#define REGISTERED_BYTES_MAX (UINT64_C(1) << 30) /* the kernel's limit for one buffer */
#define TAG_WAKE UINT64_MAX

enum {
    ASK_AGAIN_MS = 1,
    REFUSALS_MAX = 2000, /* refusals in a row, without a completion: the kernel then refuses for good */
};

struct ring {
    struct io base;
    struct io_uring uring;
    int file, wake_file;
    bool fixed_file, armed;
    struct iovec *buffers;
    uint32_t buffer_count; /* number of registered buffers */
    int broken;            /* errno; 0: not broken */
    uint32_t refusals;     /* refusals in a row */
    uint32_t *refused;     /* depth rows: tags of a broken ring's transfers that are not reported yet */
    uint32_t refused_count;
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

/* Some systems allow io_uring's setup and refuse its use. */
static int try_enter(struct io_uring *uring) {
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(uring));
    int result = io_uring_submit(uring);
    if (result <= 0) return result ? result : -EAGAIN;
    do result = io_uring_wait_cqe(uring, &cqe);
    while (result == -EINTR);
    if (result == 0) io_uring_cqe_seen(uring, cqe);
    return result;
}

/* Registered buffers count against the memlock limit; in some kernels the ring itself does too. */
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

/* Registers the file and the buffers. Without registration the kernel pins pages at each transfer; this is only a
 * little slower. */
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

/* A counter for thread sanitizers. A new ring may get the memory of a ring that another thread has just closed. The
 * kernel orders the two, but a thread sanitizer does not see this order (liburing makes its own system calls). So a
 * ring adds to the counter before it closes, and reads the counter after it opens. */
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
    ring->refused = calloc(options->depth, sizeof *ring->refused);
    zero_status status;
    if (!ring->refused) {
        status = error_set(error, ZERO_E_MEMORY, "no memory for a ring");
        goto free_ring;
    }
    int result = io_uring_queue_init(options->depth + 1, &ring->uring, 0);
    if (result < 0) {
        status = error_set(error, ZERO_E_UNSUPPORTED, "the system refuses io_uring: %s%s", strerror(-result),
                           memlock_hint(-result));
        goto free_ring;
    }
    (void)atomic_load_explicit(&rings_closed, memory_order_acquire);
    status = check_operations(&ring->uring, error);
    if (status) goto exit_queue;
    result = try_enter(&ring->uring);
    if (result < 0) {
        status = error_set(error, ZERO_E_UNSUPPORTED, "the system refuses io_uring: %s", strerror(-result));
        goto exit_queue;
    }
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
    free(ring->refused);
    free(ring);
    return status;
}

static void ring_close(struct io *io) {
    struct ring *ring = (struct ring *)io;
    exit_queue(ring);
    close(ring->wake_file);
    free(ring->buffers);
    free(ring->refused);
    free(ring);
}

/* The index of the registered buffer that holds all memory of a transfer, or -1. */
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
    if (ring->broken) {
        ring->refused[ring->refused_count++] = t->tag;
        return;
    }
    /* Never NULL: the queue holds depth + 1 entries. */
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

static void clear_wake(struct ring *ring) {
    uint64_t ignored;
    while (read(ring->wake_file, &ignored, sizeof ignored) < 0 && errno == EINTR) continue;
}

/* Entries that the system does not take now are submitted by the next wait. */
static void ring_start(struct io *io) {
    struct ring *ring = (struct ring *)io;
    if (!ring->broken) io_uring_submit(&ring->uring);
}

/* The ring breaks. The entries that the kernel has not taken are the last of the queue. They are refused, and are
 * never submitted again. */
static void break_off(struct ring *ring, int number) {
    const struct io_uring_sq *queue = &ring->uring.sq;
    ring->broken = number;
    for (uint32_t left = io_uring_sq_ready(&ring->uring); left; left--) {
        uint64_t tag = queue->sqes[(queue->sqe_tail - left) & *queue->kring_mask].user_data;
        if (tag != TAG_WAKE) ring->refused[ring->refused_count++] = (uint32_t)tag;
    }
}

/* Submits, and sleeps in the kernel until something completes. False: the kernel refuses. */
static bool enter(struct ring *ring) {
    arm(ring);
    int result = io_uring_submit_and_wait(&ring->uring, 1);
    if (result >= 0 || result == -EINTR) {
        ring->refusals = 0;
        return true;
    }
    bool for_now = result == -EAGAIN || result == -EBUSY;
    if (!for_now || ++ring->refusals > REFUSALS_MAX) break_off(ring, -result);
    return false;
}

/* The sleep after the kernel refused: until a completion or a wake, or until the next try. */
static void doze(struct ring *ring) {
    struct pollfd files[] = {{.fd = ring->uring.ring_fd, .events = POLLIN},
                             {.fd = ring->wake_file, .events = POLLIN}};
    if (poll(files, 2, ring->broken ? -1 : ASK_AGAIN_MS) > 0 && files[1].revents) clear_wake(ring);
}

static uint32_t collect(struct ring *ring, struct io_done *out_done, uint32_t capacity, bool *out_woken) {
    uint32_t count = 0;
    struct io_uring_cqe *cqe;
    while (count < capacity && io_uring_peek_cqe(&ring->uring, &cqe) == 0) {
        if (cqe->user_data == TAG_WAKE) {
            clear_wake(ring);
            ring->armed = false;
            *out_woken = true;
        } else {
            out_done[count++] = (struct io_done){.tag = (uint32_t)cqe->user_data, .result = cqe->res};
            ring->refusals = 0;
        }
        io_uring_cqe_seen(&ring->uring, cqe);
    }
    while (count < capacity && ring->refused_count)
        out_done[count++] =
            (struct io_done){.tag = ring->refused[--ring->refused_count], .result = -ring->broken};
    return count;
}

static uint32_t ring_wait(struct io *io, struct io_done *out_done, uint32_t capacity) {
    struct ring *ring = (struct ring *)io;
    bool entered = !ring->broken && enter(ring), woken = false;
    uint32_t count = collect(ring, out_done, capacity, &woken);
    if (entered || count || woken) return count;
    doze(ring);
    return collect(ring, out_done, capacity, &woken);
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
