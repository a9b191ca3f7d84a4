/* Transfers between memory and one file: one table, and a file per implementation: ring (io_uring), pool
 * (threads that pread and pwrite), and faulty (a decorator that fails on purpose). Transfers complete in any
 * order, and may be short or fail: who submits them reads every result (offload/lane.h).
 * Every transfer is told of once. Until then its tag and its memory may be the system's, also where the io broke.
 * Threads: submit and wait from one, the owner; wake from any. Nothing is allocated after open. */
#ifndef ZERO_OFFLOAD_IO_H
#define ZERO_OFFLOAD_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/device/device.h"
#include "offload/faults.h"

struct io_transfer {
    bool write;
    uint32_t tag; /* below depth; free for use again once done */
    uint32_t bytes;
    uint64_t offset; /* in the file */
    uint8_t *memory;
};

struct io_done {
    uint32_t tag;
    int32_t result; /* bytes moved, or -errno */
};

struct io_options {
    int file;       /* borrowed */
    uint32_t depth; /* transfers in flight, at most */
    uint32_t alignment;
    const struct device_span *buffers; /* to register */
    uint32_t buffer_count;
};

struct io;

struct io_ops {
    const char *name;
    /* ZERO_E_UNSUPPORTED: the system refuses this way; `error` has the reason. */
    zero_status (*open)(const struct io_options *options, struct io **out_io, struct zero_error *error);
    void (*close)(struct io *io); /* nothing is in flight */
    void (*submit)(struct io *io, const struct io_transfer *transfer);
    void (*start)(struct io *io); /* what was submitted begins now, at the latest; wait begins with it */
    /* Sleeps until a transfer is done or wake is called; the number of rows written. A transfer that the system
     * refuses for good is told of with its error. */
    uint32_t (*wait)(struct io *io, struct io_done *out_done, uint32_t capacity);
    void (*wake)(struct io *io); /* ends one wait, the running or the next */
};

struct io { /* the head of every implementation's own struct */
    const struct io_ops *ops;
    char remark[256]; /* what the log should say once; empty: nothing */
};

extern const struct io_ops io_ring, io_pool;

/* By io_uring, or where the system refuses it, by threads; then the remark has the reason. */
zero_status io_open(const struct io_options *options, bool no_uring, struct io **out_io,
                    struct zero_error *error);

/* Takes over `inner`, which is closed on failure too. `index`: of the stream of draws. */
zero_status io_faulty_wrap(struct io *inner, const struct io_options *options, struct faults *faults,
                           uint32_t index, struct io **out_io, struct zero_error *error);

#endif
