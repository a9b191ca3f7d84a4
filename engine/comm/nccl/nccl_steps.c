/* The steps of a call of transport nccl: NCCL calls and work of the device, all enqueued on the call's stream. */
#include <string.h>

#include "engine/comm/local/part.h"
#include "engine/comm/nccl/nccl.h"
#include "engine/comm/staged.h"
#include "kernels/ordered_sum.h"

static const ncclDataType_t types[DTYPES] = {[DTYPE_F32] = ncclFloat32,
                                             [DTYPE_BF16] = ncclBfloat16,
                                             [DTYPE_F16] = ncclFloat16,
                                             [DTYPE_U8] = ncclUint8};

/* Turns the result of an NCCL call or NCCL group into a status. */
static zero_status judge(struct comm_work *work, ncclResult_t result) {
    return nccl_good(result) ? ZERO_OK : nccl_failed(work, result);
}

static zero_status gather_shares(struct comm_work *work, const void *source, void *target, uint64_t count,
                                 enum dtype dtype) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    return judge(work, library_of(work)->ncclAllGather(source, target, count, types[dtype], group->data,
                                                       nccl_stream(work)));
}

static zero_status broadcast(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    const struct comm_call *call = &work->call;
    return judge(work,
                 library_of(work)->ncclBroadcast(call->target, call->target, call->count, types[call->dtype],
                                                 (int)call->root, group->data, nccl_stream(work)));
}

/* `from`, `to`: elements from one share to the next in source and target. */
static zero_status exchange_shares(struct comm_work *work, const char *source, uint64_t from, char *target,
                                   uint64_t to, uint64_t count) {
    const struct nccl_library *nccl = library_of(work);
    struct nccl_group *group = (struct nccl_group *)work->group;
    ncclDataType_t type = types[work->call.dtype];
    uint64_t bytes = dtype_bytes(work->call.dtype);
    ncclResult_t result = nccl->ncclGroupStart();
    for (uint32_t m = 0; m < group->base.count && nccl_good(result); m++) {
        result =
            nccl->ncclSend(source + m * from * bytes, count, type, (int)m, group->data, nccl_stream(work));
        if (nccl_good(result))
            result =
                nccl->ncclRecv(target + m * to * bytes, count, type, (int)m, group->data, nccl_stream(work));
    }
    ncclResult_t ended = nccl->ncclGroupEnd();
    return judge(work, nccl_good(result) ? ended : result);
}

static zero_status all_to_all(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return exchange_shares(work, call->source, call->count, call->target, call->count, call->count);
}

/* NCCL's own gather knows no stride. */
static zero_status gather(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return call->stride ? exchange_shares(work, call->source, 0, call->target, call->stride, call->count)
                        : gather_shares(work, call->source, call->target, call->count, call->dtype);
}

/* The shares to exchange: the source, or its padded copy with shares of equal size. */
static const char *shares(const struct comm_work *work) {
    return staged_layout(work->group, &work->call).padded ? work->call.staging : work->call.source;
}

static zero_status pad(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    struct device *device = work->group->comm->device;
    uint64_t bytes = shape_source_bytes(call, work->group->count),
             padded = staged_layout(work->group, call).padded, ticket;
    struct zero_error error;
    error_clear(&error);
    if (!padded) return ZERO_OK;
    zero_status status =
        device->ops->copy(device, stream_of(call), call->staging, call->source, bytes, &ticket, &error);
    if (!status)
        status = device->ops->clear(device, stream_of(call), (char *)call->staging + bytes, padded - bytes,
                                    &ticket, &error);
    return status ? comm_raise_error(work->group->comm, &error, false) : ZERO_OK;
}

static zero_status exchange(struct comm_work *work) {
    uint64_t share = shape_share(&work->call, work->group->count);
    uint64_t from = work->call.stride ? work->call.stride : share;
    return exchange_shares(work, shares(work), from, staged_received(work), share, share);
}

static zero_status reduce_native(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    uint64_t share = shape_share(&work->call, group->base.count);
    return judge(work, library_of(work)->ncclReduceScatter(shares(work), staged_received(work), share,
                                                           types[work->call.dtype], ncclSum, group->data,
                                                           nccl_stream(work)));
}

