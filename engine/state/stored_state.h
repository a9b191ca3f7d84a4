/* Access to the part of a region that this rank stores, by element range, wherever it is: in memory, on a discrete device, or in a chunk on
 * the drive. Between steps, with nothing in flight. */
#pragma once

#include "engine/base/integer.h"
#include "engine/base/placement.h"
#include "engine/blueprint/blueprint.h"
#include "engine/run/run.h"

/* A range of a region's elements: the part that one rank has of it. */
struct stored_range {
    uint64_t first, count; /* elements of the region */
    uint32_t index, parts;
};

static inline struct stored_range range_of_rank(const struct blueprint *b, uint32_t rank, uint32_t region,
                                                struct placement placement) {
    uint32_t parts = placement_parts(placement, b->policy.mesh);
    uint32_t index = placement_part(placement, b->policy.mesh, rank);
    uint64_t count = b->o.model->region[region].padded / parts;
    return (struct stored_range){index * count, count, index, parts};
}

/* A thread's access. The bounce buffer carries data to and from a discrete device. */
struct stored_view {
    struct running *run;
    const struct blueprint *blueprint;
    uint8_t *bounce; /* PIECE_BYTES; unused without a discrete device */
    uint8_t *piece;  /* PIECE_BYTES, for stored_restore and stored_exchange_averages */
};

/* The part of `kind` that this rank stores: elements of the region. */
struct stored_range stored_range(const struct blueprint *blueprint, uint32_t rank, uint32_t region,
                                 zero_kind kind);

/* The end, in elements of the shard, of the chunk that holds element `at`, or of the part in memory that holds it;
 * UINT64_MAX: all of the shard is in memory. */
uint64_t stored_chunk_end(const struct blueprint *blueprint, uint32_t region, uint64_t at);

/* The address of element `part->first` of the parameters, in the buffer where they rest, never in the gathered buffer, which a
 * save in the background must not read. NULL: on a drive. */
void *stored_params(const struct stored_view *view, uint32_t region, const struct stored_range *part);

/* Elements [first, first + count) of the region, within stored_range. Masters, states and the reduced sum of the gradient are
 * fp32 here, in whatever format they are kept. */
zero_status stored_read(const struct stored_view *view, uint32_t region, zero_kind kind, uint64_t first,
                        uint64_t count, float *out, struct zero_error *error);
/* All ranks call it; a rank that stores nothing of the range gives a count of 0. */
zero_status stored_write(const struct stored_view *view, uint32_t region, zero_kind kind, uint64_t first,
                         uint64_t count, const float *in, struct zero_error *error);

/* All optimizer state of this rank becomes zero, and so do parameters on a drive. */
zero_status stored_clear(const struct stored_view *view, struct zero_error *error);

/* With a shadow, after executor_resume: the parameters of this rank's shard become the masters on the drive again. */
zero_status stored_restore(const struct stored_view *view, struct zero_error *error);

/* The averaged weights become the parameters of this rank's shard, and the replaced values take the place of the averages; with
 * `averages` false, back, to the last bit. Parameters of bf16 are the averages rounded to nearest; one that is halfway rounds to
 * the larger magnitude, in every format of the masters. Between the two nothing else reads or writes state. */
zero_status stored_exchange_averages(const struct stored_view *view, bool averages, struct zero_error *error);

/* Put these two around calls that go from chunk to chunk: several chunks then move at the same time (executor_sweep).
 * Only for the host's view, with nothing in flight. The end returns `status`, if it is a failure. */
void stored_sweep(const struct stored_view *view, const uint16_t *order, uint32_t regions, uint8_t parts);
zero_status stored_end_sweep(const struct stored_view *view, zero_status status, struct zero_error *error);
