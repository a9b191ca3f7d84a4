/* The second policy. It turns an operation on state or parameters that are on a drive into operations on runs of
 * chunks. It stands between the stage's policy and the executor, and knows neither. It is pure, like the first
 * policy: it owns no memory and reads only its own context, so it emits the same operations on every rank of a shard
 * group.
 *
 * A rank's shard of a region is cut into chunks. Chunks that are not staged are updated in memory: in one operation, or in
 * two, where some of their state is in the device's memory and some in the host's.
 *
 * A chunk is staged if any part of it is on the drive. In every step,
 * all staged chunks go through a ring of staging slots, in the order of refresh:
 *
 *   FETCH s   needs slot s % slots: STORE s - slots has retired
 *   UPDATE s  needs FETCH s
 *   STORE s   needs UPDATE s
 *
 * where s = applied steps * chunks per step + the chunk's place in the step. So reads, updates and writes overlap, as far as there
 * are slots. Reads of state need no gradient: the backward already reads the first chunks, one per slot. After a skipped step, the
 * chunks that were fetched ahead stay in their slots. Updates that are repeated or taken back count as another step here: all
 * chunks go through the ring once more.
 *
 * Where an update has several legs (engine/base/update.h), the chunks of a region go through the ring once for each, with the arrays
 * that the leg needs. No chunk stays in its slot between two legs, so a matrix may have more chunks than there are slots. The legs that
 * lead come before all others, those of all regions; with updates in the backward the legs of a region follow each other. If a leg
 * reads what another one has changed, a chunk is fetched for it after it was stored in the other one.
 *
 * Parameters and gradients on the drive go through rings of their own, chunk by chunk, so that no buffer between the
 * drive and a whole region is as large as a shard. A ring's slots are used in turn:
 *
 *   FETCH s   needs slot s % slots: GATHER s - slots has retired
 *   GATHER s  needs FETCH s; gathers this part of each rank's shard
 *
 * If the shard may be read to its own place in the gathered region (`in_place`), the fetch reads it there. The fetch then needs the
 * region's memory, as the gather does, and no slot.
 *
 *   FETCH s            only if the reduction adds to the shard; like REDUCE without it, needs STORE s - slots
 *   REDUCE or CLEAR s  needs FETCH s; also sums over the replicate axis, if the mesh has one, before it leaves the slot
 *   STORE s            needs REDUCE s; the backward goes on meanwhile
 *
 * A sum over the replicate axis alone is a reduction that adds. The gradient comes back with its chunk of state. So the
 * chunks of such a region, and those after them, are not fetched in the backward.
 *
 * Where one use has all micro-batches of a step, reductions need no ring: they add up in memory for the time of the use,
 * and the STORE of all chunks follows the last one. If the host updates for a device, that memory is the device's, so that a gradient
 * crosses to the host once a step: the STORE takes it to the host's memory, or through the ring to the drive:
 *
 *   STORE s   needs STORE s - slots */
#pragma once

#include "engine/base/update.h"

struct offload_region {
    uint32_t chunks;   /* chunks of this rank's shard */
    uint32_t resident; /* number of chunks, from the first on, whose state is in memory */
    uint32_t device;   /* of these, the first whose state is in the device's memory, if other state is not */
    bool params;       /* the shard of parameters is on the drive */
    bool in_place;     /* with `params`: it is read to its place in the gathered region */
    bool grads;        /* the reduced gradient is on the drive */
    bool held; /* its sum is in BUFFER_GRAD_HELD until the last reduction of its use, and is then stored */
    enum optimizer_scope scope;
    enum weight_place place;
    bool weights; /* there are arrays of weights: averages, masters */
    /* The staged chunks of a step before those of this leg; set by offload_open. */
    uint64_t base[UPDATE_LEGS_MAX];
};

struct offload {
    /* Set by the owner, constant. */
    uint32_t slots;
    uint32_t param_slots, grad_slots; /* of the rings of parameters, and of gradients */
    uint64_t chunk_elements;
    bool by_chunk;   /* the host's updates in memory go chunk by chunk: their results pass through staging */
    bool hands_over; /* the host updates for a device, but for the first part of a shard */
    bool in_turn;    /* updates are in the backward: no leg leads */
    struct offload_region *region;
    const uint16_t *refresh; /* the regions that have state, in the order of refresh */
    uint32_t refreshes;

    /* Set by offload_open. */
    uint64_t total; /* staged chunks per step, of all legs */
    /* The distance in the ring: a chunk is fetched once the chunk this many places before it, or a later one, was stored. It is
     * the number of slots, or of all chunks if the same chunk comes again sooner. */
    uint64_t lag;

    /* The state. */
    uint64_t steps;                         /* how often all chunks went through the ring */
    uint64_t ahead;                         /* chunks of the next step that were fetched already */
    uint32_t turn;                          /* the turn that the next of them belongs to */
    uint64_t updated;                       /* chunks of this step whose update was expanded */
    uint64_t fetches;                       /* all chunks of state fetched so far: points of STREAM_FETCH */
    uint64_t updates;                       /* points of STREAM_UPDATE so far */
    uint64_t points[STREAMS];               /* of all streams, before the operation that is expanded */
    uint64_t param_sequence, grad_sequence; /* chunks that went through each ring so far */
};

void offload_open(struct offload *offload);

/* The first chunk of a region that a leg of the update stages; all later chunks are staged too. One function for a given leg, one for
 * any leg. */
uint32_t offload_leg_first(const struct offload_region *region, uint8_t leg);
uint32_t offload_staged_first(const struct offload_region *region);

/* The most operations that offload_expand appends for one operation. */
uint32_t offload_operations_max(const struct offload *offload);

/* Appends the operations that replace `op`. Most operations are appended unchanged. */
void offload_expand(struct offload *offload, const struct operation *op, struct operation_list *out);

/* The transfers that belong to a reduction or a clear of the region's gradient, if that is on the drive: a fetch of the shard
 * before it, a store after it. */
bool offload_stores_gradient(const struct offload_region *region, const struct operation *op);
bool offload_fetches_gradient(const struct offload_region *region, const struct operation *op);

/* Call it after all updates of a step were expanded, and before and after repeated updates. It does nothing if none was, or none
 * is staged. */
void offload_applied(struct offload *offload);

/* The host wrote state to the drive, outside the pipeline, with nothing in flight. The chunks that were fetched ahead
 * are out of date. */
void offload_drop(struct offload *offload);
