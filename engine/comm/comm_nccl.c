/* Transport nccl: ranks are processes (or threads) with a GPU each, buffers are the memory of comm->device.
 *
 * It stands beside a comm of another transport over the same ranks (comm_options.beside: mpi, tcp, local), whose failure
 * it shares: that one hears and tells who is alive, which calls each rank made, and what failed; it carries NCCL's
 * unique ids and the barriers. Each group is an NCCL communicator of its own, made without blocking, so that every wait
 * has a deadline and a failure elsewhere ends it.
 *
 * A call is a list of steps on one stream of the device: NCCL's, and the device's own work. All members issue them in the
 * same order: a step is issued when NCCL has taken the one before (without blocking it may still be at it), and
 * the next call's when this call's are. After the last one the stream is recorded, and the call is done when that is.
 * `ordered` reductions are an exchange of shares and the kernel ordered_sum; `native` ones NCCL's reduce-scatter.
 *
 *     QUEUED --issue--> step 0, 1, ... --record--> ISSUED --ticket--> DONE
 *
 * A stream performs one call after another, so that two ranks which issue calls of two groups on it in different orders
 * would wait for each other for ever. Calls therefore are issued on a stream in the order in which they were posted,
 * whatever their group, and the ranks that two groups have in common must post the calls of one stream in the same order:
 * reductions and all-to-alls are on DEVICE_REDUCE, all-gathers and broadcasts on DEVICE_GATHER.
 *
 * After a failure NCCL's kernels may wait for ever: closing the group aborts them.
 *
 * Threads: as the device, one at a time; any. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/comm/nccl_library.h"
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/watch.h"
#include "engine/device/device.h"
#include "kernels/ordered_sum.h"

struct nccl_comm {
    struct comm base;
    struct comm *beside;
    struct nccl_library library;
    /* Per stream of the device: calls posted, and calls whose steps are all issued. */
    uint64_t posted[DEVICE_STREAMS], issued[DEVICE_STREAMS];
    uint32_t idles; /* in a row without a completed call */
};

enum { STEPS_MAX = 5 };

typedef zero_status (*step_fn)(struct comm_work *work);

struct nccl_work {
    const step_fn *steps; /* ended by NULL */
    uint32_t step;        /* the next to be issued */
    bool issued;          /* all are, and the stream is recorded */
    uint64_t ticket;
    bool in_turn; /* its steps are on a stream, as the turn-th call of it */
    uint64_t turn;
    struct comm_work *barrier; /* of the companion */
};

struct nccl_group {
    struct comm_group base;
    struct comm_group *companion; /* the same ranks, of `beside` */
    struct control_group *ring;   /* NULL: `beside` has none */
    ncclComm_t data;
    uint64_t next; /* the call whose steps are issued now */
    ncclResult_t failed;
    uint64_t failed_ns; /* kept back while the control channel may know better */
    struct nccl_work works[COMM_CALLS_MAX];
};

static struct nccl_comm *comm_of(const struct comm_group *group) { return (struct nccl_comm *)group->comm; }

static struct nccl_work *mine_of(const struct comm_work *work) {
    return &((struct nccl_group *)work->group)->works[work_slot(work)];
}

static const struct nccl_library *library_of(const struct comm_work *work) {
    return &comm_of(work->group)->library;
}

static const ncclDataType_t types[DTYPES] = {[DTYPE_F32] = ncclFloat32,
                                             [DTYPE_BF16] = ncclBfloat16,
                                             [DTYPE_F16] = ncclFloat16,
                                             [DTYPE_U8] = ncclUint8};

static enum device_stream stream_of(const struct comm_call *call) {
    return shape_reduces(call) || call->kind == COMM_ALL_TO_ALL ? DEVICE_REDUCE : DEVICE_GATHER;
}

static cudaStream_t nccl_stream(const struct comm_work *work) {
    return (cudaStream_t)work->group->comm->device->stream[stream_of(&work->call)];
}

/* NCCL works on the GPU that is current in the calling thread: every function of the device makes its own so. */
static zero_status make_current(struct device *device, struct zero_error *error) {
    bool done;
    return device->ops->test(device, 0, &done, error);
}

static bool good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/* ---- failures ---- */

static const char *reason(const struct nccl_group *group, ncclResult_t result, char text[512]) {
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    snprintf(text, 512, "%s (%.400s)", nccl->ncclGetErrorString(result), nccl->ncclGetLastError(group->data));
    return text;
}

