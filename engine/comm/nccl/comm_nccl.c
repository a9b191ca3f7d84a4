/* clang-format off */
/* Transport nccl: ranks are processes (or threads), each with its own GPU. Buffers are memory of comm->device.
 *
 * The transport works beside a comm of another transport over the same ranks (comm_options.beside: mpi, tcp, local),
 * and shares its failure. The other comm finds dead ranks, compares the calls, and tells failures; it also carries
 * NCCL's unique ids and the barriers. Each group of several ranks has its own NCCL communicator, made in non-blocking mode; a second
 * group of the same ranks splits the first one's, which needs no id.
 * Therefore every wait has a deadline, and a failure on another rank ends the wait.
 *
 * A call is a list of steps on one stream of the device. A step is an NCCL call or work of the device. All members
 * issue the steps in the same order. A step is issued when NCCL has accepted the step before it (in non-blocking mode,
 * NCCL may still be busy with that step). The next call's steps follow after all steps of this call. After the last
 * step the stream is recorded; the call is done when this record is. An `ordered` reduction is an exchange of shares
 * and the kernel ordered_sum, and on several nodes both once more, by levels (staged.h); a `native` reduction is NCCL's
 * reduce-scatter.
 *
 *   QUEUED --issue--> step 0, 1, ... --record--> ISSUED --ticket--> DONE
 *
 * If two ranks issued calls of two groups in different orders, they could wait for each other forever: on one stream,
 * because it performs one call after another; on two streams, because a GPU may have no room for the kernels of two
 * calls at once (NCCL's user guide, "Using multiple NCCL communicators concurrently"). Therefore a rank issues all calls
 * in the order of the posts, for all groups and streams together; and ranks that are members of two groups must post the
 * calls of both in one order (comm_one_order). NCCL_LAUNCH_ORDER_IMPLICIT tells NCCL to keep this order on the GPU.
 * Reductions and all-to-alls are on DEVICE_REDUCE, all-gathers and broadcasts on DEVICE_GATHER.
 *
 * After a failure NCCL's kernels may wait forever. A thread that frees memory of the GPU then waits with them.
 * comm_abandon aborts these kernels; without it, closing a group does.
 *
 * Threads: one at a time, as for the device; any thread. */
/* clang-format on */
#include <sched.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/system/thread.h"
#include "engine/comm/nccl/nccl.h"
#include "engine/comm/staged.h"
#include "engine/comm/watch.h"

/* NCCL works on the GPU that is current in the calling thread. Every function of the device makes its GPU current. */
static zero_status make_current(struct device *device, struct zero_error *error) {
    bool done;
    return device->ops->test(device, 0, &done, error);
}

/* ---- failures ---- */

/* The limit for waits that the ring does not judge: all ranks posted the call, or there is no control channel. */
static zero_status check_deadline(const struct comm_work *work) {
    struct comm *comm = work->group->comm;
    char text[RECORD_TEXT_BYTES];
    uint64_t grace_ns = (uint64_t)(comm->timeout_s * 2e9);
    if (work->call.patient || !deadline_passed(comm->timeout_s, grace_ns, work->waited_ns)) return ZERO_OK;
    return comm_raise(comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u waited %.1f s for %s: a rank does not take its part, or NCCL "
                      "cannot move data between the GPUs: look at every rank's log, and set NCCL_DEBUG=INFO",
                      comm->rank, (double)work->waited_ns * 1e-9,
                      record_text(&work->record, work->group->ordinal, text));
}

/* ---- driving ---- */

static bool has_turn(const struct comm_work *work) {
    const struct nccl_work *mine = mine_of(work);
    return !mine->in_turn || mine->turn == comm_of(work->group)->issued;
}

static zero_status issue_group(struct nccl_group *group, bool *moved) {
    while (group->next < group->base.sequence) {
        struct comm_work *work = &group->base.works[group->next % COMM_CALLS_MAX];
        zero_status status = has_turn(work) ? nccl_issue_call(work) : ZERO_OK;
        if (status != ZERO_OK || !mine_of(work)->issued) return status;
        group->next++;
        *moved = true;
    }
    return ZERO_OK;
}

/* Issues calls of all groups: a call of one group may wait for the turn of another group's call to end. */
static zero_status issue(struct comm *comm) {
    struct zero_error error;
    zero_status status = ZERO_OK;
    bool waits = false;
    error_clear(&error);
    for (const struct comm_group *g = comm->groups; g; g = g->next)
        waits = waits || ((const struct nccl_group *)g)->next < g->sequence;
    if (!waits) return ZERO_OK;
    if (make_current(comm->device, &error)) return comm_raise_error(comm, &error, false);
    for (bool moved = true; moved && status == ZERO_OK;) {
        moved = false;
        for (struct comm_group *g = comm->groups; g && status == ZERO_OK; g = g->next)
            status = issue_group((struct nccl_group *)g, &moved);
    }
    return status;
}

