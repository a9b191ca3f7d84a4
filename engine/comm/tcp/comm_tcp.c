/* clang-format off */
/* Transport tcp: ranks are processes that know only the address of rank 0; buffers are host memory. It is for hosts
 * without MPI, on which torchrun starts the program: see rendezvous.h.
 *
 * A call has one phase, an all-reduce two. In a phase every member sends every other member one slice, with two frames:
 *
 *   ready p   "My targets of phase p may be written." In phase 0 the frame carries the member's record of the call.
 *   data p    The answer to a ready frame: this member's slice. A slice may have 0 bytes.
 *
 * So a phase takes a round trip. A small slice does not wait for the ready frame: it is sent *ahead*, right after this
 * member's own ready frame, and the phase takes half a round trip. Each rank keeps up to AHEAD_SLICES such slices of every
 * other rank until it posts the call. The receiver's ready frame then tells the sender that the place is free again.
 *
 * In a group of more than SPREAD_MEMBERS ranks, a small all-gather that `passes`, a broadcast and a barrier are *spread*: a rank
 * exchanges slices with few members (tcp_slices.c), over as many connections.
 *
 * Therefore data never arrives before there is a place for it, and calls of several groups do not wait for each other.
 * Ranks that diverge are found before any data is used. A phase is over when this member has received a slice from
 * every other member and has sent all of its own slices; then its sources may change.
 *
 * The transport has no order of additions of its own: a `native` reduction is performed as an `ordered` one.
 *
 * After a frame's bytes comes its seal: a tag, which only a rank of this job can make (secret.h), and a checksum of the
 * bytes. Nothing is encrypted.
 *
 * Threads: data moves in the owner's comm_test and comm_idle. The control channel has its own thread and connections.
 * A broken data connection ends the run after a short time, in which the control channel may report the cause. */
/* clang-format on */
#include <stdlib.h>

#include "engine/base/limits.h"
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/tcp/tcp.h"

/* ---- opening ---- */

static zero_status connect_ranks(struct tcp_comm *tcp, const struct comm_options *options, uint64_t *out_key,
                                 struct zero_error *error) {
    struct rendezvous r = {.host = options->master,
                           .port = options->master_port,
                           .rank = tcp->base.rank,
                           .size = tcp->base.size,
                           .timeout_s = 10 * tcp->base.timeout_s,
                           .by_runtime = options->by_runtime,
                           .log = &options->log,
                           .interrupted = options->interrupted,
                           .interrupted_user = options->interrupted_user};
    if (options->secret) r.secret = *options->secret;
    if (r.size == 1) {
        *out_key = 1;
        tcp->peers[0].socket[LANE_CONTROL] = tcp->peers[0].socket[LANE_DATA] = -1;
        return ZERO_OK;
    }
    if (!r.host || r.port == 0 || r.port > UINT16_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm tcp: rank %u of %u ranks needs the address and port of rank 0: set "
                         "MASTER_ADDR and MASTER_PORT",
                         r.rank, r.size);
    return rendezvous(&r, tcp->peers, out_key, &tcp->meeting, error);
}

static void release(struct tcp_comm *tcp) {
    for (uint32_t q = 0; q < tcp->base.size && tcp->wires; q++) free(tcp->wires[q].queue);
    for (struct early *early = tcp->early, *next; early; early = next) {
        next = early->next;
        free(early);
    }
    free(tcp->room);
    free(tcp->pending);
    free(tcp->wires);
    tcp_set_close(&tcp->set);
    rendezvous_end(tcp->meeting);
    free(tcp->peers);
}

/* The places for slices of all ranks take at most 4 MiB, up to 256 ranks; with more ranks, 16 KiB per rank. */
static uint64_t ahead_bytes(uint32_t size) {
    enum { ROOM_BYTES = 4 << 20 };
    uint64_t bytes = ROOM_BYTES / AHEAD_SLICES / size / ALIGN_BYTES * ALIGN_BYTES;
    if (bytes < AHEAD_BYTES_MIN) return AHEAD_BYTES_MIN;
    return bytes < AHEAD_BYTES_MAX ? bytes : AHEAD_BYTES_MAX;
}