static zero_status raise_device(struct comm *comm, const struct zero_error *error) {
    return comm_raise_error(comm, error, false);
}

/* A rank that died or diverged is named by the control channel, if a little later than NCCL finds its connection lost. */
static zero_status hold_back(struct comm_work *work, ncclResult_t result) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    char text[RECORD_TEXT_BYTES], why[512];
    if (group->failed == ncclSuccess) group->failed = result, group->failed_ns = clock_now_ns();
    if (clock_now_ns() - group->failed_ns < 2 * (uint64_t)WATCH_GRACE_NS) return ZERO_OK;
    return comm_raise(group->base.comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u: %s failed: %s: see the other ranks' logs, or set NCCL_DEBUG=WARN",
                      group->base.comm->rank, record_text(&work->record, group->base.ordinal, text),
                      reason(group, group->failed, why));
}

/* Where the ring does not say who is missing: all posted the call, or nobody watches. */
static zero_status check_deadline(const struct comm_work *work) {
    struct comm *comm = work->group->comm;
    char text[RECORD_TEXT_BYTES];
    uint64_t now_ns = clock_now_ns(), grace_ns = (uint64_t)(comm->timeout_s * 2e9);
    if (!deadline_passed(comm->timeout_s, work->posted_ns + grace_ns, now_ns)) return ZERO_OK;
    return comm_raise(
        comm, ZERO_E_PEER, -1, false,
        "comm nccl: rank %u waited %.1f s for %s: a rank does not take its part, or NCCL's way between the "
        "GPUs is stuck: look at every rank's log, and set NCCL_DEBUG=INFO",
        comm->rank, (double)(now_ns - work->posted_ns) * 1e-9,
        record_text(&work->record, work->group->ordinal, text));
}

/* ---- steps ---- */

/* Of NCCL's calls, in a group or not, the first result that is not good. */
static zero_status judge(struct comm_work *work, ncclResult_t result) {
    return good(result) ? ZERO_OK : hold_back(work, result);
}

static zero_status gather_shares(struct comm_work *work, const void *source, void *target, uint64_t count,
                                 enum dtype dtype) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    return judge(work, library_of(work)->ncclAllGather(source, target, count, types[dtype], group->data,
                                                       nccl_stream(work)));
}

static zero_status gather(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return gather_shares(work, call->source, call->target, call->count, call->dtype);
}

static zero_status broadcast(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    const struct comm_call *call = &work->call;
    return judge(work,
                 library_of(work)->ncclBroadcast(call->target, call->target, call->count, types[call->dtype],
                                                 (int)call->root, group->data, nccl_stream(work)));
}

static zero_status exchange_shares(struct comm_work *work, const char *source, char *target, uint64_t count) {
    const struct nccl_library *nccl = library_of(work);
    struct nccl_group *group = (struct nccl_group *)work->group;
    ncclDataType_t type = types[work->call.dtype];
    uint64_t bytes = count * dtype_bytes(work->call.dtype);
    ncclResult_t result = nccl->ncclGroupStart();
    for (uint32_t m = 0; m < group->base.count && good(result); m++) {
        result = nccl->ncclSend(source + m * bytes, count, type, (int)m, group->data, nccl_stream(work));
        if (good(result))
            result = nccl->ncclRecv(target + m * bytes, count, type, (int)m, group->data, nccl_stream(work));
    }
    ncclResult_t ended = nccl->ncclGroupEnd();
    return judge(work, good(result) ? ended : result);
}

static zero_status all_to_all(struct comm_work *work) {
    return exchange_shares(work, work->call.source, work->call.target, work->call.count);
}

/* What is exchanged: the source, or its copy with shares of equal size. */
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
    return status ? raise_device(work->group->comm, &error) : ZERO_OK;
}

static zero_status exchange(struct comm_work *work) {
    return exchange_shares(work, shares(work), staged_received(work),
                           shape_share(&work->call, work->group->count));
}

static zero_status reduce_native(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    uint64_t share = shape_share(&work->call, group->base.count);
    return judge(work, library_of(work)->ncclReduceScatter(shares(work), staged_received(work), share,
                                                           types[work->call.dtype], ncclSum, group->data,
                                                           nccl_stream(work)));
}

