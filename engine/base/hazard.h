/* The only function that computes waits. An operation waits for the last write of every buffer that it reads, and for
 * the last write and all later reads of every buffer that it writes. Where buffers take turns in the same memory, a buffer
 * is released before another one begins: the operations on the second also wait for that RELEASE. An operation waits for at
 * most one point per stream. Borrows its tables. Threads: one owner. */
#pragma once

#include "engine/base/operation.h"

struct hazard_record {
    uint64_t write; /* the point of the last write, on the stream `writer` */
    uint32_t writer;
    uint64_t read[STREAMS]; /* the last read since that write, per stream */
};

/* Memory in which buffers take turns is cut into parts; each of these buffers has whole parts. */
struct hazard_span {
    uint32_t first, end; /* equal: the buffer's memory is its own */
};

struct hazard_part {
    struct hazard_release {    /* per stream: the last RELEASE of a buffer that has this part, */
        uint64_t point, other; /* and the last of any other buffer; 0: none */
        uint32_t buffer;
    } release[STREAMS];
};

struct hazards {
    struct hazard_record *record;   /* one per buffer, zeroed */
    struct hazard_part *part;       /* one per part, zeroed */
    const struct hazard_span *span; /* one per buffer; NULL: no buffers take turns */
    uint64_t issued[STREAMS];       /* items emitted, per stream */
};

/* Sets op->after and op->end, and records the operation. `read` and `write` are indices of buffers, op->reads
 * and op->writes of them. */
void hazard_emit(struct hazards *hazards, struct operation *op, const uint32_t *read, const uint32_t *write);
