/* One member's part of a call, where the other members' sources can be read as memory: self, local, sim. On a device it is
 * work that is queued there, and done when part_done says so; elsewhere it is done on return. */
#ifndef ZERO_ENGINE_COMM_PART_H
#define ZERO_ENGINE_COMM_PART_H

#include "engine/comm/transport.h"

/* Where `call`'s contribution lies: its source, or a broadcast's target. */
const void *part_source(const struct comm_call *call);

/* Completes this member's target from all members' sources. `pointers`: scratch for `members` pointers.
 */
zero_status part_complete(struct comm_work *work, uint32_t members, const void *const *sources,
                          const void **pointers);

/* The sum of elements [first, first + count) of all sources into the target's element `into`. */
zero_status part_sum(struct comm_work *work, uint32_t members, const void *const *sources, uint64_t first,
                     uint64_t count, uint64_t into, const void **pointers);

/* In place, source and target are the same bytes. */
zero_status part_copy(struct comm_work *work, void *target, const void *source, uint64_t bytes);

/* Whether all that was begun for the call is done. */
zero_status part_done(struct comm_work *work, bool *out_done);

#endif