/* `inputs` arrays of `count` elements, one after another. */
static zero_status add_up(struct comm_work *work, const void *input, uint32_t inputs, enum dtype dtype,
                          void *target, uint64_t count, bool add) {
    const struct comm_call *call = &work->call;
    struct device *device = work->group->comm->device;
    uint64_t bytes = count * dtype_bytes(dtype), target_bytes = count * dtype_bytes(call->target_dtype),
             ticket;
    struct ordered_sum_argument sum = {.input = {input},
                                       .input_stride = bytes,
                                       .count = count,
                                       .target = target,
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
    memcpy(device_work.argument, &sum, sizeof sum);
    return device->ops->submit(device, &device_work, &ticket, &error)
               ? raise_device(work->group->comm, &error)
               : ZERO_OK;
}

static zero_status sum_into(struct comm_work *work, void *target, bool add) {
    const struct comm_call *call = &work->call;
    return add_up(work, staged_received(work), call->native ? 1 : work->group->count, call->dtype, target,
                  shape_share(call, work->group->count), add);
}

static zero_status sum_target(struct comm_work *work) {
    return sum_into(work, work->call.target, work->call.add);
}

static char *own_sum(const struct comm_work *work) {
    uint64_t bytes = shape_share(&work->call, work->group->count) * dtype_bytes(work->call.target_dtype);
    return staged_sums(work) + work->group->index * bytes;
}

static zero_status sum_share(struct comm_work *work) { return sum_into(work, own_sum(work), false); }

static zero_status gather_sums(struct comm_work *work) {
    return gather_shares(work, own_sum(work), staged_sums(work), shape_share(&work->call, work->group->count),
                         work->call.target_dtype);
}

static zero_status finish_sums(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    char *sums = staged_sums(work);
    if (sums == call->target) return ZERO_OK;
    return add_up(work, sums, 1, call->target_dtype, call->target, call->count, call->add);
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

/* ---- driving ---- */

/* NCCL has taken what was issued so far. */
static zero_status taken(struct comm_work *work, bool *out_taken) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    ncclResult_t state = group->failed;
    *out_taken = false;
    if (state == ncclSuccess) {
        ncclResult_t asked = library_of(work)->ncclCommGetAsyncError(group->data, &state);
        if (asked != ncclSuccess) state = asked;
    }
    if (state == ncclInProgress) return ZERO_OK;
    *out_taken = state == ncclSuccess;
    return state == ncclSuccess ? ZERO_OK : hold_back(work, state);
}

static zero_status end_issue(struct comm_work *work) {
    struct nccl_work *mine = mine_of(work);
    struct device *device = work->group->comm->device;
    struct zero_error error;
    error_clear(&error);
    if (device->ops->record(device, stream_of(&work->call), &mine->ticket, &error))
        return raise_device(work->group->comm, &error);
    mine->issued = true;
    if (mine->in_turn) comm_of(work->group)->issued[stream_of(&work->call)]++;
    return ZERO_OK;
}

/* As many steps of one call as NCCL takes. */
static zero_status issue_call(struct comm_work *work) {
    struct nccl_work *mine = mine_of(work);
    bool takes = false;
    zero_status status = taken(work, &takes);
    while (status == ZERO_OK && takes && mine->steps[mine->step]) {
        status = mine->steps[mine->step++](work);
        if (status == ZERO_OK) status = taken(work, &takes);
    }
    return status == ZERO_OK && takes ? end_issue(work) : status;
}

static bool has_turn(const struct comm_work *work) {
    const struct nccl_work *mine = mine_of(work);
    return !mine->in_turn || mine->turn == comm_of(work->group)->issued[stream_of(&work->call)];
}

static zero_status issue_group(struct nccl_group *group, bool *moved) {
    while (group->next < group->base.sequence) {
        struct comm_work *work = &group->base.works[group->next % COMM_CALLS_MAX];
        zero_status status = has_turn(work) ? issue_call(work) : ZERO_OK;
        if (status != ZERO_OK || !mine_of(work)->issued) return status;
        group->next++;
        *moved = true;
    }
    return ZERO_OK;
}

/* Of all groups: one may wait for another's turn to end. */
static zero_status issue(struct comm *comm) {
    struct zero_error error;
    zero_status status = ZERO_OK;
    bool waits = false;
    error_clear(&error);
    for (const struct comm_group *g = comm->groups; g; g = g->next)
        waits = waits || ((const struct nccl_group *)g)->next < g->sequence;
    if (!waits) return ZERO_OK;
    if (make_current(comm->device, &error)) return raise_device(comm, &error);
    for (bool moved = true; moved && status == ZERO_OK;) {
        moved = false;
        for (struct comm_group *g = comm->groups; g && status == ZERO_OK; g = g->next)
            status = issue_group((struct nccl_group *)g, &moved);
    }
    return status;
}

/* The companion's failure is this comm's, too. */
static zero_status test_barrier(struct comm_work *work, bool *out_done) {
    struct nccl_work *mine = mine_of(work);
    *out_done = true;
    if (!mine->barrier) return ZERO_OK;
    zero_status status = comm_test(mine->barrier, out_done);
    if (status == ZERO_OK && *out_done) mine->barrier = NULL;
    return status;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    struct nccl_work *mine = mine_of(work);
    struct comm *comm = work->group->comm;
    struct zero_error error;
    bool done = false;
    error_clear(&error);
    zero_status status = issue(comm);
    if (status == ZERO_OK && !mine->issued) return check_deadline(work);
    if (status == ZERO_OK) status = test_barrier(work, &done);
    if (status != ZERO_OK) return status;
    if (done && comm->device->ops->test(comm->device, mine->ticket, &done, &error))
        return raise_device(comm, &error);
    if (!done) {
        bool takes;
        status = taken(work, &takes); /* a peer that died shows here */
        return status ? status : check_deadline(work);
    }
    if (group->ring) control_done(group->ring, work->record.sequence);
    comm_of(work->group)->idles = 0;
    *out_done = true;
    return ZERO_OK;
}

static zero_status post(struct comm_work *work) {
    struct nccl_group *group = (struct nccl_group *)work->group;
    const struct comm_call *call = &work->call;
    if (call->written)
        return comm_raise(
            group->base.comm, ZERO_E_UNSUPPORTED, (int32_t)group->base.comm->rank, false,
            "comm nccl: a call's `written` is for the host's memory: take norms as work of the device");
    bool barrier = call->kind == COMM_BARRIER, empty = call->count == 0 && !barrier;
    struct nccl_work *mine = mine_of(work);
    *mine = (struct nccl_work){.steps = empty ? nothing : steps[call->kind][call->native]};
    mine->in_turn = !empty && !barrier;
    if (mine->in_turn) mine->turn = comm_of(work->group)->posted[stream_of(call)]++;
    if (group->ring) control_posted(group->ring, &work->record, work->posted_ns);
    return issue(group->base.comm);
}

static void progress(struct comm_group *group) { issue(group->comm); }

/* Nothing wakes a thread when a stream has come to its end: yield at first, then sleep ever longer, up to 50 us. */
static void idle(struct comm *comm, uint64_t at_most_ns) {
    enum { YIELDS = 32, STEP_NS = 1000, LONGEST_NS = 50000 };
    struct nccl_comm *mine = (struct nccl_comm *)comm;
    uint64_t ns = (uint64_t)++mine->idles * STEP_NS;
    comm_idle(mine->beside, 0);
    if (mine->idles <= YIELDS) {
        sched_yield();
        return;
    }
    if (ns > LONGEST_NS) ns = LONGEST_NS;
    sleep_ns(ns < at_most_ns ? ns : at_most_ns);
}

/* ---- groups ---- */

static zero_status raise_opening(struct nccl_group *group, ncclResult_t result) {
    char why[512];
    return comm_raise(group->base.comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u: making a group of %u ranks failed: %s: set NCCL_DEBUG=WARN",
                      group->base.comm->rank, group->base.count, reason(group, result, why));
}

static zero_status share_id(struct nccl_group *group, ncclUniqueId *id) {
    struct nccl_comm *comm = comm_of(&group->base);
    ncclResult_t result = group->base.index == 0 ? comm->library.ncclGetUniqueId(id) : ncclSuccess;
    if (result != ncclSuccess) return raise_opening(group, result);
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_U8,
                             .count = sizeof *id,
                             .what = "NCCL's unique id",
                             .target = id};
    return comm_run(group->companion, &call);
}

