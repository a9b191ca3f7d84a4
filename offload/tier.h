/* Where optimizer state can live: one table, one file per tier. A tier is an extent of bytes of fixed size.
 *
 * Requests read or write a range of the extent; they complete later, in any order, and are polled. Memory
 * tiers can also be addressed directly, and then need no requests. Buffers of a posted request are borrowed
 * until it is done. Requests in flight together must not overlap, unless all of them read. Threads: one at a
 * time per tier (the executor's lock). Nothing is allocated after open. */
#ifndef ZERO_OFFLOAD_TIER_H
#define ZERO_OFFLOAD_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/device/device.h"

enum { TIER_PATHS_MAX = 16, TIER_REQUESTS_DEFAULT = 64 };

/* Of the nvme tier. */
struct tier_nvme_options {
    const char *const *paths; /* directories, made (0700) where missing; the extent is striped over them */
    uint32_t path_count;
    uint32_t block_bytes;              /* the largest transfer and the stripe, a multiple of 4096; 0: 1 MiB */
    uint32_t queue_depth;              /* transfers in flight per path; 0: 16 */
    const struct device_span *buffers; /* where requests' memory lies, pinned at open if the system allows */
    uint32_t buffer_count;
    const char
        *keep; /* NULL: nameless files, gone with the process; else their name in each path: they stay, and
                         one that is there is taken as it is. Only one tier at a time has it open */
    bool discard;     /* of `keep`: a file of another size is made anew; else it is refused */
    bool no_uring;    /* the thread pool, as where the system refuses io_uring */
    bool named_files; /* create and unlink, as where the filesystem has no O_TMPFILE */
};

struct faults;

struct tier_options {
    uint64_t bytes;        /* the extent's size; 0: nothing is allocated, created or started */
    struct device *device; /* whose memory it is, or near which */
    uint32_t requests_max; /* posted and not yet done; 0: TIER_REQUESTS_DEFAULT */
    const struct log *log; /* NULL: nothing is said */
    struct faults *faults; /* tests: NULL: none; see offload/faults.h */
    struct tier_nvme_options nvme;
};

struct tier_request {
    bool write;
    uint64_t offset, bytes; /* within the extent */
    void *memory;           /* all three are multiples of the tier's alignment */
};

struct tier;
struct tier_work;

struct tier_ops {
    const char *name;
    /* Zeroed. ZERO_E_MEMORY or ZERO_E_IO with a sentence in `error`. Call tier_open instead. */
    zero_status (*open)(const struct tier_options *options, struct tier **out_tier, struct zero_error *error);
    /* Waits for what is in flight. */
    void (*close)(struct tier *tier);
    /* The extent's address; NULL where there is none (a drive). */
    void *(*address)(struct tier *tier);
    /* Starts a request; *out_work is NULL if it completed at once. ZERO_E_ARGUMENT past the extent or against
     * the alignment; ZERO_E_ORDER with requests_max in flight. */
    zero_status (*post)(struct tier *tier, const struct tier_request *request, struct tier_work **out_work,
                        struct zero_error *error);
    /* Cheap. With *out_done, `work` is gone and the status is the request's own: a failure is told once, and
     * says nothing about other requests. */
    zero_status (*test)(struct tier *tier, struct tier_work *work, bool *out_done, struct zero_error *error);
    /* Sleeps until some request is done that test has not told of, none is posted, or the time is over. */
    void (*wait)(struct tier *tier, uint64_t timeout_ns);
    /* What was written before survives a loss of power. Blocks. */
    zero_status (*sync)(struct tier *tier, struct zero_error *error);
    /* For messages: "PATH at offset 4096". */
    void (*where)(const struct tier *tier, uint64_t offset, char *out, uint32_t capacity);
};

struct tier { /* the head of every implementation's own struct */
    const struct tier_ops *ops;
    uint64_t bytes;
    uint64_t allocated; /* what the extent takes where it lives, as its allocator counted it */
    uint32_t alignment; /* of a request's offset, bytes and memory */
    bool found;         /* all of the extent was there, in files that were kept */
    uint64_t read_bytes, written_bytes; /* of requests that were done and did not fail */
};

enum tier_kind { TIER_DEVICE, TIER_CPU, TIER_NVME, TIERS };

extern const struct tier_ops *const tier_table[TIERS];

/* Opens the row's tier, behind the faulty decorator where faults are asked for. */
zero_status tier_open(enum tier_kind kind, const struct tier_options *options, struct tier **out_tier,
                      struct zero_error *error);

/* For implementations: ZERO_E_ARGUMENT for a request past the extent or against the alignment. */
zero_status tier_check(const struct tier *tier, const struct tier_request *request, struct zero_error *error);

#endif