/* Sums `inputs` arrays of `count` elements, which lie one after another from `input` on. */
static zero_status add_up(struct comm_work *work, const void *input, uint32_t inputs, enum dtype dtype,
                          void *target, uint64_t count, bool add, bool norm) {
    const struct comm_call *call = &work->call;
    struct device *device = work->group->comm->device;
    uint64_t bytes = count * dtype_bytes(dtype), target_bytes = count * dtype_bytes(call->target_dtype),
             ticket;
    struct ordered_sum_argument sum = {.input = {input},
                                       .input_stride = bytes,
                                       .count = count,
                                       .target = target,
                                       .sums = norm ? call->norm.sums : NULL,
                                       .input_count = inputs,
                                       .dtype = dtype,
                                       .target_dtype = call->target_dtype,
                                       .add = add};
    struct device_work device_work = {
        .kernel = &kernel_ordered_sum,
        .stream = (uint8_t)stream_of(call),
        .reads = add ? 2 : 1,
        .writes = 1,
        .read = {{(void *)(uintptr_t)input, inputs * bytes}, {target, target_bytes}},
        .write = {{target, target_bytes}}};
    struct zero_error error;
    error_clear(&error);
    if (sum.sums) device_work.write[device_work.writes++] = part_norm_span(call);
    memcpy(device_work.argument, &sum, sizeof sum);
    zero_status status = device->ops->submit(device, &device_work, &ticket, &error);
    if (!status && sum.sums) status = part_norm(device, call, &ticket, &error);
    return status ? comm_raise_error(work->group->comm, &error, false) : ZERO_OK;
}

static zero_status sum_into(struct comm_work *work, void *target, bool add, bool norm) {
    const struct comm_call *call = &work->call;
    return add_up(work, staged_received(work), call->native ? 1 : work->group->count, call->dtype, target,
                  shape_share(call, work->group->count), add, norm);
}

static zero_status sum_target(struct comm_work *work) {
    return sum_into(work, work->call.target, work->call.add, true);
}

static char *own_sum(const struct comm_work *work) {
    uint64_t bytes = shape_share(&work->call, work->group->count) * dtype_bytes(work->call.target_dtype);
    return staged_sums(work) + work->group->index * bytes;
}

static zero_status sum_share(struct comm_work *work) { return sum_into(work, own_sum(work), false, false); }

static zero_status gather_sums(struct comm_work *work) {
    return gather_shares(work, own_sum(work), staged_sums(work), shape_share(&work->call, work->group->count),
                         work->call.target_dtype);
}

static zero_status finish_sums(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    char *sums = staged_sums(work);
    if (sums == call->target) return ZERO_OK;
    return add_up(work, sums, 1, call->target_dtype, call->target, call->count, call->add, false);
}

static zero_status start_barrier(struct comm_work *work) {
    struct comm_call barrier = {.kind = COMM_BARRIER, .tag = work->call.tag, .what = work->record.what};
    return comm_post(((struct nccl_group *)work->group)->companion, &barrier, &mine_of(work)->barrier);
}

static const step_fn nothing[] = {NULL};
static const step_fn steps[COMM_KINDS][2][STEPS_MAX + 1] = {
    /* ordered, native */
    [COMM_ALL_GATHER] = {{gather}, {gather}},
    [COMM_REDUCE_SCATTER] = {{exchange, sum_target}, {reduce_native, sum_target}},
    [COMM_ALL_REDUCE] = {{pad, exchange, sum_share, gather_sums, finish_sums},
                         {pad, reduce_native, sum_share, gather_sums, finish_sums}},
    [COMM_ALL_TO_ALL] = {{all_to_all}, {all_to_all}},
    [COMM_BROADCAST] = {{broadcast}, {broadcast}},
    [COMM_BARRIER] = {{start_barrier}, {start_barrier}},
};

/* ---- a group of one rank: its shares are its source ---- */

static zero_status copy_own(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    struct device *device = work->group->comm->device;
    uint64_t bytes = call->count * dtype_bytes(call->dtype), ticket;
    struct zero_error error;
    error_clear(&error);
    if (call->target == call->source) return ZERO_OK;
    return device->ops->copy(device, stream_of(call), call->target, call->source, bytes, &ticket, &error)
               ? comm_raise_error(work->group->comm, &error, false)
               : ZERO_OK;
}

/* The kernel copies, and replaces every NaN by the canonical NaN, as the sum of several ranks does. If the target is
 * the source, it writes only the NaNs. */
static zero_status sum_own(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return add_up(work, call->source, 1, call->dtype, call->target, call->count, call->add,
                  call->kind == COMM_REDUCE_SCATTER);
}

static const step_fn steps_alone[COMM_KINDS][2] = {
    [COMM_ALL_GATHER] = {copy_own}, [COMM_REDUCE_SCATTER] = {sum_own}, [COMM_ALL_REDUCE] = {sum_own},
    [COMM_ALL_TO_ALL] = {copy_own}, [COMM_BROADCAST] = {NULL},         [COMM_BARRIER] = {start_barrier},
};

const step_fn *nccl_steps(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    if (call->count == 0 && call->kind != COMM_BARRIER) return nothing;
    return nccl_alone(work->group) ? steps_alone[call->kind] : steps[call->kind][call->native];
}