/* Until NCCL has connected all members, one of them failed, or the time is over. */
static zero_status await_members(struct nccl_group *group) {
    struct comm *comm = group->base.comm;
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    ncclResult_t state = ncclInProgress;
    for (uint64_t begin_ns = clock_now_ns(); state == ncclInProgress; sleep_ns(100000)) {
        ncclResult_t asked = nccl->ncclCommGetAsyncError(group->data, &state);
        if (asked != ncclSuccess) state = asked;
        if (failure_raised(comm->failure)) return comm->failure->error.code;
        if (!deadline_passed(comm->timeout_s, begin_ns, clock_now_ns())) continue;
        return comm_raise(
            comm, ZERO_E_PEER, -1, false,
            "comm nccl: rank %u waited %g s for NCCL to connect a group of %u ranks: set NCCL_DEBUG=INFO, "
            "and NCCL_SOCKET_IFNAME where hosts have several networks",
            comm->rank, 10 * comm->timeout_s, group->base.count);
    }
    return state == ncclSuccess ? ZERO_OK : raise_opening(group, state);
}

static zero_status connect_members(struct nccl_group *group) {
    struct comm *comm = group->base.comm;
    struct zero_error error;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    error_clear(&error);
    zero_status status = make_current(comm->device, &error);
    if (status) return raise_device(comm, &error);
    status = share_id(group, &id);
    if (status) return status;
    ncclResult_t result = comm_of(&group->base)
                              ->library.ncclCommInitRankConfig(&group->data, (int)group->base.count, id,
                                                               (int)group->base.index, &config);
    if (!good(result)) return raise_opening(group, result);
    return await_members(group);
}

