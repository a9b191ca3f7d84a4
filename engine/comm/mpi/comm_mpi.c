/* Transport mpi: ranks are MPI processes, buffers are host memory. Calls are non-blocking MPI collectives. The engine
 * has its own communicators, which keep its messages apart from the host program's messages.
 *
 * Each group has two communicators. MPI requires the same order of calls on one communicator on all ranks. But the
 * second half of an all-reduce (the gather of the sums) starts when the first half has ended, which each rank sees at a
 * different time. Therefore the second half uses `gathers`, in the order of the posts: see advance_all_reduces.
 *
 * The control thread of each rank runs from open to close. It sends and receives control messages (control.c); its MPI
 * calls also let MPI make progress while the rank computes. MPI must allow MPI_THREAD_MULTIPLE.
 *
 * A comm or a group is opened by blocking MPI calls, which have no deadline; therefore all ranks first meet in a wait
 * that has one. Requests to dead ranks never end: after a failure, this transport does not wait for MPI, and neither
 * frees MPI objects nor finalizes MPI. */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/comm/mpi/mpi_library.h"
#include "engine/comm/mpi/mpi_link.h"
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"

#ifndef COMM_MPI_COUNT_MAX
#define COMM_MPI_COUNT_MAX INT_MAX /* of bytes in one MPI count; tests build with a small one */
#endif

struct mpi_comm {
    struct comm base;
    struct comm_failure failure;
    struct mpi_link link;
    struct watch watch;
    uint32_t idles; /* calls of idle since the last completed call */
};

enum phase { EXCHANGING, GATHERING };

struct mpi_work {
    MPI_Request request;
    MPI_Datatype type, spread; /* built for this call, or libmpi.datatype_null */
    enum phase phase;
    int failed; /* MPI's error; its report waits a short time, because the control channel may name the cause */
    uint64_t failed_ns;
};

struct mpi_group {
    struct comm_group base;
    MPI_Comm data, gathers;
    struct control_group *ring;
    const void **inputs;  /* scratch, one per member */
    uint64_t next_gather; /* all-reduces before this sequence have started their second half */
    struct mpi_work works[COMM_CALLS_MAX];
};

/* ---- opening ---- */

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct mpi_comm *mpi = (struct mpi_comm *)comm;
    TRY(mpi_link_open(&mpi->link, options, error));
    comm->rank = mpi->link.rank, comm->size = mpi->link.size;
    comm_failure_init(&mpi->failure);
    comm->failure = &mpi->failure;
    struct watch_link watched = mpi_link_watched(&mpi->link);
    zero_status status = watch_start(&mpi->watch, comm, &watched);
    if (status == ZERO_OK && mpi->link.interrupted) comm_raise_interrupted(comm);
    if (status == ZERO_OK) return ZERO_OK;
    error_set(error, status, "comm mpi: rank %u: no memory or no thread for the control channel", comm->rank);
    mpi_link_close(&mpi->link, comm->timeout_s);
    comm_failure_destroy(&mpi->failure);
    return status;
}

static void close_comm(struct comm *comm) {
    struct mpi_comm *mpi = (struct mpi_comm *)comm;
    if (!watch_stop(&mpi->watch)) return; /* MPI may still use the communicators and messages: they stay */
    mpi_link_close(&mpi->link, comm->timeout_s);
    comm_failure_destroy(&mpi->failure);
}

/* ---- groups ---- */

/* In later rounds, the awaited rank may itself wait for an absent rank. Later rounds have a longer limit, so that a
 * first round names the absent rank. After a failure this rank waits WATCH_GRACE_NS longer: if all members have come, some of them may
 * have met already, and then create the group, which needs all members. */
static zero_status await_member(struct comm_group *group, MPI_Request requests[2], uint32_t member,
                                bool first) {
    struct comm *comm = group->comm;
    uint64_t begin_ns = clock_now_ns(), grace_ns = first ? 0 : (uint64_t)(comm->timeout_s * 2e9),
             failed_ns = 0;
    for (int both = 0;; sleep_ns(50000)) {
        int code = libmpi.MPI_Testall(2, requests, &both, MPI_STATUSES_IGNORE);
        if (code == MPI_SUCCESS && both) return ZERO_OK;
        comm_ask_interrupted(comm);
        uint64_t now_ns = clock_now_ns();
        if (comm_failure_raised(comm->failure) && !failed_ns) failed_ns = now_ns;
        if (failed_ns && now_ns - failed_ns >= WATCH_GRACE_NS) return comm->failure->error.code;
        if (failed_ns || !deadline_passed(comm->timeout_s, begin_ns + grace_ns, now_ns)) continue;
        return comm_raise(comm, ZERO_E_PEER, (int32_t)group->ranks[member], false,
                          "rank %u did not open a group of %u ranks, for which rank %u waited %.1f s: it is "
                          "stuck, or does something else than the others",
                          group->ranks[member], group->count, comm->rank, (double)(now_ns - begin_ns) * 1e-9);
    }
}

