/* The second policy. It turns an operation on state or parameters that are on a drive into operations on runs of
 * chunks. It stands between the stage's policy and the executor, and knows neither. It is pure, like the first
 * policy: it owns no memory and reads only its own context, so it emits the same operations on every rank of a shard
 * group.
 *
 * A rank's shard of a region is cut into chunks. A chunk is staged if any part of it is on the drive. In every step,
 * all staged chunks go through a ring of staging slots, in the order of refresh:
 *
 *   FETCH s   needs slot s % slots: STORE s - slots has retired
 *   UPDATE s  needs FETCH s
 *   STORE s   needs UPDATE s
 *
 * where s = applied steps * chunks per step + the chunk's place in the step. So reads, updates and writes overlap, as
 * far as there are slots. Reads of state need no gradient: the backward already reads the first chunks, one per slot.
 * After a skipped step, the chunks that were fetched ahead stay in their slots.
 *
 * A gradient on the drive is reduced into one of two staging buffers, and stored from there while the backward goes on:
 *
 *   FETCH            only if the reduction adds to the shard
 *   REDUCE or CLEAR  then the sum over the replicate axis, if the mesh has one (alone, it needs FETCH)
 *   STORE            the reduction after the next one uses the same buffer, and waits for it
 *
 * It comes back with its chunk. So the chunks of such a region, and those after them, are not fetched in the backward. */
#ifndef ZERO_OFFLOAD_EXPAND_H
#define ZERO_OFFLOAD_EXPAND_H

#include "engine/base/operation.h"

/* Buffers for shards of parameters between drive and gather, and for shards of gradients between reduction and drive; used in turn. */
enum { PARAM_STAGINGS = 2, GRAD_STAGINGS = 2 };

struct offload_region {
    uint32_t chunks;   /* chunks of this rank's shard */
    uint32_t resident; /* number of chunks, from the first on, whose state is in memory */
    bool params;       /* the shard of parameters is on the drive */
    bool grads;        /* the reduced gradient is on the drive */
    uint64_t base;     /* staged chunks of a step in the regions before this one; set by offload_open */
};

struct offload {
    /* Set by the owner, constant. */
    uint32_t slots;
    struct offload_region *region;
    const uint16_t *refresh; /* the regions that have state, in the order of refresh */
    uint32_t refreshes;

    /* Set by offload_open. */
    uint64_t total; /* staged chunks per step */
    uint64_t lag;   /* the smaller of slots and total */
    /* Chunks that a backward may fetch: they have a slot, and need no gradient from the drive. */
    uint64_t early;

    /* The state. */
    uint64_t steps;         /* steps applied */
    uint64_t ahead;         /* chunks of the next step that were fetched already */
    uint64_t fetches;       /* all chunks of state fetched so far: points of STREAM_FETCH */
    uint64_t updates;       /* points of STREAM_UPDATE so far */
    uint32_t param_staging; /* the next staging buffer to use */
    uint32_t grad_staging;  /* the last one that was used */
};

void offload_open(struct offload *offload);

/* The first staged chunk of a region; all later chunks are staged too. */
uint32_t offload_staged_first(const struct offload_region *region);

/* The most operations that offload_expand appends for one operation. */
uint32_t offload_operations_max(const struct offload *offload);

/* Appends the operations that replace `op`. Most operations are appended unchanged. */
void offload_expand(struct offload *offload, const struct operation *op, struct operation_list *out);

/* What a reduction or a clear of a gradient on the drive moves beside: it may fetch the whole shard first, or store it. */
bool offload_stores_gradient(const struct operation *op);
bool offload_fetches_gradient(const struct operation *op);

/* Call it when all updates of a step were expanded. */
void offload_applied(struct offload *offload);

/* The host wrote state to the drive, outside the pipeline, with nothing in flight. The chunks that were fetched ahead
 * are out of date. */
void offload_drop(struct offload *offload);

#endif
