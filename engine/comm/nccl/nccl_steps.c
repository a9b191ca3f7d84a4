/* The steps of a call of transport nccl: NCCL calls and work of the device, all enqueued on the call's stream. */
#include <string.h>

#include "engine/comm/local/part.h"
#include "engine/comm/nccl/nccl.h"
#include "engine/comm/staged.h"
#include "kernels/device_work.h"
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

/* To each of `peers` members (`first`, first + step, ...) go `shares` shares of `count` elements, and as many come from each. Distances
 * are in elements, from the shares of one peer to those of the next, and between the shares of one peer. */
struct route {
    uint32_t first, step, peers, shares;
    enum dtype dtype;
    uint64_t count;
    const char *source;
    char *target;
    uint64_t from_peer, from_share, to_peer, to_share;
};

static zero_status exchange_along(struct comm_work *work, const struct route *r) {
    const struct nccl_library *nccl = library_of(work);
    ncclComm_t data = ((struct nccl_group *)work->group)->data;
    ncclDataType_t type = types[r->dtype];
    uint64_t bytes = dtype_bytes(r->dtype);
    ncclResult_t result = nccl->ncclGroupStart();
    for (uint32_t i = 0; i < r->peers * r->shares && nccl_good(result); i++) {
        uint64_t p = i / r->shares, share = i % r->shares;
        int peer = (int)(r->first + p * r->step);
        result = nccl->ncclSend(r->source + (p * r->from_peer + share * r->from_share) * bytes, r->count,
                                type, peer, data, nccl_stream(work));
        if (nccl_good(result))
            result = nccl->ncclRecv(r->target + (p * r->to_peer + share * r->to_share) * bytes, r->count,
                                    type, peer, data, nccl_stream(work));
    }
    ncclResult_t ended = nccl->ncclGroupEnd();
    return judge(work, nccl_good(result) ? ended : result);
}

/* `from`, `to`: elements from one share to the next in source and target. */
static zero_status exchange_shares(struct comm_work *work, const char *source, uint64_t from, char *target,
                                   uint64_t to, uint64_t count) {
    return exchange_along(work, &(struct route){.step = 1,
                                                .peers = work->group->count,
                                                .shares = 1,
                                                .dtype = work->call.dtype,
                                                .count = count,
                                                .source = source,
                                                .target = target,
                                                .from_peer = from,
                                                .to_peer = to});
}

static zero_status all_to_all(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return exchange_shares(work, call->source, call->count, call->target, call->count, call->count);
}

/* NCCL's own gather knows no stride. */
static zero_status gather(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    void *target = call->stride ? staged_received(work) : call->target;
    return gather_shares(work, call->source, target, call->count, call->dtype);
}

static zero_status submit(struct comm_work *work, struct device_work *device_work, const void *argument,
                          size_t bytes) {
    struct device *device = work->group->comm->device;
    struct zero_error error;
    uint64_t ticket;
    error_clear(&error);
    device_work->stream = (uint8_t)stream_of(&work->call);
    memcpy(device_work->argument, argument, bytes);
    return device->ops->submit(device, device_work, &ticket, &error)
               ? comm_raise_error(work->group->comm, &error, false)
               : ZERO_OK;
}

