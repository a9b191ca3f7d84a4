/* Intervals of time during which a buffer needs bytes. All intervals are placed in one arena; intervals that overlap
 * in time get distinct bytes. All intervals of one buffer have the same offset, so that its address never changes. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/operation.h"

struct interval {
    struct buffer_ref ref;
    uint64_t bytes, offset;
    uint32_t begin, end; /* ticks; the end is exclusive */
    uint32_t same;       /* the next interval of this buffer; after the last one comes the first */
    uint32_t latest_end; /* scratch of the layout: of the items of which this one is the middle */
    bool open, placed;
};

struct intervals {
    struct interval *item;   /* in the order of their begin */
    struct interval **order; /* scratch: in the order in which they are placed */
    uint32_t *latest;        /* [region][BUFFER_KINDS]: the interval that began last; UINT32_MAX: none */
    uint32_t count, align_bytes;
};

/* Room for `capacity` intervals. Offsets, and bytes of intervals, are multiples of `align_bytes`. */
zero_status intervals_open(struct intervals *intervals, uint32_t capacity, uint32_t regions,
                           uint32_t align_bytes, struct zero_error *error);
void intervals_close(struct intervals *intervals);

/* An interval of `ref` begins at `tick`. `known` is the index of its interval if this place in the program was seen
 * before, else UINT32_MAX. A place that is seen again keeps its first interval. Returns the index. */
uint32_t interval_begin(struct intervals *intervals, struct buffer_ref ref, uint32_t known, uint64_t bytes,
                        uint32_t tick);
/* The open interval of `ref`; UINT32_MAX: none is open. A buffer has at most one. */
uint32_t interval_open(const struct intervals *intervals, struct buffer_ref ref);
void interval_end(struct intervals *intervals, struct buffer_ref ref, uint32_t tick);

/* Sets every offset. Tries several orders of placement, each buffer at the lowest offset that fits, and
 * keeps the best. Returns the size of the arena in bytes. *out_more: by how much it is larger than with intervals that need
 * not agree on an offset. */
uint64_t intervals_lay_out(struct intervals *intervals, uint64_t *out_more);

/* What a buffer takes of the policy's room, and of the device's memory: in pages of the host. */
struct apart {
    uint64_t room, pages;
};
/* The most memory that buffers take which have room at once: those that waste most, and a part of the last one. Sorts them. */
uint64_t intervals_most_at_once(struct apart *apart, uint32_t count, uint64_t room);