/* In round k this rank meets the members 2^k after it and 2^k before it. After the last round, all have come. */
static zero_status meet_members(struct comm_group *group) {
    enum { MEETING_TAG = 2 };
    MPI_Comm world = ((struct mpi_comm *)group->comm)->link.world;
    for (uint32_t step = 1; step < group->count; step *= 2) {
        MPI_Request requests[2] = {libmpi.request_null, libmpi.request_null};
        uint32_t to = (group->index + step) % group->count,
                 from = (group->index + group->count - step) % group->count;
        libmpi.MPI_Irecv(NULL, 0, libmpi.byte, (int)group->ranks[from], MEETING_TAG, world, &requests[0]);
        libmpi.MPI_Isend(NULL, 0, libmpi.byte, (int)group->ranks[to], MEETING_TAG, world, &requests[1]);
        TRY(await_member(group, requests, from, step == 1));
    }
    return ZERO_OK;
}

static int open_group_communicators(struct mpi_group *group) {
    struct mpi_comm *mpi = (struct mpi_comm *)group->base.comm;
    MPI_Group all, members;
    int *ranks = malloc(group->base.count * sizeof *ranks);
    if (!ranks) return MPI_ERR_NO_MEM;
    for (uint32_t i = 0; i < group->base.count; i++) ranks[i] = (int)group->base.ranks[i];
    libmpi.MPI_Comm_group(mpi->link.world, &all);
    libmpi.MPI_Group_incl(all, (int)group->base.count, ranks, &members);
    int code =
        libmpi.MPI_Comm_create_group(mpi->link.world, members, (int)(group->base.key % 32768), &group->data);
    if (code == MPI_SUCCESS) code = libmpi.MPI_Comm_dup(group->data, &group->gathers);
    libmpi.MPI_Group_free(&members);
    libmpi.MPI_Group_free(&all);
    free(ranks);
    if (code != MPI_SUCCESS) return code;
    libmpi.MPI_Comm_set_errhandler(group->data, libmpi.errors_return);
    libmpi.MPI_Comm_set_errhandler(group->gathers, libmpi.errors_return);
    return MPI_SUCCESS;
}

static zero_status group_open(struct comm_group *group) {
    struct mpi_group *mpi = (struct mpi_group *)group;
    struct comm *comm = group->comm;
    char text[MPI_MAX_ERROR_STRING];
    mpi->inputs = malloc(group->count * sizeof *mpi->inputs);
    mpi->ring = control_group_open(comm->control, group);
    zero_status status = mpi->inputs && mpi->ring ? meet_members(group) : ZERO_OK;
    int code = MPI_ERR_NO_MEM;
    if (mpi->inputs && mpi->ring && status == ZERO_OK) code = open_group_communicators(mpi);
    if (code == MPI_SUCCESS) return ZERO_OK;
    free(mpi->inputs);
    if (status) return status;
    return comm_raise(comm, ZERO_E_PEER, -1, false,
                      "comm mpi: rank %u: making a group of %u ranks failed: %s", comm->rank, group->count,
                      mpi_text(code, text));
}

static void group_close(struct comm_group *group) {
    struct mpi_group *mpi = (struct mpi_group *)group;
    bool pending = comm_failure_raised(group->comm->failure);
    for (uint32_t i = 0; i < COMM_CALLS_MAX; i++) pending = pending || group->works[i].busy;
    free(mpi->inputs);
    if (pending) return;
    libmpi.MPI_Comm_free(&mpi->data);
    libmpi.MPI_Comm_free(&mpi->gathers);
}

/* ---- shapes ---- */

/* A number of bytes as an MPI type and count. Above COMM_MPI_COUNT_MAX it is one element of a type of exactly this
 * size. */
struct span {
    MPI_Datatype type;
    int count;
};

static struct span span_make(uint64_t bytes, struct mpi_work *owner) {
    const uint64_t block_bytes = COMM_MPI_COUNT_MAX / 2 + 1;
    if (bytes <= COMM_MPI_COUNT_MAX) return (struct span){libmpi.byte, (int)bytes};
    MPI_Datatype block, blocks, type;
    libmpi.MPI_Type_contiguous((int)block_bytes, libmpi.byte, &block);
    libmpi.MPI_Type_contiguous((int)(bytes / block_bytes), block, &blocks);
    int lengths[2] = {1, (int)(bytes % block_bytes)};
    MPI_Aint offsets[2] = {0, (MPI_Aint)(bytes / block_bytes * block_bytes)};
    MPI_Datatype types[2] = {blocks, libmpi.byte};
    libmpi.MPI_Type_create_struct(2, lengths, offsets, types, &type);
    libmpi.MPI_Type_commit(&type);
    libmpi.MPI_Type_free(&block);
    libmpi.MPI_Type_free(&blocks);
    if (owner->type != libmpi.datatype_null) libmpi.MPI_Type_free(&owner->type);
    owner->type = type;
    return (struct span){type, 1};
}