/* A failure of the companion is also a failure of this comm. */
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
        return comm_raise_error(comm, &error, false);
    if (!done) {
        bool takes;
        status = nccl_taken(work, &takes); /* here the failure of a dead peer shows */
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
    struct nccl_work *mine = mine_of(work);
    *mine = (struct nccl_work){.steps = nccl_steps(work)};
    mine->in_turn = mine->steps[0] && call->kind != COMM_BARRIER;
    if (mine->in_turn) mine->turn = comm_of(work->group)->posted++;
    if (group->ring) control_posted(group->ring, &work->record, work_counts_ns(work));
    return issue(group->base.comm);
}

static bool in_order(const struct comm_group *group) { return true; }

static uint8_t streams(const struct comm_call *call) { return (uint8_t)(1u << stream_of(call)); }

static bool queued(const struct comm_work *work, uint64_t *out_ticket) {
    const struct nccl_work *mine = mine_of(work);
    *out_ticket = mine->ticket;
    return mine->issued && !mine->barrier;
}

static void progress(struct comm_group *group) { issue(group->comm); }

/* The end of a stream's work wakes no thread: yield first, then sleep longer and longer, up to 50 us. */
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
    char why[NCCL_REASON_BYTES];
    const char *advice = result == ncclInvalidUsage
                             ? "each rank needs its own GPU: start at most one rank per GPU, or run all "
                               "ranks as threads on one GPU (zero train --ranks N)"
                             : "set NCCL_DEBUG=WARN";
    return comm_raise(group->base.comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u: making a group of %u ranks failed: %s: %s", group->base.comm->rank,
                      group->base.count, nccl_reason(group, result, why), advice);
}

static zero_status share_id(struct nccl_group *group) {
    struct nccl_comm *comm = comm_of(&group->base);
    ncclResult_t result = group->base.index == 0 ? comm->library.ncclGetUniqueId(&comm->id) : ncclSuccess;
    if (result != ncclSuccess) return raise_opening(group, result);
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_U8,
                             .count = sizeof comm->id,
                             .what = "NCCL's unique id",
                             .target = &comm->id};
    return comm_run(group->companion, &call);
}

/* Waits until NCCL has done what it does with the communicator, a member has failed, or the deadline has passed. */
static zero_status await_members(struct nccl_group *group, ncclComm_t data) {
    struct comm *comm = group->base.comm;
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    ncclResult_t state = ncclInProgress;
    for (uint64_t begin_ns = clock_now_ns(); state == ncclInProgress; sleep_ns(100000)) {
        ncclResult_t asked = nccl->ncclCommGetAsyncError(data, &state);
        if (asked != ncclSuccess) state = asked;
        comm_ask_interrupted(comm);
        if (comm_failure_raised(comm->failure)) return comm->failure->error.code;
        if (!deadline_passed(comm->timeout_s, begin_ns, clock_now_ns())) continue;
        return comm_raise(comm, ZERO_E_PEER, -1, false,
                          "comm nccl: rank %u waited %g s for NCCL to connect a group of %u ranks: set "
                          "NCCL_DEBUG=INFO, and NCCL_SOCKET_IFNAME where hosts have several networks",
                          comm->rank, 10 * comm->timeout_s, group->base.count);
    }
    return state == ncclSuccess ? ZERO_OK : raise_opening(group, state);
}

/* A group of the same members that has made no call: nothing is under way on its communicator. The same on all members, which open
 * groups and post calls in one order. NULL: there is none. */
static struct nccl_group *twin_of(const struct nccl_group *group) {
    for (struct comm_group *g = group->base.comm->groups; g; g = g->next)
        if (g->ranks == group->base.ranks && !g->sequence) return (struct nccl_group *)g;
    return NULL;
}

/* NCCL sets group->data before the twin is no longer in progress. Once the twin is aborted, NCCL does not set it any more. */
static zero_status split(struct nccl_group *twin, struct nccl_group *group, ncclConfig_t *config) {
    ncclResult_t result =
        comm_of(&group->base)
            ->library.ncclCommSplit(twin->data, 0, (int)group->base.index, &group->data, config);
    zero_status status = nccl_good(result) ? await_members(group, twin->data) : raise_opening(group, result);
    if (status) nccl_abort(twin);
    return status ? status : await_members(group, group->data);
}

static zero_status connect_members(struct nccl_group *group) {
    struct comm *comm = group->base.comm;
    struct zero_error error;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = NCCL_CTAS_MAX;
    error_clear(&error);
    zero_status status = make_current(comm->device, &error);
    if (status) return comm_raise_error(comm, &error, false);
    struct nccl_comm *mine = comm_of(&group->base);
    struct nccl_group *twin = mine->library.ncclCommSplit ? twin_of(group) : NULL;
    if (twin) return split(twin, group, &config);
    TRY(share_id(group));
    ncclResult_t result = mine->library.ncclCommInitRankConfig(&group->data, (int)group->base.count, mine->id,
                                                               (int)group->base.index, &config);
    if (!nccl_good(result)) return raise_opening(group, result);
    return await_members(group, group->data);
}

static void *abort_one(void *user) {
    struct nccl_group *group = user;
    struct zero_error error;
    error_clear(&error);
    make_current(group->base.comm->device, &error);
    nccl_abort(group);
    return NULL;
}

