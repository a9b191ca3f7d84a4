/* Transfers between memory and one file: one table, and one file per implementation. ring: io_uring. pool: threads
 * that call pread and pwrite.
 *
 * Transfers complete in any order. A transfer may be short or fail, so the caller must read every result
 * (offload/lane.h). Each transfer is reported exactly once. Until then the system may use its tag and its memory,
 * even if the io is broken.
 *
 * Threads: one thread, the owner, calls submit, start and wait; any thread may call wake. Nothing is allocated after
 * open. */
#pragma once

#include "engine/base/error.h"
#include "engine/device/device.h"

struct io_transfer {
    bool write;
    uint32_t tag; /* below depth; may be used again after the transfer is reported */
    uint32_t bytes;
    uint64_t offset; /* offset in the file */
    uint8_t *memory;
};

struct io_done {
    uint32_t tag;
    int32_t result; /* bytes moved, or -errno */
};

struct io_options {
    int file;       /* borrowed */
    uint32_t depth; /* the most transfers in flight */
    uint32_t alignment;
    const struct device_span *buffers; /* buffers to register with the system */
    uint32_t buffer_count;
    struct tier_hook *hook; /* or NULL */
    uint32_t index;         /* of the path, for the hook */
};

struct io;
struct tier;
struct tier_ops;
struct tier_options;

/* Opens tiers, and their transfers, in place of tier_open and io_open: tests make drives fail. */
struct tier_hook {
    zero_status (*tier_open)(struct tier_hook *hook, const struct tier_ops *ops,
                             const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error);
    zero_status (*io_open)(struct tier_hook *hook, const struct io_options *options, bool no_uring,
                           struct io **out_io, struct zero_error *error);
};

struct io_ops {
    const char *name;
    /* ZERO_E_UNSUPPORTED: the system refuses this kind of io; `error` has the reason. */
    zero_status (*open)(const struct io_options *options, struct io **out_io, struct zero_error *error);
    void (*close)(struct io *io); /* nothing may be in flight */
    void (*submit)(struct io *io, const struct io_transfer *transfer);
    /* Submitted transfers begin now, at the latest. wait does the same first. */
    void (*start)(struct io *io);
    /* Sleeps until a transfer is done or wake is called. Returns the number of rows written. A transfer that the
     * system refuses for good is reported with the error. */
    uint32_t (*wait)(struct io *io, struct io_done *out_done, uint32_t capacity);
    void (*wake)(struct io *io); /* ends one wait: the present one or the next */
};

struct io { /* the head of every implementation's own struct */
    const struct io_ops *ops;
    char remark[256]; /* a line for the log, to be printed once; empty: none */
};

extern const struct io_ops io_ring, io_pool;

/* Opens io_uring, or the pool if the system refuses io_uring; `remark` then has the reason. */
zero_status io_open(const struct io_options *options, bool no_uring, struct io **out_io,
                    struct zero_error *error);
