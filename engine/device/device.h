/* A device: memory, and work that completes later. One table, one file per implementation.
 *
 * Memory is either device memory (DEVICE_MEMORY) or pinned host memory (DEVICE_PINNED). The host must not touch the
 * DEVICE_MEMORY of a `discrete` device; host and device both reach DEVICE_PINNED. Work is a kernel (with its argument
 * and the memory that it reads and writes), a copy, or a clear. The host performs work at once; a GPU enqueues it; the
 * simulator performs it at a random later time, and checks that no one touched its memory in between.
 *
 * Work is queued on streams, one per purpose. A stream performs its work in the order of submission; work of different
 * streams is performed in any order. When a ticket is done, its work is done, and so is all work that was queued on the
 * stream before it. A caller that needs one stream's results on another stream first waits until the ticket is done, or
 * lets the other stream wait for the ticket (`wait`).
 * DEVICE_COMPUTE is the host program's stream: the host program enqueues its own work there, and `record` returns a
 * ticket for the work that it has enqueued so far.
 *
 * A GPU's stream takes a limited amount of unfinished work; then its driver lets the caller wait inside a call. The
 * caller has the executor's lock. If the work waits for a peer that has died, only another thread that takes the lock
 * can end this wait. So a caller that may queue any amount of work waits for device_has_room first, and gives the lock
 * away meanwhile.
 *
 * Threads: one at a time per device (the executor's lock), any thread. A failure of a GPU is sticky. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/device/kernel.h"

enum { DEVICE_SPANS_MAX = 8, DEVICE_ARGUMENT_BYTES = 256 };

/* The tickets of a stream that are not done, before a caller waits (device_has_room). A driver has room for about 1000
 * pieces of work per stream; a ticket is up to two, its work and its event. In addition there are the operations that
 * the executor has begun (some tens). */
enum { DEVICE_QUEUE_MAX = 256 };

/* The parts of reserved address space begin at multiples of this: a huge page, and a GPU's page. The host's memory comes in its own. */
enum { DEVICE_PART_BYTES = 2 << 20, DEVICE_PAGE_BYTES = 4096 };

enum device_memory { DEVICE_MEMORY, DEVICE_PINNED };

enum device_stream {
    DEVICE_COMPUTE, /* the host program's */
    DEVICE_GATHER,
    DEVICE_REDUCE,
    DEVICE_UPDATE,
    DEVICE_OUT, /* from the device to the host */
    DEVICE_IN,
    DEVICE_STREAMS
};

struct device_span {
    void *data;
    uint64_t bytes;
};

struct device_work {
    /* A kernel without a grid runs on the host, on memory that the host reaches. */
    const struct kernel *kernel;
    _Alignas(16) uint8_t argument[DEVICE_ARGUMENT_BYTES]; /* copied */
    uint8_t stream, reads, writes;
    double flops; /* of matrix products; work without them takes the time of its bytes */
    /* Two spans are equal or do not overlap. */
    struct device_span read[DEVICE_SPANS_MAX], write[DEVICE_SPANS_MAX];
    /* The first read and the first write are each of so many rows like the span, at these distances in bytes; 0: of one. */
    uint32_t rows;
    uint64_t read_step, write_step;
};

/* The work's places `at` 0, 1, ...: the rows of its reads, then those of its writes. False: there are no more. */
static inline bool device_work_place(const struct device_work *work, uint32_t at, struct device_span *out,
                                     bool *out_read) {
    uint32_t more = work->rows ? work->rows - 1 : 0, reads = work->reads ? work->reads + more : 0;
    *out_read = at < reads;
    if (!*out_read) at -= reads;
    if (!*out_read && (!work->writes || at >= work->writes + more)) return false;
    *out = (*out_read ? work->read : work->write)[at > more ? at - more : 0];
    if (at <= more) out->data = (char *)out->data + at * (*out_read ? work->read_step : work->write_step);
    return true;
}

/* Adds memory that the work reads or writes; none if `data` is NULL. */
static inline void device_work_reads(struct device_work *work, const void *data, uint64_t bytes) {
    if (data) work->read[work->reads++] = (struct device_span){(void *)data, bytes};
}

static inline void device_work_writes(struct device_work *work, void *data, uint64_t bytes) {
    if (data) work->write[work->writes++] = (struct device_span){data, bytes};
}

struct device;

/* Completes work at virtual times instead of at random polls. */
struct device_pace {
    void *user;
    const uint64_t *now_ns;
    uint64_t (*done_at_ns)(void *user, const struct device_work *work); /* the end of work that starts now */
};

struct device_options {
    /* cuda */
    int64_t index;       /* the GPU's number; below 0: local_rank modulo the number of GPUs */
    uint32_t local_rank; /* on this rank's node */
    void *host_stream;   /* the host program's CUstream, borrowed; NULL: the device makes a stream */
    bool default_stream; /* it is the legacy default stream, whose handle may be 0 */
    bool *out_broken;    /* NULL, or set to true if a driver is here and does not start */
    /* sim */
    uint64_t seed;
    double probability;               /* the probability that a poll finds a piece of work done */
    const struct device_pace *pace;   /* decides when work is done, instead of `probability`; or NULL */
    bool without_data;                /* work does not run, and does not touch its memory */
    const struct device_guard *guard; /* of tests: the device is discrete, and this is its memory; or NULL */
};

