/* Where compute happens: memory, and work that completes later. One table, one file per implementation.
 *
 * Memory is the device's own (DEVICE_MEMORY), which on a `discrete` device the host must not touch, or the host's
 * (DEVICE_PINNED), which both reach. What is to be done in it is work: a kernel with its argument and the memory that
 * it reads and writes, a copy, or a clear. The host performs it at once; a GPU enqueues it; the simulator performs it at
 * a random later time and checks that nobody touched its memory in between.
 *
 * Work is queued on streams, one per purpose: a stream's work is performed in the order of submission, that of different
 * streams in any order. A ticket is done when its work is, and so is all that was queued on the stream before it. Whoever
 * needs one stream's results on another first waits until the ticket is done. DEVICE_COMPUTE is the host program's
 * stream: it enqueues work there by itself, and `record` gives a ticket for what it has enqueued so far.
 *
 * Threads: one at a time per device (the executor's lock), any of them. A failure of a GPU is sticky. */
#ifndef ZERO_ENGINE_DEVICE_DEVICE_H
#define ZERO_ENGINE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/device/kernel.h"

enum { DEVICE_SPANS_MAX = 8, DEVICE_ARGUMENT_BYTES = 256 };

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
    const struct kernel *kernel; /* without a grid it is the host's, over memory that the host reaches */
    _Alignas(16) uint8_t argument[DEVICE_ARGUMENT_BYTES]; /* copied */
    uint8_t stream, reads, writes;
    struct device_span read[DEVICE_SPANS_MAX], write[DEVICE_SPANS_MAX]; /* may overlap only if equal */
};

struct device;

/* Virtual time, in the place of chance. */
struct device_pace {
    void *user;
    const uint64_t *now_ns;
    uint64_t (*done_at_ns)(void *user, const struct device_work *work); /* of work that starts now */
};

struct device_options {
    /* cuda */
    int64_t index;       /* which GPU; below 0: local_rank modulo their number */
    uint32_t local_rank; /* on this rank's node */
    void *host_stream;   /* the host program's CUstream, borrowed; NULL: the device makes one */
    /* sim */
    uint64_t seed;
    double probability;             /* that a poll finds a piece of work done */
    const struct device_pace *pace; /* decides when work is done, in the place of `probability`; or NULL */
    bool without_data;              /* work is never run, its memory never touched */
    bool discrete; /* the host crashes where it touches the device's memory outside of work */
};

struct device_ops {
    const char *name;
    zero_status (*open)(const struct device_options *options, struct device **out_device,
                        struct zero_error *error);
    /* What is queued may be lost. */
    void (*close)(struct device *device);
    /* Page-aligned, zeroed memory; NULL when the system refuses. */
    void *(*allocate)(struct device *device, uint64_t bytes, enum device_memory kind);
    void (*release)(struct device *device, void *memory, uint64_t bytes, enum device_memory kind);
    /* Ahead of the first work with it; NULL where nothing need be done. A GPU's code would else be loaded by that work, for
     * which the driver may wait until the GPU is idle: for ever, where a peer's part is awaited there whose rank does the
     * same. */
    zero_status (*prepare)(struct device *device, const struct kernel *kernel, struct zero_error *error);
    /* Each queues work; *out_ticket is its number. Nothing is allocated on the host and GPU. */
    zero_status (*submit)(struct device *device, const struct device_work *work, uint64_t *out_ticket,
                          struct zero_error *error);
    /* Between any two memories; also the host's own, which a GPU copies while the caller waits. */
    zero_status (*copy)(struct device *device, enum device_stream stream, void *target, const void *source,
                        uint64_t bytes, uint64_t *out_ticket, struct zero_error *error);
    zero_status (*clear)(struct device *device, enum device_stream stream, void *memory, uint64_t bytes,
                         uint64_t *out_ticket, struct zero_error *error);
    zero_status (*record)(struct device *device, enum device_stream stream, uint64_t *out_ticket,
                          struct zero_error *error);
    /* *out_done: the ticket is. ZERO_E_INTERNAL: its memory was touched meanwhile (sim). */
    zero_status (*test)(struct device *device, uint64_t ticket, bool *out_done, struct zero_error *error);
};

struct device { /* the head of every implementation's own struct */
    const struct device_ops *ops;
    bool discrete;                /* DEVICE_MEMORY is not the host's to touch */
    int64_t index;                /* cuda: which GPU; else -1 */
    void *stream[DEVICE_STREAMS]; /* cuda: CUstream; else NULL */
    uint64_t
        allocated[2]; /* by kind: bytes now held through `allocate`, whole pages: what the report measures */
};

enum device_kind { DEVICE_HOST, DEVICE_SIM, DEVICE_CUDA, DEVICE_KINDS };

extern const struct device_ops *const device_table[DEVICE_KINDS];

/* For set-up and for calls that wait anyway: until the ticket is done. */
zero_status device_finish(struct device *device, uint64_t ticket, struct zero_error *error);

#endif
