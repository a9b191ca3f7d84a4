/* One member's part of a call, for transports that read the other members' sources as memory: self, local, sim. On a
 * device, these functions queue work; the work is done when part_done reports it. Without a device, the work is done on
 * return. */
#pragma once

#include "engine/base/limits.h"
#include "engine/comm/transport.h"
#include "engine/device/device.h"

/* The address of this member's contribution to `call`: its source, or the target for a broadcast. */
const void *part_source(const struct comm_call *call);

/* Completes this member's target from all members' sources. `pointers`: scratch for `members` pointers. */
zero_status part_complete(struct comm_work *work, uint32_t members, const void *const *sources,
                          const void **pointers);

/* Sums elements [first, first + count) of all sources into the target, from its element `into` on. */
zero_status part_sum(struct comm_work *work, uint32_t members, const void *const *sources, uint64_t first,
                     uint64_t count, uint64_t into, const void **pointers);

/* The memory that the sums of a call's norm take. */
static inline struct device_span part_norm_span(const struct comm_call *call) {
    uint64_t blocks = (call->count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
    return (struct device_span){call->norm.sums, blocks * sizeof *call->norm.sums};
}

/* Submits the total of a call's norm, behind the call's sum; without a norm, does nothing. */
zero_status part_norm(struct device *device, const struct comm_call *call, uint64_t *out_ticket,
                      struct zero_error *error);

/* Copies `bytes` from source to target. In an in-place call they are equal, and nothing is copied. */
zero_status part_copy(struct comm_work *work, void *target, const void *source, uint64_t bytes);

/* comm_streams: copies are on one stream, sums on another. */
uint8_t part_streams(const struct comm_call *call);

/* comm_work_queued, once the whole call has been started. */
bool part_queued(const struct comm_work *work, uint64_t *out_ticket);

/* *out_done: whether all work that the call has queued is done. */
zero_status part_done(struct comm_work *work, bool *out_done);