/* The span, as one element of a type that the next one follows at a distance of `bytes`. */
static struct span spread_make(struct span span, uint64_t bytes, struct mpi_work *owner) {
    MPI_Datatype packed;
    libmpi.MPI_Type_contiguous(span.count, span.type, &packed);
    libmpi.MPI_Type_create_resized(packed, 0, (MPI_Aint)bytes, &owner->spread);
    libmpi.MPI_Type_commit(&owner->spread);
    libmpi.MPI_Type_free(&packed);
    return (struct span){owner->spread, 1};
}

static struct span shares_of(const struct comm_call *call, struct span span, struct mpi_work *owner) {
    return call->stride ? spread_make(span, call->stride * dtype_bytes(call->dtype), owner) : span;
}

/* ---- posting ---- */

/* The first half of every reduction: sends all shares to their owners. */
static int post_exchange(struct comm_work *work, struct mpi_work *mine, MPI_Comm data) {
    const struct comm_call *call = &work->call;
    uint64_t share = shape_share(call, work->group->count);
    const void *source = staged_source(work);
    if (call->native)
        return libmpi.MPI_Ireduce_scatter_block(source, staged_received(work), (int)share, libmpi.fp32,
                                                libmpi.sum, data, &mine->request);
    struct span span = span_make(share * dtype_bytes(call->dtype), mine), from = shares_of(call, span, mine);
    return libmpi.MPI_Ialltoall(source, from.count, from.type, staged_received(work), span.count, span.type,
                                data, &mine->request);
}

static int post_gather(struct comm_work *work, struct mpi_work *mine, MPI_Comm data) {
    const struct comm_call *call = &work->call;
    uint64_t bytes = call->count * dtype_bytes(call->dtype);
    struct span span = span_make(bytes, mine), to = shares_of(call, span, mine);
    const char *own =
        (const char *)call->target + work->group->index * shape_stride(call) * dtype_bytes(call->dtype);
    const void *source = call->source == own ? MPI_IN_PLACE : call->source;
    return libmpi.MPI_Iallgather(source, span.count, span.type, call->target, to.count, to.type, data,
                                 &mine->request);
}

static int post_call(struct comm_work *work, struct mpi_work *mine, MPI_Comm data) {
    const struct comm_call *call = &work->call;
    struct span span;
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return post_gather(work, mine, data);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_REDUCE:
        return post_exchange(work, mine, data);
    case COMM_ALL_TO_ALL:
        span = span_make(call->count * dtype_bytes(call->dtype), mine);
        return libmpi.MPI_Ialltoall(call->source, span.count, span.type, call->target, span.count, span.type,
                                    data, &mine->request);
    case COMM_BROADCAST:
        span = span_make(call->count * dtype_bytes(call->dtype), mine);
        return libmpi.MPI_Ibcast(call->target, span.count, span.type, (int)call->root, data, &mine->request);
    default:
        return libmpi.MPI_Ibarrier(data, &mine->request);
    }
}

static zero_status raise_mpi(struct comm_work *work, int code) {
    char text[MPI_MAX_ERROR_STRING], call_text[RECORD_TEXT_BYTES];
    return comm_raise(work->group->comm, ZERO_E_PEER, -1, false, "comm mpi: rank %u: %s failed: %s",
                      work->group->comm->rank, record_text(&work->record, work->group->ordinal, call_text),
                      mpi_text(code, text));
}

static zero_status post(struct comm_work *work) {
    struct mpi_group *group = (struct mpi_group *)work->group;
    struct mpi_work *mine = &group->works[work_slot(work)];
    const struct comm_call *call = &work->call;
    *mine = (struct mpi_work){
        .request = libmpi.request_null, .type = libmpi.datatype_null, .spread = libmpi.datatype_null};
    if (shape_reduces(call) && call->native &&
        (call->dtype != DTYPE_F32 || shape_share(call, work->group->count) > INT_MAX))
        return comm_raise(work->group->comm, ZERO_E_UNSUPPORTED, (int32_t)work->group->comm->rank, false,
                          "comm mpi: the native reduction of %s is for fp32 shares below 2^31 elements: set "
                          "\"comm\": {\"reduction\": \"ordered\"}",
                          work->record.what[0] ? work->record.what : "this call");
    control_posted(group->ring, &work->record, work_counts_ns(work));
    int code = post_call(work, mine, group->data);
    return code == MPI_SUCCESS ? ZERO_OK : raise_mpi(work, code);
}

