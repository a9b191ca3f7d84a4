/* clang-format off */
/* Calls of the transports that send messages. A gather with a stride, of transport nccl: a gather without one, from whose target the
 * shares are copied. Reductions: an exchange of shares, the sum of the received shares, and for an
 * all-reduce a gather of the sums. This file lays out a call's staging and computes the sums on the host.
 *
 * The parts of the staging lie one after another, each aligned to ALIGN_BYTES:
 *
 *   padded     for an all-reduce whose count the members do not divide: the source, padded to shares of equal size
 *   received   the members' contributions to this rank's share; `native`: their sum; a gather: the members' shares. By levels: those of the node's members to the
 *              shares of the owners with this rank's index in their nodes, member by member; later the nodes' sums of its own share
 *   partial    by levels: the node's sums of these shares, in fp32
 *   sums       for an all-reduce that cannot gather in its target (`add`, or a count that the members do not divide):
 *              the sums of all shares */
/* clang-format on */
#pragma once

#include "engine/comm/transport.h"

struct staged {
    uint64_t padded, received, partial, sums; /* bytes */
};

struct staged staged_layout(const struct comm_group *group, const struct comm_call *call);
uint64_t staged_bytes(const struct comm_group *group, const struct comm_call *call);
/* The same, for a transport whose groups of one rank sum from the source to the target. */
uint64_t staged_between(const struct comm_group *group, const struct comm_call *call);

char *staged_received(const struct comm_work *work);
char *staged_partial(const struct comm_work *work);
char *staged_sums(const struct comm_work *work); /* the target, if the call gathers the sums there */

/* The shares to exchange: the source, or a padded copy of the source, which this function makes. */
const void *staged_source(const struct comm_work *work);

/* Sums `count` elements of the received contributions into `target`. `inputs`: scratch, one pointer per member. */
void staged_sum(const struct comm_work *work, const void **inputs, void *target, uint64_t count, bool add);

/* Moves an all-reduce's gathered sums to its target, if they were not gathered there. */
void staged_finish(const struct comm_work *work);
