/* The second policy: an operation on state or parameters that live on a drive -> runs of operations on chunks.
 * It is between the stage's policy and the executor, and knows nothing of either. Pure, like the first: it
 * owns nothing, reads its own context alone, and so emits the same on every rank of a shard group.
 *
 * A rank's shard of a region is cut into chunks. Every step, all staged chunks (those with anything on the
 * drive) flow through a ring of staging slots, in the order of refresh:
 *
 *   FETCH s   needs slot s % slots: STORE s - slots has retired
 *   UPDATE s  needs FETCH s
 *   STORE s   needs UPDATE s
 *
 * where s = applied steps * chunks per step + the chunk's place in the step. So reads, updates and writes
 * overlap as deep as there are slots. Reads need no gradient: the first ring-full is read during backward.
 * A skipped step leaves the chunks that were fetched ahead where they are. */
#ifndef ZERO_OFFLOAD_EXPAND_H
#define ZERO_OFFLOAD_EXPAND_H

#include "engine/base/operation.h"

enum { PARAM_STAGINGS = 2 }; /* shards of parameters on their way from a drive to a gather take turns */

struct offload_region {
    uint32_t chunks;   /* of this rank's shard */
    uint32_t resident; /* the first so many have their state in memory */
    bool params;       /* the parameters' shard is on the drive */
    uint64_t base;     /* of a step's staged chunks, those of regions before this one; by offload_open */
};

struct offload {
    /* Set by the owner, constant. */
    uint32_t slots;
    struct offload_region *region;
    const uint16_t *refresh; /* the regions that have state, in the order of refresh */
    uint32_t refreshes;

    /* Set by offload_open. */
    uint64_t total; /* staged chunks per step */
    uint64_t lag;   /* slots, or total if that is less */

    /* The state. */
    uint64_t steps;         /* applied */
    uint64_t ahead;         /* of the next step's chunks, those that were fetched */
    uint64_t fetches;       /* chunks of state ever fetched: points of STREAM_FETCH */
    uint64_t updates;       /* points of STREAM_UPDATE */
    uint32_t param_staging; /* the next one to take */
};

void offload_open(struct offload *offload);

/* Chunks of a region that are staged: [first, chunks). */
uint32_t offload_staged_first(const struct offload_region *region);

/* The most operations that one operation becomes. */
uint32_t offload_operations_max(const struct offload *offload);

/* Appends what `op` becomes: most are themselves. */
void offload_expand(struct offload *offload, const struct operation *op, struct operation_list *out);

/* All updates of a step were expanded. */
void offload_applied(struct offload *offload);

/* State was written on the drive behind the pipeline, with nothing in flight: what was fetched ahead is old. */
void offload_drop(struct offload *offload);

#endif
