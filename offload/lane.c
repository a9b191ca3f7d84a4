#include "offload/lane.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/system/thread.h"

enum {
    TRIES_MAX = 100,        /* tries in a row that move no bytes: interrupted, refused for now, or 0 bytes */
    TRIES_BEFORE_SLEEP = 8, /* later tries sleep a millisecond first: a tenth of a second in all */
    RETRY_SLEEP_NS = 1000000,
};

struct slot { /* one transfer, until all its bytes are moved or it has failed */
    struct lane_work *work;
    struct io_transfer whole;
    uint32_t moved, tries;
};

struct lane {
    struct lane_options o;
    pthread_t thread;
    atomic_bool stopping;
    struct lane_work **inbox; /* a ring: the poster adds at the end, the owner takes from the front */
    uint32_t inbox_rows;
    atomic_uint inbox_end;
    uint32_t inbox_front; /* used by the owner: index of the request that is being cut */
    uint64_t block;       /* the next block of that request; valid while `cutting` */
    bool cutting;
    struct slot *slots; /* depth rows, indexed by a transfer's tag */
    uint32_t *free_slots;
    uint32_t free_count;
    struct io_done *done;
};

/* ---- striping ---- */

uint64_t lane_share(uint64_t bytes, uint32_t block_bytes, uint32_t index, uint32_t count) {
    uint64_t blocks = bytes / block_bytes, rest = bytes % block_bytes;
    uint64_t whole = blocks / count + (index < blocks % count);
    return whole * block_bytes + (blocks % count == index ? rest : 0);
}

/* The first block of this lane at or after the block of `offset`. */
static uint64_t first_block(const struct lane *lane, uint64_t offset) {
    uint64_t block = offset / lane->o.block_bytes;
    return block + (lane->o.index + lane->o.count - block % lane->o.count) % lane->o.count;
}

bool lane_holds(const struct lane *lane, uint64_t offset, uint64_t bytes) {
    return first_block(lane, offset) * lane->o.block_bytes < offset + bytes;
}

/* The part of a block that belongs to the work. False: the block is past the end of the work. */
static bool cut(const struct lane *lane, const struct lane_work *work, uint64_t block,
                struct io_transfer *out) {
    uint64_t size = lane->o.block_bytes, begin = block * size, end = begin + size,
             work_end = work->offset + work->bytes;
    if (begin < work->offset) begin = work->offset;
    if (end > work_end) end = work_end;
    if (begin >= end) return false;
    *out = (struct io_transfer){.write = work->write,
                                .bytes = (uint32_t)(end - begin),
                                .offset = block / lane->o.count * size + begin % size,
                                .memory = work->memory + (work->repeat ? 0 : begin - work->offset)};
    return true;
}

/* ---- the owner thread ---- */

static void release_pending(struct lane *lane, struct lane_work *work) {
    if (atomic_fetch_sub_explicit(&work->pending, 1, memory_order_acq_rel) == 1)
        lane->o.finished(lane->o.user);
}

/* The request at the front of the inbox; NULL: the inbox is empty. */
static struct lane_work *front(struct lane *lane) {
    if (lane->inbox_front == atomic_load_explicit(&lane->inbox_end, memory_order_acquire)) return NULL;
    struct lane_work *work = lane->inbox[lane->inbox_front % lane->inbox_rows];
    if (!lane->cutting) {
        lane->block = first_block(lane, work->offset);
        lane->cutting = true;
    }
    return work;
}

static void leave_front(struct lane *lane, struct lane_work *work) {
    lane->inbox_front++;
    lane->cutting = false;
    release_pending(lane, work);
}

/* Submits the rest of a slot's transfer. */
static void submit(struct lane *lane, uint32_t tag) {
    const struct slot *slot = &lane->slots[tag];
    struct io_transfer rest = slot->whole;
    rest.tag = tag;
    rest.offset += slot->moved;
    rest.memory += slot->moved;
    rest.bytes -= slot->moved;
    lane->o.io->ops->submit(lane->o.io, &rest);
}

static void submit_all(struct lane *lane) {
    struct lane_work *work;
    while (lane->free_count && (work = front(lane))) {
        struct io_transfer transfer;
        if (atomic_load_explicit(&work->failed, memory_order_relaxed) ||
            !cut(lane, work, lane->block, &transfer)) {
            leave_front(lane, work);
            continue;
        }
        lane->block += lane->o.count;
        uint32_t tag = lane->free_slots[--lane->free_count];
        lane->slots[tag] = (struct slot){.work = work, .whole = transfer};
        atomic_fetch_add_explicit(&work->pending, 1, memory_order_relaxed);
        submit(lane, tag);
    }
}

static void end_slot(struct lane *lane, uint32_t tag) {
    struct lane_work *work = lane->slots[tag].work;
    lane->slots[tag].work = NULL;
    lane->free_slots[lane->free_count++] = tag;
    release_pending(lane, work);
}

