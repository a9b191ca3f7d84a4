/* NCCL's own failures: their text, and when a call ends with one. */
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/comm/nccl/nccl.h"
#include "engine/comm/watch.h"

const char *nccl_reason(const struct nccl_group *group, ncclResult_t result, char text[NCCL_REASON_BYTES]) {
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    snprintf(text, NCCL_REASON_BYTES, "%s (%.400s)", nccl->ncclGetErrorString(result),
             nccl->ncclGetLastError(group->data));
    return text;
}

/* If a rank died or diverged, NCCL finds a lost connection first. The control channel names the rank a little later. */
zero_status nccl_failed(struct comm_work *work, ncclResult_t result) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    char text[RECORD_TEXT_BYTES], why[NCCL_REASON_BYTES];
    if (group->failed == ncclSuccess) group->failed = result, group->failed_ns = clock_now_ns();
    if (clock_now_ns() - group->failed_ns < 2 * (uint64_t)WATCH_GRACE_NS) return ZERO_OK;
    return comm_raise(group->base.comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u: %s failed: %s: see the other ranks' logs, or set NCCL_DEBUG=WARN",
                      group->base.comm->rank, record_text(&work->record, group->base.ordinal, text),
                      nccl_reason(group, group->failed, why));
}