/* Memory that a thread may touch only between enter and leave. */
struct device_guard {
    void *(*allocate)(uint64_t bytes); /* zeroed, whole pages; NULL when the system refuses */
    void (*release)(void *memory, uint64_t bytes);
    void (*enter)(void);
    void (*leave)(void);
};

struct device_ops {
    const char *name;
    zero_status (*open)(const struct device_options *options, struct device **out_device,
                        struct zero_error *error);
    /* Queued work may be lost. */
    void (*close)(struct device *device);
    /* Page-aligned, zeroed memory; NULL when the system refuses. */
    void *(*allocate)(struct device *device, uint64_t bytes, enum device_memory kind);
    void (*release)(struct device *device, void *memory, uint64_t bytes, enum device_memory kind);
    /* Bytes of device memory that are free, and all; NULL: the device has no memory of its own. */
    zero_status (*memory)(struct device *device, uint64_t *out_available, uint64_t *out_total,
                          struct zero_error *error);
    /* Address space in parts, of a device with page_bytes. A part keeps its address, and has memory while it is used: from fill to
     * empty, in whole pages. reserve: `space` bytes, of which the caller uses at most `bytes` at once; these count as allocated. NULL
     * when the system refuses. fill: NULL: memory comes at the first touch. empty: once all work on the part is done, and also once
     * for each part before it is used. The content of an emptied part is lost. */
    void *(*reserve)(struct device *device, uint64_t space, uint64_t bytes);
    void (*unreserve)(struct device *device, void *memory, uint64_t space, uint64_t bytes);
    zero_status (*fill)(struct device *device, void *part, uint64_t bytes, struct zero_error *error);
    void (*empty)(struct device *device, void *part, uint64_t bytes);
    /* Loads a kernel before its first work; NULL: the device need not load kernels. Without it, the first work would
     * load the kernel's code, and the driver may then wait until the GPU is idle. This wait never ends if the GPU waits
     * for a peer's part of a call while the peer's rank waits in the same way. */
    zero_status (*prepare)(struct device *device, const struct kernel *kernel, struct zero_error *error);
    /* Each of these functions queues work; *out_ticket is its number. The host and GPU devices allocate nothing
     * here. */
    zero_status (*submit)(struct device *device, const struct device_work *work, uint64_t *out_ticket,
                          struct zero_error *error);
    /* Copies between any two kinds of memory. A GPU also copies unpinned host memory, while the caller waits. */
    zero_status (*copy)(struct device *device, enum device_stream stream, void *target, const void *source,
                        uint64_t bytes, uint64_t *out_ticket, struct zero_error *error);
    zero_status (*clear)(struct device *device, enum device_stream stream, void *memory, uint64_t bytes,
                         uint64_t *out_ticket, struct zero_error *error);
    zero_status (*record)(struct device *device, enum device_stream stream, uint64_t *out_ticket,
                          struct zero_error *error);
    /* Work that is queued on the stream from now on begins after the ticket is done. The caller does not wait. */
    zero_status (*wait)(struct device *device, enum device_stream stream, uint64_t ticket,
                        struct zero_error *error);
    /* *out_done: the ticket is done. ZERO_E_INTERNAL: the work's memory was touched before its end (sim). */
    zero_status (*test)(struct device *device, uint64_t ticket, bool *out_done, struct zero_error *error);
};

struct device { /* the head of every implementation's own struct */
    const struct device_ops *ops;
    bool discrete;         /* the host must not touch DEVICE_MEMORY */
    bool runs_at_once;     /* a kernel that runs on the host is done when `submit` returns */
    uint32_t page_bytes;   /* of reserved address space; 0: a discrete device lacks it */
    bool pinned_by_driver; /* DEVICE_PINNED memory is the driver's own: io_uring must not register it */
    int node;              /* the host's memory node (NUMA) nearest to the device; below 0: unknown */
    int64_t index;         /* cuda: the GPU's number; else -1 */
    void *stream[DEVICE_STREAMS];    /* cuda: CUstream; else NULL */
    uint64_t newest[DEVICE_STREAMS]; /* by stream: the newest ticket; 0: none */
    /* By kind: bytes now held through `allocate` and `reserve`, whole pages: what the report measures. */
    uint64_t allocated[2];
    uint64_t touched_ns, registered_ns; /* DEVICE_PINNED: what that took, of all memory so far */
};

enum device_kind { DEVICE_HOST, DEVICE_SIM, DEVICE_CUDA, DEVICE_KINDS };

extern const struct device_ops *const device_table[DEVICE_KINDS];

/* *out_room: at most DEVICE_QUEUE_MAX tickets of the stream are not done. */
zero_status device_has_room(struct device *device, enum device_stream stream, bool *out_room,
                            struct zero_error *error);
