/* Operations over time, as Chrome trace events (Trace Event Format, Google 2016), which ui.perfetto.dev and chrome://tracing read.
 *
 * A process is a rank. A thread is a lane of a stream: slices of one thread do not overlap (except in the last lane, with
 * more than 64 operations in flight), because viewers drop a slice that overlaps another one in part, and a stream may have several
 * operations in flight. A flow leads from a unit's gather to its next compute, if that begins after the gather is done. Counters are
 * the memory of gathered units and their gradients, and bytes per second: sent to other ranks, read from the drive, written to it.
 * An operation's bytes count as evenly spread over its time.
 *
 * Threads: one at a time. */
#pragma once

#include <stdio.h>

#include "engine/executor/executor.h"

/* The thread of lane l of stream s is s * TRACE_LANES + l. */
enum { TRACE_LANES = 64 };

struct trace_event {
    uint64_t began_ns, done_ns; /* done_ns 0: in flight */
    int64_t memory; /* bytes that gathered buffers take when it begins; below 0: bytes that are released */
    uint64_t moved; /* bytes: a gather or a reduction sends them, a fetch reads them, a store writes them */
    uint32_t item;
    uint16_t region, position;
    uint8_t kind, object, stream, lane;
    bool backward;
};

struct trace_events {
    const struct plan *plan; /* borrowed, and the shape's parts, too */
    struct executor_shape shape;
    struct trace_event *event;      /* the owner's memory, of `capacity` events */
    uint32_t count, capacity, open; /* open: events without an end */
    uint64_t missed;                /* operations for which there was no room */
};

/* The pieces of executor_watch. `write`: as there. */
void trace_events_start(struct trace_events *events, const struct operation *op, uint32_t item,
                        const uint32_t *write, uint64_t now_ns);
void trace_events_done(struct trace_events *events, const struct operation *op, uint32_t item,
                       uint64_t now_ns);

/* A file is: open, the ranks one after another, close. `program`: for the file's reader. `write` sorts the events and gives them lanes;
 * times are written from `origin_ns` on. Without memory to sort ends, the file lacks the counters of bytes per second. */
void trace_events_open(const char *program, FILE *file);
void trace_events_write(struct trace_events *events, uint32_t rank, uint64_t origin_ns, FILE *file);
void trace_events_close(FILE *file);
