#include "engine/comm/staged.h"

#include <string.h>

#include "engine/base/integer.h"
#include "engine/base/limits.h"
#include "engine/comm/ordered.h"
#include "engine/comm/shape.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

struct staged staged_layout(const struct comm_group *group, const struct comm_call *call) {
    struct staged staged = {0};
    if (call->kind == COMM_ALL_GATHER && call->stride && group->comm->levels)
        staged.received = aligned(group->count * shape_share_bytes(call, group->count));
    if (!shape_reduces(call)) return staged;
    uint64_t share = shape_share(call, group->count), bytes = shape_share_bytes(call, group->count),
             partial = !call->native && group_levels(group) ? group->nodes * share * sizeof(float) : 0;
    bool whole = call->kind == COMM_ALL_REDUCE, uneven = whole && call->count % group->count;
    if (uneven) staged.padded = aligned(group->count * bytes);
    staged.received = aligned(call->native ? bytes : max64(group->count * bytes, partial));
    staged.partial = aligned(partial);
    if (whole && (uneven || call->add))
        staged.sums = aligned(group->count * share * dtype_bytes(call->target_dtype));
    return staged;
}

uint64_t staged_bytes(const struct comm_group *group, const struct comm_call *call) {
    struct staged staged = staged_layout(group, call);
    return staged.padded + staged.received + staged.partial + staged.sums;
}

uint64_t staged_between(const struct comm_group *group, const struct comm_call *call) {
    return group->count > 1 ? staged_bytes(group, call) : 0;
}

char *staged_received(const struct comm_work *work) {
    return (char *)work->call.staging + staged_layout(work->group, &work->call).padded;
}

char *staged_partial(const struct comm_work *work) {
    return staged_received(work) + staged_layout(work->group, &work->call).received;
}

char *staged_sums(const struct comm_work *work) {
    struct staged staged = staged_layout(work->group, &work->call);
    return staged.sums ? staged_partial(work) + staged.partial : work->call.target;
}

const void *staged_source(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    uint64_t bytes = shape_source_bytes(call, work->group->count),
             padded = staged_layout(work->group, call).padded;
    if (!padded) return call->source;
    memcpy(call->staging, call->source, bytes);
    memset((char *)call->staging + bytes, 0, padded - bytes);
    return call->staging;
}

void staged_sum(const struct comm_work *work, const void **inputs, void *target, uint64_t count, bool add) {
    const struct comm_call *call = &work->call;
    uint32_t input_count = call->native ? 1 : work->group->count;
    uint64_t bytes = shape_share(call, work->group->count) * dtype_bytes(call->dtype);
    for (uint32_t m = 0; m < input_count; m++) inputs[m] = staged_received(work) + m * bytes;
    ordered_sum(&(struct ordered){
        .inputs = inputs,
        .input_count = input_count,
        .node_inputs = call->native ? 0 : work->group->count / work->group->nodes,
        .dtype = call->dtype,
        .target_dtype = call->target_dtype,
        .target = target,
        .count = count,
        .add = add,
        .written = call->written,
        .written_user = call->written_user,
    });
}

void staged_finish(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    const void *sums = staged_sums(work);
    if (sums == call->target || call->count == 0) return;
    ordered_sum(&(struct ordered){
        .inputs = &sums,
        .input_count = 1,
        .dtype = call->target_dtype,
        .target_dtype = call->target_dtype,
        .target = call->target,
        .count = call->count,
        .add = call->add,
    });
}
