/* clang-format off */
/* Transport local: ranks are threads of one process. The transport has no data buffers of its own: a post publishes
 * the call's pointers, and every member completes its own target from the other members' sources.
 *
 * Each group has one shared struct, with an entry per slot and member. The stamps of an entry only grow:
 *
 *   posted   = s + 1   The member has published its call s; all other members may read its source.
 *   summed   = s + 1   All-reduce: the member's share of the sum is in its target.
 *   finished = s + 1   The member has read everything that it needs from the other members.
 *
 * A call is done when all members have finished it. Therefore no member reads an entry of call s while its owner
 * overwrites the entry with call s + COMM_CALLS_MAX, and no member reads a source after its owner got it back.
 *
 * Threads: each rank's comm belongs to one thread at a time. There is no heartbeat, because threads of one process die
 * together. The transport finds a rank that takes no part in a call when this rank closes. If the rank's thread has
 * ended and no other thread continues for it (presence.h), the transport finds this after timeout_s; in all other cases
 * after 10 x timeout_s. */
/* clang-format on */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/limits.h"
#include "engine/comm/block.h"
#include "engine/comm/local/part.h"
#include "engine/comm/local/presence.h"
#include "engine/comm/shape.h"
#include "engine/comm/transport.h"

struct entry {
    _Alignas(ALIGN_BYTES) _Atomic uint64_t posted, summed, finished;
    const void *source;
    void *target;
    struct comm_record record;
};

struct shared_group {
    struct shared_group *next;
    uint64_t key;
    uint32_t count, opened, closed;
    struct entry *entries; /* [COMM_CALLS_MAX][count] */
};

/* The place where one rank sleeps. */
struct seat {
    /* The futex: counts events that may have advanced this rank's calls. */
    _Alignas(ALIGN_BYTES) _Atomic uint32_t events;
    _Atomic uint32_t sleeping;
    _Atomic bool left;
    bool taken;
    struct comm_block block; /* of this rank, since blocked_ns */
    uint64_t blocked_ns;
    struct presence presence; /* open while the seat is taken and the rank has not left */
};

struct local_world {
    uint32_t size;
    struct comm_failure failure;
    pthread_mutex_t mutex; /* protects `groups`, and `taken` and `block` of the seats */
    struct shared_group *groups;
    struct seat *seats;
};

struct local_comm {
    struct comm base;
    struct local_world *world;
    uint32_t seen; /* the value of `events` when idle last returned */
};

enum { DEVICE_POLL_NS = 20000 };

enum phase { POSTED, SUMMING, SUMMED, FINISHING, FINISHED }; /* -ING: the device may still perform the work */

struct local_group {
    struct comm_group base;
    struct shared_group *shared;
    const void **sources, **pointers; /* scratch, one per member */
    enum phase phases[COMM_CALLS_MAX];
};

/* ---- the world ---- */

struct local_world *local_world_create(uint32_t ranks) {
    struct local_world *world = calloc(1, sizeof *world);
    if (!world) return NULL;
    world->seats = aligned_alloc(ALIGN_BYTES, (ranks ? ranks : 1) * sizeof *world->seats);
    if (!world->seats) {
        free(world);
        return NULL;
    }
    memset(world->seats, 0, ranks * sizeof *world->seats);
    world->size = ranks;
    comm_failure_init(&world->failure);
    pthread_mutex_init(&world->mutex, NULL);
    return world;
}

static void shared_destroy(struct shared_group *shared) {
    free(shared->entries);
    free(shared);
}

void local_world_destroy(struct local_world *world) {
    if (!world) return;
    for (struct shared_group *shared = world->groups, *next; shared; shared = next) {
        next = shared->next;
        shared_destroy(shared);
    }
    for (uint32_t rank = 0; rank < world->size; rank++)
        if (world->seats[rank].taken && !world->seats[rank].left)
            presence_close(&world->seats[rank].presence);
    pthread_mutex_destroy(&world->mutex);
    comm_failure_destroy(&world->failure);
    free(world->seats);
    free(world);
}

static struct local_world *world_of(const struct comm *comm) {
    return ((const struct local_comm *)comm)->world;
}

/* Records that the calling thread attends this rank. */
static void attend(struct comm *comm) { presence_enter(&world_of(comm)->seats[comm->rank].presence); }