static zero_status spread(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    uint64_t each = dtype_bytes(call->dtype), bytes = call->count * each;
    if (!call->stride) return ZERO_OK;
    struct cast_scaled_argument copy = {.target = call->target,
                                        .source = staged_received(work),
                                        .count = call->count,
                                        .step = call->count,
                                        .target_step = call->stride,
                                        .target_dtype = call->dtype,
                                        .source_dtype = call->dtype,
                                        .rows = work->group->count};
    struct device_work device_work = {.kernel = &kernel_cast_scaled,
                                      .reads = 1,
                                      .writes = 1,
                                      .read = {{staged_received(work), bytes}},
                                      .write = {{call->target, bytes}},
                                      .rows = copy.rows,
                                      .read_step = bytes,
                                      .write_step = call->stride * each};
    return submit(work, &device_work, &copy, sizeof copy);
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

static uint64_t share_of(const struct comm_work *work) {
    return shape_share(&work->call, work->group->count);
}

/* Elements from one share to the next in the source. */
static uint64_t shares_step(const struct comm_work *work) {
    return work->call.stride ? work->call.stride : share_of(work);
}

static zero_status exchange(struct comm_work *work) {
    return exchange_shares(work, shares(work), shares_step(work), staged_received(work), share_of(work),
                           share_of(work));
}

/* Level 1: each member of the node gets the shares of the owners that have its index in their nodes. Elements come member by member,
 * codes share by share. */
static zero_status exchange_inside(struct comm_work *work) {
    const struct comm_group *group = work->group;
    uint32_t members = comm_group_node_members(group);
    bool coded = work->call.code;
    uint64_t share = coded ? shape_share_bytes(&work->call, group->count) : share_of(work),
             step = coded ? share : shares_step(work);
    return exchange_along(work, &(struct route){.first = group->index / members * members,
                                                .step = 1,
                                                .peers = members,
                                                .shares = group->nodes,
                                                .dtype = work->call.dtype,
                                                .count = share,
                                                .source = shares(work),
                                                .target = staged_received(work),
                                                .from_peer = step,
                                                .from_share = members * step,
                                                .to_peer = coded ? share : group->nodes * share,
                                                .to_share = coded ? members * share : share});
}

/* Level 2: the owners get the sums of all nodes. */
static zero_status exchange_between(struct comm_work *work) {
    const struct comm_group *group = work->group;
    uint32_t members = comm_group_node_members(group);
    return exchange_along(work, &(struct route){.first = group->index % members,
                                                .step = members,
                                                .peers = group->nodes,
                                                .shares = 1,
                                                .dtype = DTYPE_F32,
                                                .count = share_of(work),
                                                .source = staged_partial(work),
                                                .target = staged_received(work),
                                                .from_peer = share_of(work),
                                                .to_peer = share_of(work)});
}

static zero_status reduce_native(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    return judge(work, library_of(work)->ncclReduceScatter(shares(work), staged_received(work),
                                                           share_of(work), types[work->call.dtype], ncclSum,
                                                           group->data, nccl_stream(work)));
}

/* A sum of `inputs` arrays of `count` elements, which lie one after another from `input` on. */
struct sum {
    const void *input;
    uint32_t inputs;
    enum dtype dtype, target_dtype;
    void *target;
    uint64_t count;
    bool add, norm;
};

static zero_status add_up(struct comm_work *work, const struct sum *s) {
    const struct comm_call *call = &work->call;
    struct device *device = work->group->comm->device;
    uint64_t bytes = s->count * dtype_bytes(s->dtype), target_bytes = s->count * dtype_bytes(s->target_dtype),
             ticket;
    struct ordered_sum_argument sum = {.input = {s->input},
                                       .input_stride = bytes,
                                       .count = s->count,
                                       .target = s->target,
                                       .sums = s->norm ? call->norm.sums : NULL,
                                       .input_count = s->inputs,
                                       .dtype = s->dtype,
                                       .target_dtype = s->target_dtype,
                                       .add = s->add};
    struct device_work device_work = {
        .kernel = &kernel_ordered_sum,
        .stream = (uint8_t)stream_of(call),
        .reads = s->add ? 2 : 1,
        .writes = 1,
        .read = {{(void *)(uintptr_t)s->input, s->inputs * bytes}, {s->target, target_bytes}},
        .write = {{s->target, target_bytes}}};
    struct zero_error error;
    error_clear(&error);
    if (sum.sums) device_work.write[device_work.writes++] = part_norm_span(call);
    memcpy(device_work.argument, &sum, sizeof sum);
    zero_status status = device->ops->submit(device, &device_work, &ticket, &error);
    if (!status && sum.sums) status = part_norm(device, call, &ticket, &error);
    return status ? comm_raise_error(work->group->comm, &error, false) : ZERO_OK;
}

static zero_status sum_codes(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    const struct comm_group *group = work->group;
    uint32_t members = comm_group_node_members(group);
    uint64_t codes = members * shape_share_bytes(call, group->count), bytes = call->count * sizeof(float);
    for (uint32_t n = 0; n < group->nodes; n++) {
        struct dequantize_sum_argument sum = {.target = staged_partial(work) + n * bytes,
                                              .codes = staged_received(work) + n * codes,
                                              .count = call->count,
                                              .members = members,
                                              .dtype = DTYPE_F32,
                                              .format = call->code};
        struct device_work device_work = {.kernel = &kernel_dequantize_sum,
                                          .reads = 1,
                                          .writes = 1,
                                          .read = {{(void *)sum.codes, codes}},
                                          .write = {{sum.target, bytes}}};
        TRY(submit(work, &device_work, &sum, sizeof sum));
    }
    return ZERO_OK;
}

/* The node's sums: those of all shares that have come are made at once. */
static zero_status sum_inside(struct comm_work *work) {
    if (work->call.code) return sum_codes(work);
    return add_up(work, &(struct sum){.input = staged_received(work),
                                      .inputs = comm_group_node_members(work->group),
                                      .dtype = work->call.dtype,
                                      .target_dtype = DTYPE_F32,
                                      .target = staged_partial(work),
                                      .count = work->group->nodes * share_of(work)});
}

/* What has come last: every member's share, the nodes' sums of them, or NCCL's sum. */
static zero_status sum_into(struct comm_work *work, void *target, bool add, bool norm) {
    const struct comm_call *call = &work->call;
    bool levels = !call->native && group_levels(work->group);
    return add_up(work, &(struct sum){.input = staged_received(work),
                                      .inputs = call->native ? 1
                                                : levels     ? work->group->nodes
                                                             : work->group->count,
                                      .dtype = levels ? DTYPE_F32 : call->dtype,
                                      .target_dtype = call->target_dtype,
                                      .target = target,
                                      .count = share_of(work),
                                      .add = add,
                                      .norm = norm});
}

static zero_status sum_target(struct comm_work *work) {
    return sum_into(work, work->call.target, work->call.add, true);
}

static char *own_sum(const struct comm_work *work) {
    uint64_t bytes = share_of(work) * dtype_bytes(work->call.target_dtype);
    return staged_sums(work) + work->group->index * bytes;
}

static zero_status sum_share(struct comm_work *work) { return sum_into(work, own_sum(work), false, false); }

static zero_status gather_sums(struct comm_work *work) {
    return gather_shares(work, own_sum(work), staged_sums(work), share_of(work), work->call.target_dtype);
}

static zero_status finish_sums(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    char *sums = staged_sums(work);
    if (sums == call->target) return ZERO_OK;
    return add_up(work, &(struct sum){.input = sums,
                                      .inputs = 1,
                                      .dtype = call->target_dtype,
                                      .target_dtype = call->target_dtype,
                                      .target = call->target,
                                      .count = call->count,
                                      .add = call->add});
}

static zero_status start_barrier(struct comm_work *work) {
    struct comm_call barrier = {.kind = COMM_BARRIER, .tag = work->call.tag, .what = work->record.what};
    return comm_post(((struct nccl_group *)work->group)->companion, &barrier, &mine_of(work)->barrier);
}

enum { ORDERED, NATIVE, LEVELS, WAYS };

static const step_fn nothing[] = {NULL};
static const step_fn steps[COMM_KINDS][WAYS][STEPS_MAX + 1] = {
    [COMM_ALL_GATHER] = {{gather, spread}},
    [COMM_REDUCE_SCATTER] = {{exchange, sum_target},
                             {reduce_native, sum_target},
                             {exchange_inside, sum_inside, exchange_between, sum_target}},
    [COMM_ALL_REDUCE] = {{pad, exchange, sum_share, gather_sums, finish_sums},
                         {pad, reduce_native, sum_share, gather_sums, finish_sums},
                         {pad, exchange_inside, sum_inside, exchange_between, sum_share, gather_sums,
                          finish_sums}},
    [COMM_ALL_TO_ALL] = {{all_to_all}},
    [COMM_BROADCAST] = {{broadcast}},
    [COMM_BARRIER] = {{start_barrier}},
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
    return add_up(work, &(struct sum){.input = call->source,
                                      .inputs = 1,
                                      .dtype = call->dtype,
                                      .target_dtype = call->target_dtype,
                                      .target = call->target,
                                      .count = call->count,
                                      .add = call->add,
                                      .norm = call->kind == COMM_REDUCE_SCATTER});
}

static const step_fn steps_alone[COMM_KINDS][2] = {
    [COMM_ALL_GATHER] = {copy_own}, [COMM_REDUCE_SCATTER] = {sum_own}, [COMM_ALL_REDUCE] = {sum_own},
    [COMM_ALL_TO_ALL] = {copy_own}, [COMM_BROADCAST] = {NULL},         [COMM_BARRIER] = {start_barrier},
};

const step_fn *nccl_steps(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    if (call->count == 0 && call->kind != COMM_BARRIER) return nothing;
    int way = !shape_reduces(call)        ? ORDERED
              : call->native              ? NATIVE
              : group_levels(work->group) ? LEVELS
                                          : ORDERED;
    return nccl_alone(work->group) ? steps_alone[call->kind] : steps[call->kind][way];
}
