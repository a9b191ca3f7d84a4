/* The only function that computes waits. An operation waits for the last write of every buffer that it reads, and for
 * the last write and all later reads of every buffer that it writes. An access to a buffer counts for all buffers that
 * overlap it in memory. An operation waits for at most one point per stream. Borrows its records and overlap lists.
 * Threads: one owner. */
#ifndef ZERO_ENGINE_BASE_HAZARD_H
#define ZERO_ENGINE_BASE_HAZARD_H

#include "engine/base/operation.h"

struct hazard_record {
    uint64_t write; /* the point of the last write, on the stream `writer` */
    uint32_t writer;
    uint64_t read[STREAMS]; /* the last read since that write, per stream */
};

struct hazard_overlaps { /* of buffer b: other[first[b]] .. other[first[b + 1]]; b itself is not listed */
    const uint32_t *first, *other; /* first NULL: nothing overlaps */
};

struct hazards {
    struct hazard_record *record; /* one per buffer, zeroed */
    struct hazard_overlaps overlaps;
    uint64_t issued[STREAMS]; /* items emitted, per stream */
};

/* Sets op->after and op->end, and records the operation. `read` and `write` are indices of buffers, op->reads
 * and op->writes of them. */
void hazard_emit(struct hazards *hazards, struct operation *op, const uint32_t *read, const uint32_t *write);

#endif