/* Without a secret, any program that reaches rank 0's port can act as a rank. */
static void warn_of_strangers(const struct tcp_comm *tcp, const struct comm_options *options) {
    if ((options->secret && options->secret->given) || tcp->base.rank) return;
    for (uint32_t i = 0; i < tcp->set.count; i++) {
        struct place peer = socket_peer(tcp->set.socket[tcp->set.peer[i]]);
        if (socket_loops_back(&peer)) continue;
        log_line(&options->log, ZERO_LOG_WARN,
                 "comm tcp: this job has no secret, so any program that reaches port %u can end it or read "
                 "its weights: set ZERO_JOB_SECRET to the same text on all ranks (openssl rand -hex 32)",
                 options->master_port);
        return;
    }
}

/* Starts the watch and its link, over lane LANE_CONTROL of all peers. */
static zero_status start_watch(struct tcp_comm *tcp, uint64_t key) {
    TRY(tcp_link_open(&tcp->link, &tcp->base, key, tcp->peers, tcp->meeting));
    struct watch_link watched = tcp_link_watched(&tcp->link);
    zero_status status = watch_start(&tcp->watch, &tcp->base, &watched);
    if (status) tcp_link_close(&tcp->link, false);
    return status;
}

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    uint64_t key;
    tcp->unchecked = options->unchecked;
    tcp->peers = calloc(comm->size, sizeof *tcp->peers);
    tcp->wires = calloc(comm->size, sizeof *tcp->wires);
    zero_status status = tcp->peers && tcp->wires ? connect_ranks(tcp, options, &key, error) : ZERO_E_MEMORY;
    bool met = status == ZERO_OK;
    if (met) status = tcp_open_wires(tcp, ahead_bytes(comm->size));
    if (met && status == ZERO_OK) {
        comm_failure_init(&tcp->failure);
        comm->failure = &tcp->failure;
        warn_of_strangers(tcp, options);
        status = start_watch(tcp, key);
        if (status == ZERO_OK) return ZERO_OK;
        comm_failure_destroy(&tcp->failure);
    }
    if (met) rendezvous_close(tcp->peers, comm->size);
    release(tcp);
    if (!met && status != ZERO_E_MEMORY) return status;
    return error_set(error, status,
                     "comm tcp: rank %u: no memory for %u ranks, or no thread for the control channel",
                     comm->rank, comm->size);
}

static void close_comm(struct comm *comm) {
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    bool in_order = watch_stop(&tcp->watch);
    tcp_link_close(&tcp->link, in_order);
    rendezvous_close(tcp->peers, comm->size);
    release(tcp);
    comm_failure_destroy(&tcp->failure);
}

/* ---- groups ---- */

/* The front lists a group only after it is open; frames that arrive earlier are kept as `early`. This takes them
 * over. */
static void replay_early(struct tcp_comm *tcp, struct comm_group *group) {
    for (struct early **link = &tcp->early, *early; (early = *link);) {
        uint32_t member = member_of(group, early->from);
        if (early->frame.key != group->key || member == group->count) {
            link = &early->next;
            continue;
        }
        *link = early->next;
        tcp->wires[early->from].early--;
        tcp_hear_ready(group, early->from, &early->frame, &early->record);
        free(early);
    }
}

static zero_status group_open(struct comm_group *group) {
    struct tcp_comm *tcp = tcp_of(group);
    struct tcp_group *mine = (struct tcp_group *)group;
    mine->inputs = malloc(group->count * sizeof *mine->inputs);
    mine->heard = calloc((size_t)HEARD_CALLS * group->count, sizeof *mine->heard);
    tcp_find_near(mine);
    zero_status status = tcp_reach_ring(group);
    if (status == ZERO_OK && mine->inputs && mine->heard && tcp_grow_queues(tcp, group))
        mine->ring = control_group_open(group->comm->control, group);
    if (mine->ring) {
        replay_early(tcp, group);
        return ZERO_OK;
    }
    free(mine->inputs);
    free(mine->heard);
    if (status) return status;
    return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                      "comm tcp: rank %u: no memory for a group of %u ranks", group->comm->rank,
                      group->count);
}