/* ---- testing ---- */

/* If ranks diverge, MPI may find a message of the wrong size first. The control channel names the calls a little later,
 * so MPI's own error is raised only after a short time. */
static zero_status test_request(struct comm_work *work, struct mpi_work *mine, int *out_done) {
    *out_done = 0;
    if (mine->failed == MPI_SUCCESS) {
        mine->failed = libmpi.MPI_Test(&mine->request, out_done, MPI_STATUS_IGNORE);
        if (mine->failed == MPI_SUCCESS) return ZERO_OK;
        mine->failed_ns = clock_now_ns();
        *out_done = 0;
    }
    return clock_now_ns() - mine->failed_ns < 2 * (uint64_t)WATCH_GRACE_NS ? ZERO_OK
                                                                           : raise_mpi(work, mine->failed);
}

static int start_gather(struct comm_work *work, struct mpi_work *mine) {
    struct mpi_group *group = (struct mpi_group *)work->group;
    uint64_t share = shape_share(&work->call, group->base.count);
    uint64_t bytes = share * dtype_bytes(work->call.target_dtype);
    staged_sum(work, group->inputs, staged_sums(work) + group->base.index * bytes, share, false);
    struct span span = span_make(bytes, mine);
    mine->phase = GATHERING;
    return libmpi.MPI_Iallgather(MPI_IN_PLACE, 0, libmpi.datatype_null, staged_sums(work), span.count,
                                 span.type, group->gathers, &mine->request);
}

/* Starts second halves in the order of the posts, up to the first all-reduce whose first half has not ended. */
static zero_status advance_all_reduces(struct mpi_group *group) {
    for (; group->next_gather < group->base.sequence; group->next_gather++) {
        uint32_t slot = group->next_gather % COMM_CALLS_MAX;
        struct comm_work *work = &group->base.works[slot];
        if (work->record.sequence != group->next_gather || work->call.kind != COMM_ALL_REDUCE) continue;
        int exchanged;
        zero_status status = test_request(work, &group->works[slot], &exchanged);
        if (status != ZERO_OK || !exchanged) return status;
        int code = start_gather(work, &group->works[slot]);
        if (code != MPI_SUCCESS) return raise_mpi(work, code);
    }
    return ZERO_OK;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    struct mpi_group *group = (struct mpi_group *)work->group;
    struct mpi_work *mine = &group->works[work_slot(work)];
    zero_status status = ZERO_OK;
    if (work->call.kind == COMM_ALL_REDUCE && mine->phase == EXCHANGING) {
        status = advance_all_reduces(group);
        if (status != ZERO_OK || mine->phase == EXCHANGING) return status;
    }
    int done;
    status = test_request(work, mine, &done);
    if (status != ZERO_OK || !done) return status;
    if (work->call.kind == COMM_REDUCE_SCATTER)
        staged_sum(work, group->inputs, work->call.target, work->call.count, work->call.add);
    if (work->call.kind == COMM_ALL_REDUCE) staged_finish(work);
    if (mine->type != libmpi.datatype_null) libmpi.MPI_Type_free(&mine->type);
    if (mine->spread != libmpi.datatype_null) libmpi.MPI_Type_free(&mine->spread);
    control_done(group->ring, work->record.sequence);
    ((struct mpi_comm *)work->group->comm)->idles = 0;
    *out_done = true;
    return ZERO_OK;
}

static void progress(struct comm_group *group) { advance_all_reduces((struct mpi_group *)group); }

/* MPI cannot sleep until a message comes: yield first, then sleep longer and longer, up to 200 us. */
static void idle(struct comm *comm, uint64_t at_most_ns) {
    enum { YIELDS = 32, STEP_NS = 5000, LONGEST_NS = 200000 };
    uint32_t idles = ++((struct mpi_comm *)comm)->idles;
    if (idles <= YIELDS) {
        sched_yield();
        return;
    }
    uint64_t ns = (uint64_t)(idles - YIELDS) * STEP_NS;
    if (ns > LONGEST_NS) ns = LONGEST_NS;
    sleep_ns(ns < at_most_ns ? ns : at_most_ns);
}

const struct comm_ops comm_mpi_ops = {
    .name = "mpi",
    .knows_ranks = true,
    .processes = true,
    .native_fp32 = true,
    .comm_bytes = sizeof(struct mpi_comm),
    .group_bytes = sizeof(struct mpi_group),
    .alone = mpi_link_alone,
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staged_bytes,
    .post = post,
    .test = test,
    .progress = progress,
    .idle = idle,
};
