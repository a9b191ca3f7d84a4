/* The issue of a call: its steps, one after another, as NCCL accepts them. */
#include "engine/comm/nccl/nccl.h"

zero_status nccl_taken(struct comm_work *work, bool *out_taken) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    ncclResult_t state = group->failed;
    *out_taken = nccl_alone(work->group);
    if (*out_taken) return ZERO_OK;
    if (state == ncclSuccess) {
        ncclResult_t asked = library_of(work)->ncclCommGetAsyncError(group->data, &state);
        if (asked != ncclSuccess) state = asked;
    }
    if (state == ncclInProgress) return ZERO_OK;
    *out_taken = state == ncclSuccess;
    return state == ncclSuccess ? ZERO_OK : nccl_failed(work, state);
}

static zero_status end_issue(struct comm_work *work) {
    struct nccl_work *mine = mine_of(work);
    struct device *device = work->group->comm->device;
    struct zero_error error;
    error_clear(&error);
    if (device->ops->record(device, stream_of(&work->call), &mine->ticket, &error))
        return comm_raise_error(work->group->comm, &error, false);
    mine->issued = true;
    if (mine->in_turn) comm_of(work->group)->issued++;
    return ZERO_OK;
}

/* Issues as many steps of one call as NCCL accepts. */
zero_status nccl_issue_call(struct comm_work *work) {
    struct nccl_work *mine = mine_of(work);
    bool takes = false;
    zero_status status = nccl_taken(work, &takes);
    while (status == ZERO_OK && takes && mine->steps[mine->step]) {
        status = mine->steps[mine->step++](work);
        if (status == ZERO_OK) status = nccl_taken(work, &takes);
    }
    return status == ZERO_OK && takes ? end_issue(work) : status;
}
