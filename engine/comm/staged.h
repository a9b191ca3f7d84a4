/* Reductions as the transports that send messages do them: an exchange of shares, the sum of what came, and for an
 * all-reduce a gather of the sums. Where these lie in a call's staging, and the sums on the host.
 *
 * One after another, each on ALIGN_BYTES:
 *   padded    all-reduce of a count that does not divide: the source with shares of equal size
 *   received  the members' contributions to this rank's share; native: their sum
 *   sums      all-reduce that cannot gather in its target (add, or a count that does not divide): all shares' sums */
#ifndef ZERO_ENGINE_COMM_STAGED_H
#define ZERO_ENGINE_COMM_STAGED_H

#include "engine/comm/transport.h"

struct staged {
    uint64_t padded, received, sums; /* bytes */
};

struct staged staged_layout(const struct comm_group *group, const struct comm_call *call);
uint64_t staged_bytes(const struct comm_group *group, const struct comm_call *call);

char *staged_received(const struct comm_work *work);
char *staged_sums(const struct comm_work *work); /* the target, where they are gathered there */

/* What is to be exchanged: the source, or its padded copy, which this makes. */
const void *staged_source(const struct comm_work *work);

/* `count` elements of this rank's share, from what it received, into `target`. `inputs`: scratch, one per member. */
void staged_sum(const struct comm_work *work, const void **inputs, void *target, uint64_t count, bool add);

/* From the gathered sums to an all-reduce's target, where they were not gathered there. */
void staged_finish(const struct comm_work *work);

#endif
