/* A tier stores bytes: optimizer state and parameters. One table, and one file per kind of tier. A tier is an extent
 * of fixed size.
 *
 * A request reads or writes a range of the extent. Requests complete later and in any order; the caller polls them. A
 * tier in memory also has an address and then needs no requests. The tier borrows the buffer of a request until the
 * request is done. Requests that are in flight together must not overlap, unless all of them read.
 *
 * Threads: one at a time per tier (the executor's lock). Nothing is allocated after open. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/device/device.h"
#include "offload/tier_kind.h"

enum { TIER_PATHS_MAX = 16, TIER_REQUESTS_DEFAULT = 64 };

/* Options of the nvme tier. */
struct tier_nvme_options {
    const char *const *paths; /* directories, made (0700) if missing; the extent is striped over them */
    uint32_t path_count;
    uint32_t block_bytes;              /* the largest transfer and the stripe, a multiple of 4096; 0: 1 MiB */
    uint32_t queue_depth;              /* transfers in flight per path; 0: 16 */
    const struct device_span *buffers; /* the memory of requests; pinned at open if the system allows it */
    uint32_t buffer_count;
    /* NULL: the files are nameless and end with the process. Else the name of the file in each path: the files stay,
     * and a file that exists is used with its content. Only one tier at a time may have it open. */
    const char *keep;
    uint64_t kept_step; /* the step that the file keeps, for the message that refuses it; 0: unknown */
    /* for `keep`: replaces files of another size, and files that some paths lack; false: refuses them */
    bool discard;
    bool no_uring;    /* use the thread pool, as if the system refused io_uring */
    bool named_files; /* create and unlink files, as if the filesystem had no O_TMPFILE */
};

struct tier_hook;

struct tier_options {
    uint64_t bytes; /* size of the extent; 0: nothing is allocated, created or started */
    /* The device's memory only: address space in parts (struct device_ops), and the most bytes that are in use at once. */
    uint64_t space_bytes, space_used_bytes;
    struct device *device;  /* the device that owns the memory, or near which the memory is */
    uint32_t requests_max;  /* the most requests that are posted and not done; 0: TIER_REQUESTS_DEFAULT */
    const struct log *log;  /* NULL: no log */
    struct tier_hook *hook; /* of tests, see offload/io.h; or NULL */
    struct tier_nvme_options nvme;
};

struct tier_request {
    bool write;
    uint64_t offset, bytes; /* offset in the extent */
    void *memory;           /* offset, bytes and memory are multiples of the tier's alignment */
};

struct tier;
struct tier_work;

struct tier_ops {
    const char *name;    /* in messages and reports */
    const char *choice;  /* in the configuration: offload_optimizer.device, offload_param.device */
    enum tier_kind kind; /* TIER_NVME: it has no address, and needs nvme_path */
    /* The extent is zero after open, unless `found`. ZERO_E_MEMORY or ZERO_E_IO, with a message in `error`. Call
     * tier_open instead. */
    zero_status (*open)(const struct tier_options *options, struct tier **out_tier, struct zero_error *error);
    /* Waits for the requests in flight. */
    void (*close)(struct tier *tier);
    /* The address of the extent; NULL: it has none (a drive). */
    void *(*address)(struct tier *tier);
    /* Starts a request. *out_work is NULL if the request completed at once. ZERO_E_ARGUMENT: the request is past the
     * extent or not aligned. ZERO_E_ORDER: requests_max requests are in flight. */
    zero_status (*post)(struct tier *tier, const struct tier_request *request, struct tier_work **out_work,
                        struct zero_error *error);
    /* Cheap. If *out_done is true, `work` no longer exists, and the status is the request's own. A failure is
     * reported once, and says nothing about other requests. */
    zero_status (*test)(struct tier *tier, struct tier_work *work, bool *out_done, struct zero_error *error);
    /* Sleeps until a request is done that test has not reported, until no request is posted, or until the timeout. */
    void (*wait)(struct tier *tier, uint64_t timeout_ns);
    /* Makes all earlier writes survive a loss of power. Blocks. */
    zero_status (*sync)(struct tier *tier, struct zero_error *error);
    /* Writes the place of an offset for messages: "PATH at offset 4096". */
    void (*where)(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity);
};

struct tier { /* the head of every implementation's own struct */
    const struct tier_ops *ops;
    uint64_t bytes;
    uint64_t allocated; /* bytes that extent and space take, as their allocator counted them */
    void *space;        /* NULL: none was asked for */
    uint64_t space_bytes;
    uint32_t alignment;                 /* alignment of a request's offset, bytes and memory */
    bool found;                         /* the whole extent existed already, in kept files */
    uint64_t read_bytes, written_bytes; /* counts of requests that were done without failure */
};

extern const struct tier_ops tier_device, tier_cpu, tier_nvme;

/* First the usual tier of each kind, which also names the kind; then others. Ends with NULL. */
extern const struct tier_ops *const tier_table[];

/* Opens a tier, or has the hook open it. */
zero_status tier_open(const struct tier_ops *ops, const struct tier_options *options, struct tier **out_tier,
                      struct zero_error *error);

/* For implementations: ZERO_E_ARGUMENT if a request is past the extent or not aligned. */
zero_status tier_check(const struct tier *tier, const struct tier_request *request, struct zero_error *error);