static void group_close(struct comm_group *group) {
    struct tcp_group *mine = (struct tcp_group *)group;
    free(mine->inputs);
    free(mine->heard);
}

/* ---- calls ---- */

static uint64_t staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    struct comm_call ordered = *call;
    ordered.native = false;
    return staged_bytes(group, &ordered);
}

static zero_status post(struct comm_work *work) {
    struct tcp_work *mine = mine_of(work);
    work->call.native = false;
    *mine = (struct tcp_work){.phase = EXCHANGING, .spread = tcp_spreads(work->group, &work->call)};
    mine->source = mine->spread                        ? work->call.target
                   : shape_reduces(&work->call)        ? staged_source(work)
                   : work->call.kind == COMM_BROADCAST ? work->call.target
                                                       : work->call.source;
    control_posted(((struct tcp_group *)work->group)->ring, &work->record, work_counts_ns(work));
    tcp_keep_own_slice(work);
    tcp_of(work->group)->in_flight++;
    zero_status status = tcp_reach_peers(work);
    return status ? status : tcp_begin_phase(work);
}

/* This rank has the member's data of the current phase. */
static bool came(const struct comm_work *work, uint32_t member) {
    const struct heard *heard = heard_of(work->group, work->record.sequence, member);
    bool spoke = heard->ready && heard->record.sequence == work->record.sequence;
    return spoke && heard->taken > mine_of(work)->phase;
}

/* A member that has closed in order takes part in no more calls, once all that it sent has been read. */
static zero_status miss_left(const struct comm_work *work) {
    const struct comm_group *group = work->group;
    const struct tcp_comm *tcp = tcp_of(group);
    for (uint32_t i = 0; i < tcp_peers(work); i++) {
        uint32_t m = tcp_peer(work, i), rank = group->ranks[m];
        if (!came(work, m) && tcp->set.socket[rank] < 0 && tcp_link_left(&tcp->link, rank))
            return comm_raise_left(group->comm, group->ordinal, &work->record, rank);
    }
    return ZERO_OK;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    zero_status status = tcp_pump(tcp_of(work->group), 0);
    if (status == ZERO_OK) status = tcp_advance(work);
    *out_done = status == ZERO_OK && mine_of(work)->phase == PHASES;
    return status || *out_done ? status : miss_left(work);
}

/* The first member whose data has not arrived; else the first member that has not accepted this rank's frames. */
static int32_t late(const struct comm_work *work) {
    const struct comm_group *group = work->group;
    const struct tcp_comm *tcp = tcp_of(group);
    for (uint32_t i = 0; i < tcp_peers(work); i++)
        if (!came(work, tcp_peer(work, i))) return (int32_t)group->ranks[tcp_peer(work, i)];
    for (uint32_t i = 0; i < tcp_peers(work); i++)
        if (tcp->wires[group->ranks[tcp_peer(work, i)]].count)
            return (int32_t)group->ranks[tcp_peer(work, i)];
    return -1;
}

static void progress(struct comm_group *group) {
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++)
        if (group->works[slot].busy && tcp_advance(&group->works[slot]) != ZERO_OK) return;
}

static void idle(struct comm *comm, uint64_t at_most_ns) {
    enum { LONGEST_MS = 5 }; /* a failure that the control channel receives does not wake this thread */
    uint64_t ms = (at_most_ns + 999999) / 1000000;
    tcp_pump((struct tcp_comm *)comm, ms > LONGEST_MS ? LONGEST_MS : (int)ms);
}

const struct comm_ops comm_tcp_ops = {
    .name = "tcp",
    .processes = true,
    .secret = true,
    .comm_bytes = sizeof(struct tcp_comm),
    .group_bytes = sizeof(struct tcp_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staging_bytes,
    .post = post,
    .test = test,
    .late = late,
    .progress = progress,
    .idle = idle,
};
