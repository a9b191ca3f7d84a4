/* A lane brings requests to one path. Its owner thread cuts requests into transfers of at most one block, keeps a
 * bounded number of transfers in flight, reads every result, and continues short transfers. Only the owner thread
 * touches the lane's io.
 *
 * The extent is striped: block b is block b / count of lane b % count. A request is posted to every lane that holds a
 * part of it. `pending` counts the lanes that have not yet cut all of their part, and the transfers in flight. The
 * thread that lowers `pending` to 0 calls `finished`.
 *
 * Threads: one thread at a time, the poster, calls lane_post. The poster owns the fields of a request again once
 * `pending` is 0. */
#pragma once

#include <stdatomic.h>

#include "engine/base/error.h"
#include "offload/io.h"
#include "offload/swap_file.h"

struct lane;

struct lane_work {
    bool write, repeat;     /* repeat: all transfers use the same memory, of one block */
    uint64_t offset, bytes; /* offset in the extent */
    uint8_t *memory;
    atomic_uint pending;
    /* the lanes cut no more of this request; the thread that sets it sets the fields below */
    atomic_bool failed;
    const struct lane *lane;
    uint64_t failed_offset; /* offset in the lane's file */
    uint32_t failed_bytes, moved;
    int number; /* errno; 0: the transfer moved nothing, even after retries */
};

struct lane_options {
    struct io *io;                /* the lane takes it over, and closes it if lane_open fails */
    const struct swap_file *file; /* borrowed */
    uint32_t index, count;        /* index of this lane; number of lanes */
    uint32_t block_bytes, depth, requests_max;
    void (*finished)(void *user); /* called on the owner thread */
    void *user;
};

zero_status lane_open(const struct lane_options *options, struct lane **out_lane, struct zero_error *error);
void lane_close(struct lane *lane); /* waits for everything in flight */

/* The bytes of an extent that are in lane `index` of `count`. */
uint64_t lane_share(uint64_t bytes, uint32_t block_bytes, uint32_t index, uint32_t count);

/* True if this lane holds a part of the range. */
bool lane_holds(const struct lane *lane, uint64_t offset, uint64_t bytes);

/* The caller has counted this lane in work->pending. At most requests_max works may be in flight. */
void lane_post(struct lane *lane, struct lane_work *work);

/* `tier nvme: write of 1048576 bytes at offset 0 of PATH got 4096: No space left on device; needs ..., ...
 * free` */
zero_status lane_failure(const struct lane_work *work, struct zero_error *error);