void comm_attend(struct comm *comm) {
    if (comm->ops == &comm_local_ops) attend(comm);
}

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct local_world *world = options->local;
    if (!world || world->size != comm->size)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "comm local: rank %u of %u ranks needs a local_world of that many ranks, and got one of %u",
            comm->rank, comm->size, world ? world->size : 0);
    pthread_mutex_lock(&world->mutex);
    bool taken = world->seats[comm->rank].taken;
    world->seats[comm->rank].taken = true;
    pthread_mutex_unlock(&world->mutex);
    if (taken)
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm local: rank %u of this local_world was opened before: each rank opens it once",
                         comm->rank);
    ((struct local_comm *)comm)->world = world;
    comm->failure = &world->failure;
    presence_open(&world->seats[comm->rank].presence);
    attend(comm);
    return ZERO_OK;
}

/* ---- sleeping and waking ---- */

static void wake(struct seat *seat) {
    atomic_fetch_add(&seat->events, 1);
    if (atomic_exchange(&seat->sleeping, 0)) /* the first event wakes the rank, later ones need not */
        syscall(SYS_futex, &seat->events, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void wake_members(const struct comm_group *group) {
    struct seat *seats = world_of(group->comm)->seats;
    for (uint32_t m = 0; m < group->count; m++)
        if (m != group->index) wake(&seats[group->ranks[m]]);
}

static void announce(struct comm *comm) {
    struct local_world *world = world_of(comm);
    for (uint32_t rank = 0; rank < world->size; rank++) wake(&world->seats[rank]);
}

/* Returns at once if an event happened since idle last returned. Therefore an event between a test and the sleep is
 * not lost. The kernel compares the futex with `seen` before it lets the thread sleep. */
static void idle(struct comm *comm, uint64_t at_most_ns) {
    if (comm->queued && at_most_ns > DEVICE_POLL_NS) at_most_ns = DEVICE_POLL_NS;
    struct local_comm *local = (struct local_comm *)comm;
    struct seat *seat = &local->world->seats[comm->rank];
    struct timespec at_most = {(time_t)(at_most_ns / 1000000000), (long)(at_most_ns % 1000000000)};
    attend(comm);
    atomic_store(&seat->sleeping, 1);
    if (atomic_load(&seat->events) == local->seen)
        syscall(SYS_futex, &seat->events, FUTEX_WAIT_PRIVATE, local->seen, &at_most, NULL, 0);
    atomic_store(&seat->sleeping, 0);
    local->seen = atomic_load(&seat->events);
}

void local_world_fail(struct local_world *world, const struct zero_error *error) {
    uint32_t taken = 0;
    pthread_mutex_lock(&world->mutex);
    for (uint32_t r = 0; r < world->size; r++) taken += world->seats[r].taken;
    pthread_mutex_unlock(&world->mutex);
    if (taken == world->size || !comm_failure_raise(&world->failure, error, false)) return;
    for (uint32_t r = 0; r < world->size; r++) wake(&world->seats[r]);
}

static void close_comm(struct comm *comm) {
    presence_close(&world_of(comm)->seats[comm->rank].presence);
    atomic_store(&world_of(comm)->seats[comm->rank].left, true);
    announce(comm);
}

/* ---- groups ---- */

static struct shared_group *shared_create(const struct comm_group *group) {
    struct shared_group *shared = calloc(1, sizeof *shared);
    size_t bytes = (size_t)COMM_CALLS_MAX * group->count * sizeof *shared->entries;
    if (shared) shared->entries = aligned_alloc(ALIGN_BYTES, bytes);
    if (!shared || !shared->entries) {
        free(shared);
        return NULL;
    }
    memset(shared->entries, 0, bytes);
    shared->key = group->key, shared->count = group->count;
    return shared;
}

/* The first member creates the shared struct; the other members find it. */
static struct shared_group *shared_open(struct local_world *world, const struct comm_group *group) {
    pthread_mutex_lock(&world->mutex);
    struct shared_group *shared = world->groups;
    while (shared && shared->key != group->key) shared = shared->next;
    if (!shared && (shared = shared_create(group))) {
        shared->next = world->groups;
        world->groups = shared;
    }
    if (shared) shared->opened++;
    pthread_mutex_unlock(&world->mutex);
    return shared;
}

static zero_status group_open(struct comm_group *group) {
    struct local_group *local = (struct local_group *)group;
    local->sources = malloc(group->count * sizeof *local->sources);
    local->pointers = malloc(group->count * sizeof *local->pointers);
    local->shared = shared_open(world_of(group->comm), group);
    if (local->sources && local->pointers && local->shared) return ZERO_OK;
    free(local->sources);
    free(local->pointers);
    return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                      "comm local: no memory for a group of %u ranks", group->count);
}

/* After a failure a peer may still read the shared struct, so the struct lives until the world is destroyed. */
static void group_close(struct comm_group *group) {
    struct local_group *local = (struct local_group *)group;
    struct local_world *world = world_of(group->comm);
    pthread_mutex_lock(&world->mutex);
    if (++local->shared->closed == group->count && !comm_failure_raised(&world->failure)) {
        struct shared_group **link = &world->groups;
        while (*link != local->shared) link = &(*link)->next;
        *link = local->shared->next;
        shared_destroy(local->shared);
    }
    pthread_mutex_unlock(&world->mutex);
    free(local->sources);
    free(local->pointers);
}

/* ---- calls ---- */

static struct entry *entries_of(const struct comm_work *work) {
    const struct local_group *local = (const struct local_group *)work->group;
    return local->shared->entries + (size_t)work_slot(work) * work->group->count;
}

static _Atomic uint64_t *stamp_at(struct entry *entry, size_t stamp_offset) {
    return (_Atomic uint64_t *)(void *)((char *)entry + stamp_offset);
}

/* Sets this member's stamp. Only the last member wakes the others: before it, none of them can go on. */
static void stamp(struct comm_work *work, size_t stamp_offset) {
    struct entry *entries = entries_of(work);
    atomic_store(stamp_at(&entries[work->group->index], stamp_offset), work->record.sequence + 1);
    for (uint32_t m = 0; m < work->group->count; m++)
        if (atomic_load(stamp_at(&entries[m], stamp_offset)) <= work->record.sequence) return;
    wake_members(work->group);
}

static zero_status post(struct comm_work *work) {
    struct local_group *local = (struct local_group *)work->group;
    struct entry *mine = entries_of(work) + work->group->index;
    attend(work->group->comm);
    local->phases[work_slot(work)] = POSTED;
    mine->source = part_source(&work->call);
    mine->target = work->call.target;
    mine->record = work->record;
    stamp(work, offsetof(struct entry, posted));
    return ZERO_OK;
}

/* A rank needs a thread only while another rank waits for it. */
static zero_status check_thread(const struct comm_work *work, uint32_t peer) {
    struct comm *comm = work->group->comm;
    uint64_t alone_ns = presence_alone_ns(&world_of(comm)->seats[peer].presence), now_ns = clock_now_ns();
    uint64_t gone_ns = alone_ns && now_ns > alone_ns ? now_ns - alone_ns : 0;
    if ((double)(gone_ns < work->waited_ns ? gone_ns : work->waited_ns) <= comm->timeout_s * 1e9)
        return ZERO_OK;
    char text[RECORD_TEXT_BYTES];
    return comm_raise(comm, ZERO_E_PEER, (int32_t)peer, false,
                      "the thread of rank %u ended, and did not close its communicator, without its part of "
                      "%s, for which rank %u waited %.1f s",
                      peer, record_text(&work->record, work->group->ordinal, text), comm->rank,
                      (double)work->waited_ns * 1e-9);
}

/* Reports a peer for which this rank has waited for the whole limit: either the peer is stuck, or it never opened. */
static zero_status raise_silent(const struct comm_work *work, uint32_t peer) {
    struct comm *comm = work->group->comm;
    struct local_world *world = world_of(comm);
    double waited_s = (double)work->waited_ns * 1e-9;
    pthread_mutex_lock(&world->mutex);
    bool came = world->seats[peer].taken;
    pthread_mutex_unlock(&world->mutex);
    if (came) return comm_raise_stuck(comm, work->group->ordinal, &work->record, peer, waited_s);
    return comm_raise(comm, ZERO_E_PEER, (int32_t)peer, false,
                      "rank %u did not open its communicator, for which rank %u waited %.1f s: start a "
                      "thread for each rank, with its own number",
                      peer, comm->rank, waited_s);
}

/* Finds a rank that left without taking its part, a rank whose thread ended, and a rank that has not taken its part
 * for too long. */
static zero_status check_peer(const struct comm_work *work, uint32_t member, const _Atomic uint64_t *stamp) {
    struct comm *comm = work->group->comm;
    uint32_t peer = work->group->ranks[member];
    if (atomic_load(&world_of(comm)->seats[peer].left) && atomic_load(stamp) <= work->record.sequence)
        return comm_raise_left(work->group->comm, work->group->ordinal, &work->record, peer);
    if (!work->call.patient && deadline_passed(comm->timeout_s, 0, work->waited_ns))
        return raise_silent(work, peer);
    return check_thread(work, peer);
}

/* Whether a stamp of all members has reached this call. stamp_offset: the offset of posted, summed or finished in the
 * entry. */
static zero_status reached(const struct comm_work *work, size_t stamp_offset, bool *out_reached) {
    struct entry *entries = entries_of(work);
    for (uint32_t m = 0; m < work->group->count; m++) {
        const _Atomic uint64_t *peers = stamp_at(&entries[m], stamp_offset);
        if (atomic_load_explicit(peers, memory_order_acquire) > work->record.sequence) continue;
        return check_peer(work, m, peers);
    }
    *out_reached = true;
    return ZERO_OK;
}

static zero_status compare_records(const struct comm_work *work) {
    const struct entry *entries = entries_of(work);
    for (uint32_t m = 0; m < work->group->count; m++)
        if (entries[m].record.hash != work->record.hash)
            return comm_raise_diverged(work->group->comm, work->group->ordinal, &work->record,
                                       work->group->ranks[m], &entries[m].record);
    return ZERO_OK;
}

/* The first half of an all-reduce: sums this member's share into its own target. In an in-place call this overwrites a
 * share of the member's own source, which no other member reads. */
static zero_status sum_share(struct comm_work *work, const void *const *sources, const void **pointers) {
    const struct comm_call *call = &work->call;
    uint32_t members = work->group->count, me = work->group->index;
    uint64_t first = shape_first(call, members, me);
    return part_sum(work, members, sources, first, shape_count(call, members, me), first, pointers);
}

/* The second half: copies the other members' shares from their targets. */
static zero_status gather_shares(struct comm_work *work) {
    const struct comm_call *call = &work->call;
    const struct entry *entries = entries_of(work);
    uint32_t members = work->group->count, bytes = dtype_bytes(call->target_dtype);
    for (uint32_t m = 0; m < members; m++) {
        uint64_t first = shape_first(call, members, m), count = shape_count(call, members, m);
        if (m == work->group->index) continue;
        TRY(part_copy(work, (char *)call->target + first * bytes,
                      (const char *)entries[m].target + first * bytes, count * bytes));
    }
    return ZERO_OK;
}

/* An all-reduce with `add` needs the sum without the target's old content, and no target holds this sum. Therefore
 * every member computes the whole sum. */
static bool in_halves(const struct comm_call *call) { return call->kind == COMM_ALL_REDUCE && !call->add; }

/* ---- a call's phases: each phase waits for the members or for this rank's device, then starts the next ---- */

static zero_status take_part(struct comm_work *work) {
    struct local_group *local = (struct local_group *)work->group;
    struct entry *entries = entries_of(work);
    TRY(compare_records(work));
    for (uint32_t m = 0; m < work->group->count; m++) local->sources[m] = entries[m].source;
    bool halves = in_halves(&work->call);
    local->phases[work_slot(work)] = halves ? SUMMING : FINISHING;
    return halves ? sum_share(work, local->sources, local->pointers)
                  : part_complete(work, work->group->count, local->sources, local->pointers);
}

static zero_status take_shares(struct comm_work *work) {
    ((struct local_group *)work->group)->phases[work_slot(work)] = FINISHING;
    return gather_shares(work);
}

static zero_status say(struct comm_work *work, enum phase phase, size_t stamp_offset) {
    ((struct local_group *)work->group)->phases[work_slot(work)] = phase;
    stamp(work, stamp_offset);
    return ZERO_OK;
}

static zero_status ends(struct comm_work *work, enum phase phase, bool *out_ends) {
    switch (phase) {
    case POSTED:
        return reached(work, offsetof(struct entry, posted), out_ends);
    case SUMMED:
        return reached(work, offsetof(struct entry, summed), out_ends);
    case SUMMING:
    case FINISHING:
        return part_done(work, out_ends);
    default:
        return ZERO_OK;
    }
}

static zero_status go_on(struct comm_work *work, enum phase phase) {
    switch (phase) {
    case POSTED:
        return take_part(work);
    case SUMMING:
        return say(work, SUMMED, offsetof(struct entry, summed));
    case SUMMED:
        return take_shares(work);
    default:
        return say(work, FINISHED, offsetof(struct entry, finished));
    }
}

/* Advances this member's own part of a call as far as possible. */
static zero_status drive(struct comm_work *work) {
    const enum phase *phase = &((struct local_group *)work->group)->phases[work_slot(work)];
    zero_status status = ZERO_OK;
    for (bool moved = true; moved && status == ZERO_OK;) {
        moved = false;
        status = ends(work, *phase, &moved);
        if (moved && status == ZERO_OK) status = go_on(work, *phase);
    }
    return status;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    const struct local_group *local = (const struct local_group *)work->group;
    attend(work->group->comm);
    zero_status status = drive(work);
    if (status != ZERO_OK || local->phases[work_slot(work)] != FINISHED) return status;
    return reached(work, offsetof(struct entry, finished), out_done);
}

/* ---- ranks that wait for each other in different calls (block.h) ---- */

static const struct comm_group *group_of(const struct comm *comm, uint64_t key) {
    const struct comm_group *group = comm->groups;
    while (group && group->key != key) group = group->next;
    return group;
}

/* The peer is a member of the group, and has not posted this call. */
static bool lacks(const struct comm_group *group, uint64_t sequence, uint32_t peer) {
    const struct shared_group *shared = ((const struct local_group *)group)->shared;
    uint32_t m = member_of(group, peer);
    return m < group->count &&
           atomic_load(&shared->entries[sequence % COMM_CALLS_MAX * group->count + m].posted) <= sequence;
}

static bool wait_for_each_other(const struct comm *comm, const struct comm_block *mine, uint32_t peer,
                                const struct comm_block *theirs) {
    bool so = theirs->calls;
    for (uint64_t i = 0; i < theirs->calls && so; i++) {
        const struct comm_group *group = group_of(comm, theirs->call[i].key);
        so = group && group->sequence <= theirs->call[i].sequence;
    }
    for (uint64_t i = 0; i < mine->calls && so; i++)
        so = lacks(group_of(comm, mine->call[i].key), mine->call[i].sequence, peer);
    return so;
}

static void block(struct comm *comm, const struct comm_block *mine, bool again) {
    struct local_world *world = world_of(comm);
    struct seat *own = &world->seats[comm->rank];
    struct comm_block theirs;
    uint64_t now_ns = clock_now_ns();
    uint32_t peer = 0;
    bool found = false;
    pthread_mutex_lock(&world->mutex);
    if (!again) own->block = *mine, own->blocked_ns = now_ns;
    for (; again && now_ns - own->blocked_ns >= BLOCK_NS && peer < world->size && !found; peer += !found) {
        const struct seat *seat = &world->seats[peer];
        if (peer == comm->rank || !seat->taken || !seat->block.calls || now_ns < seat->blocked_ns + BLOCK_NS)
            continue;
        theirs = seat->block;
        found = wait_for_each_other(comm, mine, peer, &theirs);
    }
    pthread_mutex_unlock(&world->mutex);
    if (found) block_raise(comm, mine, peer, &theirs);
}

/* With several members, the others read this member's source on streams of their own. */
static bool in_order(const struct comm_group *group) { return group->count == 1; }

static bool queued(const struct comm_work *work, uint64_t *out_ticket) {
    enum phase phase = ((const struct local_group *)work->group)->phases[work_slot(work)];
    return (phase == FINISHING || phase == FINISHED) && part_queued(work, out_ticket);
}

static void progress(struct comm_group *group) {
    const struct local_group *local = (const struct local_group *)group;
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++)
        if (group->works[slot].busy && local->phases[slot] != FINISHED &&
            drive(&group->works[slot]) != ZERO_OK)
            return;
}

const struct comm_ops comm_local_ops = {
    .name = "local",
    .comm_bytes = sizeof(struct local_comm),
    .group_bytes = sizeof(struct local_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .block = block,
    .post = post,
    .test = test,
    .in_order = in_order,
    .streams = part_streams,
    .queued = queued,
    .progress = progress,
    .idle = idle,
    .announce = announce,
};