/* Before 2.22, NCCL aborts one communicator after another also inside an NCCL group. */
static void abort_apart(struct nccl_group *closing, struct comm_group *others) {
    enum { AT_ONCE = 16 };
    pthread_t threads[AT_ONCE];
    uint32_t count = 0;
    for (struct comm_group *g = others; g && count < AT_ONCE; g = g->next)
        count += thread_start(&threads[count], abort_one, g) == 0;
    if (closing) nccl_abort(closing);
    while (count) pthread_join(threads[--count], NULL);
}

/* Aborts the communicator of `closing`, which is no longer in the comm's list; after a failure also those of all listed
 * groups. The end of a communicator frees memory, and this waits for all work on the GPU. Inside an NCCL group, NCCL
 * tells all communicators to end before it waits for any of them. */
static void abort_all(struct comm *comm, struct nccl_group *closing) {
    const struct nccl_library *nccl = &((struct nccl_comm *)comm)->library;
    struct comm_group *others = comm_failure_raised(comm->failure) ? comm->groups : NULL;
    if (nccl->version < NCCL_VERSION(2, 22, 0)) {
        abort_apart(closing, others);
        return;
    }
    nccl->ncclGroupStart();
    if (closing) nccl_abort(closing);
    for (struct comm_group *g = others; g; g = g->next) nccl_abort((struct nccl_group *)g);
    nccl->ncclGroupEnd();
}

static bool finalised(struct nccl_group *group) {
    const struct nccl_library *nccl = &comm_of(&group->base)->library;
    const struct comm *comm = group->base.comm;
    uint64_t end_ns = clock_now_ns() + (uint64_t)(comm->timeout_s * 1e9);
    ncclResult_t state = nccl->ncclCommFinalize(group->data);
    if (nccl_good(state)) state = ncclInProgress;
    while (state == ncclInProgress && clock_now_ns() < end_ns && !comm_failure_raised(comm->failure)) {
        if (nccl->ncclCommGetAsyncError(group->data, &state) != ncclSuccess) state = ncclSystemError;
        if (state == ncclInProgress) sleep_ns(100000);
    }
    return state == ncclSuccess;
}

/* make_current works even if the device has failed; its status is not needed here. */
static void disconnect(struct nccl_group *group, bool in_order) {
    struct zero_error error;
    error_clear(&error);
    if (!group->data) return;
    make_current(group->base.comm->device, &error);
    if (in_order && group->failed == ncclSuccess && finalised(group))
        comm_of(&group->base)->library.ncclCommDestroy(group->data);
    else
        abort_all(group->base.comm, group);
    group->data = NULL;
}

static void abandon(struct comm *comm) {
    struct zero_error error;
    error_clear(&error);
    if (!comm_failure_raised(comm->failure)) return;
    make_current(comm->device, &error);
    abort_all(comm, NULL);
}

static zero_status group_open(struct comm_group *group) {
    struct nccl_group *mine = (struct nccl_group *)group;
    struct nccl_comm *comm = comm_of(group);
    group->key = hash_text(group->key, "nccl"); /* the companion uses the other key on the ring */
    bool alone = nccl_alone(group);
    zero_status status = comm_group_open(comm->beside, group->ranks, group->count, &mine->companion);
    if (status == ZERO_OK && !alone) status = connect_members(mine);
    if (status == ZERO_OK && comm->beside->control) {
        mine->ring = control_group_open(comm->beside->control, group);
        if (!mine->ring)
            status = comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                                "comm nccl: no memory for a group of %u ranks", group->count);
    }
    if (status == ZERO_OK && !alone) status = nccl_warm_up(mine);
    if (status == ZERO_OK) return ZERO_OK;
    disconnect(mine, false);
    if (mine->companion) comm_group_close(mine->companion);
    /* the companion's failure may be recorded only in its own comm */
    if (!comm_failure_raised(group->comm->failure))
        comm_raise_error(group->comm, comm_error(comm->beside), false);
    return status;
}

static void group_close(struct comm_group *group) {
    struct nccl_group *mine = (struct nccl_group *)group;
    bool pending = comm_failure_raised(group->comm->failure);
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
    TRY(nccl_library_open(&mine->library, error));
    comm->device = options->device;
    comm->one_order = true;
    comm->failure = options->beside->failure;
    mine->beside = options->beside;
    mine->first_calls = options->first_calls;
    return ZERO_OK;
}

static void close_comm(struct comm *comm) {}

static void announce(struct comm *comm) {
    struct comm *beside = ((struct nccl_comm *)comm)->beside;
    if (beside->ops->announce) beside->ops->announce(beside);
}

const struct comm_ops comm_nccl_ops = {
    .name = "nccl",
    .levels = true,
    .comm_bytes = sizeof(struct nccl_comm),
    .group_bytes = sizeof(struct nccl_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staged_between,
    .post = post,
    .test = test,
    .in_order = in_order,
    .streams = streams,
    .queued = queued,
    .progress = progress,
    .idle = idle,
    .announce = announce,
    .abandon = abandon,
};
