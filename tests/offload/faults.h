/* Seeded faults. One struct serves both decorators: faulty_io.c, below the retries, makes transfers fail or fall short;
 * faulty_tier.c, above the retries, corrupts the bytes of requests.
 *
 * Threads: any; counts are atomic. The order of the drawn faults is a function of the seed and of the number of draws
 * that each stream has made. */
#ifndef ZERO_TESTS_OFFLOAD_FAULTS_H
#define ZERO_TESTS_OFFLOAD_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "offload/io.h"

#define FAULT_LIST(X)                                                                                        \
    /* of a transfer, in nvme: */                                                                            \
    X(FAULT_EIO, "EIO")                                                                                      \
    X(FAULT_ENOSPC, "ENOSPC") /* of writes */                                                                \
    X(FAULT_EINTR, "EINTR")                                                                                  \
    X(FAULT_EAGAIN, "EAGAIN")                                                                                \
    X(FAULT_SHORT, "short transfer")                                                                         \
    X(FAULT_ONE_BYTE, "1-byte transfer")                                                                     \
    X(FAULT_TRANSFER_REORDERED, "transfer reordered")                                                        \
    X(FAULT_TRANSFER_DELAYED, "transfer delayed") /* by 0.1 ms on average, and again as long as it fires */  \
    /* of a request, in every tier: */                                                                       \
    X(FAULT_DELAYED, "request delayed")     /* started after some tests */                                   \
    X(FAULT_REORDERED, "request reordered") /* reported after a later request */                             \
    X(FAULT_FLIPPED, "flipped bit")         /* of reads */                                                   \
    X(FAULT_MISPLACED, "misplaced block")   /* of writes: at another place in the extent */                  \
    X(FAULT_STALE, "stale block")           /* of writes: the end, or all of it, is not written */           \
    X(FAULT_STUCK, "request stuck")         /* neither started nor reported, ever */

enum fault {
#define FAULT_ENUM(name, text) name,
    FAULT_LIST(FAULT_ENUM)
#undef FAULT_ENUM
        FAULTS
};

struct faults { /* owned by the caller, for one tier; outlives the tier */
    struct tier_hook hook;
    uint64_t seed;
    _Atomic double probability[FAULTS]; /* 0: never; may change at any time */
    atomic_uint_least64_t fired[FAULTS];
    /* False while tier_open runs, true after it. Tests may clear and set it between requests. */
    atomic_bool armed;
};

extern const char *const fault_names[FAULTS];

/* For tier_options.hook, io_options.hook and an engine: tiers and transfers that are opened with it have these faults. */
struct tier_hook *faults_hook(struct faults *faults);

/* The functions of the hook. */
zero_status faulty_tier_open(struct tier_hook *hook, const struct tier_ops *ops,
                             const struct tier_options *options, struct tier **out_tier,
                             struct zero_error *error);
zero_status faulty_io_open(struct tier_hook *hook, const struct io_options *options, bool no_uring,
                           struct io **out_io, struct zero_error *error);

/* A stream of draws. One thread uses it. */
struct fault_stream {
    struct faults *faults;
    uint64_t state;
};

struct fault_stream fault_stream_make(struct faults *faults, uint64_t index);
bool fault_fires(struct fault_stream *stream, enum fault fault); /* true: the fault happens, and is counted */
uint64_t fault_below(struct fault_stream *stream, uint64_t end); /* uniform in [0, end); 0 if end is 0 */
/* the fault could not be applied: uncounts it */
void fault_undo(struct fault_stream *stream, enum fault fault);

#endif
