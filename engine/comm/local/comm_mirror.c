/* Transport mirror: one real rank in a world whose other ranks do not exist. It treats every other rank as a copy of
 * this rank: an all-gather returns this rank's share for every member. A planner uses it to plan for more ranks than
 * there are: agreements complete, groups have their planned sizes, and reductions need the staging of the mirrored
 * transport. It performs no reductions. Threads: the comm's owner. */
#include <string.h>

#include "engine/comm/transport.h"

struct mirror_comm {
    struct comm base;
    struct comm_failure failure;
    const struct comm_ops *mirrored;
};

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct mirror_comm *mirror = (struct mirror_comm *)comm;
    mirror->mirrored = options->mirrors;
    comm_failure_init(&mirror->failure);
    comm->failure = &mirror->failure;
    comm->levels = options->mirrors->levels;
    return ZERO_OK;
}

static void close_comm(struct comm *comm) { comm_failure_destroy(&((struct mirror_comm *)comm)->failure); }

static zero_status group_open(struct comm_group *group) { return ZERO_OK; }

static void group_close(struct comm_group *group) {}

static uint64_t staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    const struct comm_ops *ops = ((const struct mirror_comm *)group->comm)->mirrored;
    return ops->staging_bytes ? ops->staging_bytes(group, call) : 0;
}

static zero_status post(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    if (call->kind == COMM_ALL_GATHER || call->kind == COMM_BROADCAST || call->kind == COMM_BARRIER)
        return ZERO_OK;
    return comm_raise(work->group->comm, ZERO_E_UNSUPPORTED, (int32_t)work->group->comm->rank, false,
                      "comm mirror: ranks that exist only in a plan cannot add anything");
}

static zero_status test(struct comm_work *work, bool *out_done) {
    const struct comm_call *call = &work->call;
    uint64_t bytes = call->count * dtype_bytes(call->dtype),
             stride = (call->stride ? call->stride : call->count) * dtype_bytes(call->dtype);
    for (uint32_t m = 0; m < work->group->count && call->kind == COMM_ALL_GATHER; m++) {
        uint8_t *share = (uint8_t *)call->target + m * stride;
        if (share != call->source) memcpy(share, call->source, bytes);
    }
    *out_done = true;
    return ZERO_OK;
}

static void idle(struct comm *comm, uint64_t at_most_ns) {} /* no other rank can advance a call */

const struct comm_ops comm_mirror_ops = {
    .name = "mirror",
    .comm_bytes = sizeof(struct mirror_comm),
    .group_bytes = sizeof(struct comm_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staging_bytes,
    .post = post,
    .test = test,
    .idle = idle,
};
