/* Seeded faults for tests, one struct for both decorators: transfers that fail or fall short (io_faulty,
 * below the retries) and requests whose bytes go wrong (faulty, above them). Threads: any; counts are atomic.
 * The order of classes drawn is a function of the seed and of how many draws each stream has made. */
#ifndef ZERO_OFFLOAD_FAULTS_H
#define ZERO_OFFLOAD_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAULT_LIST(X)                                                                                        \
    /* of a transfer, in nvme: */                                                                            \
    X(FAULT_EIO, "EIO")                                                                                      \
    X(FAULT_ENOSPC, "ENOSPC") /* of writes */                                                                \
    X(FAULT_EINTR, "EINTR")                                                                                  \
    X(FAULT_EAGAIN, "EAGAIN")                                                                                \
    X(FAULT_SHORT, "short transfer")                                                                         \
    X(FAULT_ONE_BYTE, "1-byte transfer")                                                                     \
    X(FAULT_TRANSFER_REORDERED, "transfer reordered")                                                        \
    X(FAULT_TRANSFER_DELAYED, "transfer delayed")                                                            \
    /* of a request, in every tier: */                                                                       \
    X(FAULT_DELAYED, "request delayed")     /* started some tests later */                                   \
    X(FAULT_REORDERED, "request reordered") /* told of after a later one */                                  \
    X(FAULT_FLIPPED, "flipped bit")         /* of reads */                                                   \
    X(FAULT_MISPLACED, "misplaced block")   /* of writes: somewhere else in the extent */                    \
    X(FAULT_STALE, "stale block")           /* of writes: the end, or all, is not written */

enum fault {
#define FAULT_ENUM(name, text) name,
    FAULT_LIST(FAULT_ENUM)
#undef FAULT_ENUM
        FAULTS
};

struct faults { /* of the caller, for one tier; outlives it */
    uint64_t seed;
    _Atomic double probability[FAULTS]; /* 0: never; may change at any time */
    atomic_uint_least64_t fired[FAULTS];
    atomic_bool
        armed; /* false while tier_open runs, true after it; may be cleared and set between requests */
};

extern const char *const fault_names[FAULTS];

/* One stream of draws, of one thread. */
struct fault_stream {
    struct faults *faults;
    uint64_t state;
};

struct fault_stream fault_stream_make(struct faults *faults, uint64_t index);
bool fault_fires(struct fault_stream *stream, enum fault fault); /* counts */
uint64_t fault_below(struct fault_stream *stream, uint64_t end); /* uniform; 0 for an end of 0 */
void fault_undo(struct fault_stream *stream, enum fault fault);  /* it could not be applied */

#endif