static void fail_slot(struct lane *lane, uint32_t tag, int number) {
    const struct slot *slot = &lane->slots[tag];
    struct lane_work *work = slot->work;
    if (!atomic_exchange_explicit(&work->failed, true, memory_order_relaxed)) {
        work->lane = lane;
        work->failed_offset = slot->whole.offset;
        work->failed_bytes = slot->whole.bytes;
        work->moved = slot->moved;
        work->number = number;
    }
    end_slot(lane, tag);
}

static void retry(struct lane *lane, uint32_t tag, int number) {
    struct slot *slot = &lane->slots[tag];
    if (++slot->tries > TRIES_MAX) {
        fail_slot(lane, tag, number);
        return;
    }
    if (slot->tries > TRIES_BEFORE_SLEEP) nanosleep(&(struct timespec){.tv_nsec = RETRY_SLEEP_NS}, NULL);
    submit(lane, tag);
}

static void handle_done(struct lane *lane, const struct io_done *done) {
    struct slot *slot = &lane->slots[done->tag];
    uint32_t left = slot->whole.bytes - slot->moved, alignment = lane->o.file->alignment;
    if (done->result == -EINTR || done->result == -EAGAIN || done->result == 0) {
        retry(lane, done->tag, -done->result);
    } else if (done->result < 0) {
        fail_slot(lane, done->tag, -done->result);
    } else if ((uint32_t)done->result >= left) {
        end_slot(lane, done->tag);
    } else {
        /* A short transfer. A direct transfer must continue from a multiple of the alignment. */
        uint32_t moved = (slot->moved + (uint32_t)done->result) / alignment * alignment;
        if (moved > slot->moved) slot->tries = 0;
        slot->moved = moved;
        retry(lane, done->tag, 0);
    }
}

static void *own(void *argument) {
    struct lane *lane = argument;
    struct io *io = lane->o.io;
    for (;;) {
        submit_all(lane);
        bool idle = lane->free_count == lane->o.depth;
        /* Read `stopping` first, then the inbox: everything that was posted before stopping is in the inbox by then. */
        if (idle && atomic_load(&lane->stopping) && !front(lane)) break;
        uint32_t count = io->ops->wait(io, lane->done, lane->o.depth);
        for (uint32_t i = 0; i < count; i++) handle_done(lane, &lane->done[i]);
    }
    return NULL;
}

/* ---- functions for the poster ---- */

static void lane_free(struct lane *lane) {
    lane->o.io->ops->close(lane->o.io);
    free(lane->done);
    free(lane->free_slots);
    free(lane->slots);
    free(lane->inbox);
    free(lane);
}

zero_status lane_open(const struct lane_options *options, struct lane **out_lane, struct zero_error *error) {
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        options->io->ops->close(options->io);
        return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for a queue");
    }
    lane->o = *options;
    lane->inbox_rows = 1; /* a power of two, because positions wrap around at 2^32 */
    while (lane->inbox_rows < options->requests_max + 1) lane->inbox_rows *= 2;
    lane->inbox = calloc(lane->inbox_rows, sizeof(struct lane_work *));
    lane->slots = calloc(options->depth, sizeof *lane->slots);
    lane->free_slots = calloc(options->depth, sizeof *lane->free_slots);
    lane->done = calloc(options->depth, sizeof *lane->done);
    if (!lane->inbox || !lane->slots || !lane->free_slots || !lane->done) {
        lane_free(lane);
        return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for a queue");
    }
    for (uint32_t i = 0; i < options->depth; i++)
        lane->free_slots[lane->free_count++] = options->depth - 1 - i;
    int refused = thread_start(&lane->thread, own, lane);
    if (refused) {
        lane_free(lane);
        return error_set(error, ZERO_E_MEMORY, "tier nvme: the system refuses a thread: %s",
                         strerror(refused));
    }
    *out_lane = lane;
    return ZERO_OK;
}

void lane_close(struct lane *lane) {
    atomic_store(&lane->stopping, true);
    lane->o.io->ops->wake(lane->o.io);
    pthread_join(lane->thread, NULL);
    lane_free(lane);
}

void lane_post(struct lane *lane, struct lane_work *work) {
    uint32_t end = atomic_load_explicit(&lane->inbox_end, memory_order_relaxed);
    lane->inbox[end % lane->inbox_rows] = work;
    atomic_store_explicit(&lane->inbox_end, end + 1, memory_order_release);
    lane->o.io->ops->wake(lane->o.io);
}

zero_status lane_failure(const struct lane_work *work, struct zero_error *error) {
    const struct swap_file *file = work->lane->o.file;
    struct swap_size free_bytes = swap_size(swap_free_bytes(file->handle)), needed = swap_size(file->bytes);
    bool full = work->number == ENOSPC || work->number == EDQUOT;
    return error_set(
        error, ZERO_E_IO,
        "tier nvme: %s of %" PRIu32 " bytes at offset %" PRIu64 " of %s got %" PRIu32 ": %s%s%s%s%s%s",
        work->write ? "write" : "read", work->failed_bytes, work->failed_offset, file->path, work->moved,
        work->number ? strerror(work->number) : "the drive transferred no more bytes", full ? "; needs " : "",
        full ? needed.chars : "", full ? ", " : "", full ? free_bytes.chars : "", full ? " free" : "");
}