static void disconnect(struct nccl_group *group, bool in_order) {
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    struct zero_error error;
    ncclResult_t state = ncclInProgress;
    error_clear(&error);
    if (!group->data || make_current(group->base.comm->device, &error)) return;
    uint64_t end_ns = clock_now_ns() + (uint64_t)(group->base.comm->timeout_s * 1e9);
    in_order = in_order && group->failed == ncclSuccess && good(nccl->ncclCommFinalize(group->data));
    while (in_order && state == ncclInProgress && clock_now_ns() < end_ns) {
        if (nccl->ncclCommGetAsyncError(group->data, &state) != ncclSuccess) state = ncclSystemError;
        if (state == ncclInProgress) sleep_ns(100000);
    }
    if (in_order && state == ncclSuccess)
        nccl->ncclCommDestroy(group->data);
    else
        nccl->ncclCommAbort(group->data);
}

static zero_status group_open(struct comm_group *group) {
    struct nccl_group *mine = (struct nccl_group *)group;
    struct nccl_comm *comm = comm_of(group);
    group->key = hash_text(group->key, "nccl"); /* the companion has the other one on the ring */
    zero_status status = comm_group_open(comm->beside, group->ranks, group->count, &mine->companion);
    if (status == ZERO_OK) status = connect_members(mine);
    if (status == ZERO_OK && comm->beside->control) {
        mine->ring = control_group_open(comm->beside->control, group);
        if (!mine->ring)
            status = comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                                "comm nccl: no memory for a group of %u ranks", group->count);
    }
    if (status == ZERO_OK) return ZERO_OK;
    disconnect(mine, false);
    if (mine->companion) comm_group_close(mine->companion);
    /* what the companion failed with may be known to it alone */
    if (!failure_raised(group->comm->failure)) comm_raise_error(group->comm, comm_error(comm->beside), false);
    return status;
}

static void group_close(struct comm_group *group) {
    struct nccl_group *mine = (struct nccl_group *)group;
    bool pending = failure_raised(group->comm->failure);
    for (uint32_t i = 0; i < COMM_CALLS_MAX; i++) pending = pending || group->works[i].busy;
    disconnect(mine, !pending);
    comm_group_close(mine->companion);
}

/* ---- opening ---- */

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct nccl_comm *mine = (struct nccl_comm *)comm;
    if (!options->beside || comm->size != options->beside->size || comm->rank != options->beside->rank)
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm nccl: rank %u of %u ranks needs a comm of the same ranks beside it",
                         comm->rank, comm->size);
    if (!options->device || !options->device->stream[DEVICE_GATHER])
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm nccl: rank %u needs a GPU's memory and streams: its device is \"%s\"",
                         comm->rank, options->device ? options->device->ops->name : "none");
    zero_status status = nccl_library_open(&mine->library, error);
    if (status != ZERO_OK) return status;
    comm->device = options->device;
    comm->failure = options->beside->failure;
    mine->beside = options->beside;
    return ZERO_OK;
}

static void close_comm(struct comm *comm) {}

static void announce(struct comm *comm) {
    struct comm *beside = ((struct nccl_comm *)comm)->beside;
    if (beside->ops->announce) beside->ops->announce(beside);
}

const struct comm_ops comm_nccl_ops = {
    .name = "nccl",
    .comm_bytes = sizeof(struct nccl_comm),
    .group_bytes = sizeof(struct nccl_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staged_bytes,
    .post = post,
    .test = test,
    .progress = progress,
    .idle = idle,
    .announce = announce,
};
