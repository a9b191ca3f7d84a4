/* Transport threads: ranks are threads of one process, which meet by a number (options.master_port). A post publishes
 * the call's source. When all members have posted, each takes its part from the others' sources; the call is done when
 * all have taken theirs. An all-reduce may be in place, so it goes through staging: no member overwrites its source
 * before all have read it. Host memory only. Ranks poll; they do not sleep until an event.
 *
 * Threads: each rank's comm belongs to one thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/limits.h"
#include "engine/comm/local/part.h"
#include "engine/comm/shape.h"
#include "engine/comm/transport.h"

enum { IDLE_NS = 20000 };

/* One member's view of a call. The stamps are the call's sequence + 1, and only grow. */
struct cell {
    _Atomic uint64_t posted, taken;
    const void *source;
    struct comm_record record;
};

struct shared_group {
    struct shared_group *next;
    uint64_t key;
    struct cell *cells; /* [COMM_CALLS_MAX][members] */
};

struct world {
    struct world *next;
    uint32_t meeting, size, closed;
    struct comm_failure failure;
    struct shared_group *groups;
    _Atomic bool left[]; /* by rank */
};

struct threads_comm {
    struct comm base;
    struct world *world;
};

struct threads_group {
    struct comm_group base;
    struct shared_group *shared;
    const void **sources, **pointers; /* scratch, one per member */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects `worlds`, their groups, and `closed` */
static struct world *worlds;

static struct world *world_of(const struct comm *comm) { return ((const struct threads_comm *)comm)->world; }

/* ---- opening: the first creates, the others find ---- */

static struct world *world_join(uint32_t meeting, uint32_t size) {
    struct world *world = worlds;
    while (world && (world->meeting != meeting || world->size != size)) world = world->next;
    if (world || !(world = calloc(1, sizeof *world + size * sizeof *world->left))) return world;
    world->meeting = meeting, world->size = size, world->next = worlds;
    comm_failure_init(&world->failure);
    return worlds = world;
}

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    pthread_mutex_lock(&mutex);
    struct world *world = world_join(options->master_port, comm->size);
    pthread_mutex_unlock(&mutex);
    if (!world) return error_set(error, ZERO_E_MEMORY, "comm threads: no memory for a world");
    ((struct threads_comm *)comm)->world = world;
    comm->failure = &world->failure;
    return ZERO_OK;
}

static void world_free(struct world *world) {
    struct world **link = &worlds;
    while (*link != world) link = &(*link)->next;
    *link = world->next;
    for (struct shared_group *group = world->groups, *next; group; group = next) {
        next = group->next;
        free(group->cells);
        free(group);
    }
    comm_failure_destroy(&world->failure);
    free(world);
}

static void close_comm(struct comm *comm) {
    struct world *world = world_of(comm);
    atomic_store(&world->left[comm->rank], true);
    pthread_mutex_lock(&mutex);
    if (++world->closed == world->size) world_free(world);
    pthread_mutex_unlock(&mutex);
}

static struct shared_group *shared_join(struct world *world, const struct comm_group *group) {
    struct shared_group *shared = world->groups;
    while (shared && shared->key != group->key) shared = shared->next;
    if (shared || !(shared = calloc(1, sizeof *shared))) return shared;
    shared->cells = calloc((size_t)COMM_CALLS_MAX * group->count, sizeof *shared->cells);
    if (!shared->cells) return free(shared), NULL;
    shared->key = group->key, shared->next = world->groups;
    return world->groups = shared;
}

static zero_status group_open(struct comm_group *group) {
    struct threads_group *threads = (struct threads_group *)group;
    threads->sources = calloc(group->count, sizeof *threads->sources);
    threads->pointers = calloc(group->count, sizeof *threads->pointers);
    pthread_mutex_lock(&mutex);
    threads->shared = shared_join(world_of(group->comm), group);
    pthread_mutex_unlock(&mutex);
    if (threads->sources && threads->pointers && threads->shared) return ZERO_OK;
    free(threads->sources);
    free(threads->pointers);
    return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                      "comm threads: no memory for a group of %u ranks", group->count);
}

/* What members share lives as long as the world: a peer may still read it. */
static void group_close(struct comm_group *group) {
    free(((struct threads_group *)group)->sources);
    free(((struct threads_group *)group)->pointers);
}

/* ---- calls ---- */

static struct cell *cells_of(const struct comm_work *work) {
    return ((const struct threads_group *)work->group)->shared->cells +
           (size_t)work_slot(work) * work->group->count;
}

static bool staged(const struct comm_call *call) { return call->kind == COMM_ALL_REDUCE && !call->add; }

static uint64_t staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    return staged(call) ? shape_target_bytes(call, group->count) : 0;
}

static zero_status post(struct comm_work *work) {
    struct cell *mine = cells_of(work) + work->group->index;
    mine->source = part_source(&work->call);
    mine->record = work->record;
    atomic_store(&mine->posted, work->record.sequence + 1);
    return ZERO_OK;
}

/* A member that has not come yet: it may have left, or be late. */
static zero_status check_peer(const struct comm_work *work, uint32_t peer, bool left) {
    struct comm *comm = work->group->comm;
    if (left) return comm_raise_left(comm, work->group->ordinal, &work->record, peer);
    if (work->call.patient || !deadline_passed(comm->timeout_s, 0, work->waited_ns)) return ZERO_OK;
    return comm_raise_stuck(comm, work->group->ordinal, &work->record, peer, (double)work->waited_ns * 1e-9);
}

/* *out_all: all members have posted the call, or with `taken`: have taken their parts. */
static zero_status all_members(const struct comm_work *work, bool taken, bool *out_all) {
    struct cell *cells = cells_of(work);
    *out_all = false;
    for (uint32_t m = 0; m < work->group->count; m++) {
        uint32_t peer = work->group->ranks[m];
        /* a rank sets its stamps, then leaves: so `left` is read first */
        bool left = atomic_load(&world_of(work->group->comm)->left[peer]);
        if (atomic_load(taken ? &cells[m].taken : &cells[m].posted) <= work->record.sequence)
            return check_peer(work, peer, left);
    }
    *out_all = true;
    return ZERO_OK;
}

static zero_status take(struct comm_work *work) {
    struct threads_group *threads = (struct threads_group *)work->group;
    struct cell *cells = cells_of(work);
    struct comm_work part = *work;
    for (uint32_t m = 0; m < work->group->count; m++) {
        threads->sources[m] = cells[m].source;
        if (cells[m].record.hash != work->record.hash)
            return comm_raise_diverged(work->group->comm, work->group->ordinal, &work->record,
                                       work->group->ranks[m], &cells[m].record);
    }
    if (staged(&work->call)) part.call.target = work->call.staging;
    return part_complete(&part, work->group->count, threads->sources, threads->pointers);
}

/* Takes this rank's part as soon as all members have posted. */
static zero_status drive(struct comm_work *work, bool *out_taken) {
    struct cell *mine = cells_of(work) + work->group->index;
    *out_taken = atomic_load(&mine->taken) > work->record.sequence;
    if (*out_taken) return ZERO_OK;
    zero_status status = all_members(work, false, out_taken);
    if (!status && *out_taken) status = take(work);
    if (!status && *out_taken) atomic_store(&mine->taken, work->record.sequence + 1);
    return status;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    zero_status status = drive(work, out_done);
    if (!status && *out_done) status = all_members(work, true, out_done);
    if (!status && *out_done && staged(&work->call) && work->call.count)
        memcpy(work->call.target, work->call.staging, staging_bytes(work->group, &work->call));
    return status;
}

static void progress(struct comm_group *group) {
    bool taken;
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++)
        if (group->works[slot].busy && drive(&group->works[slot], &taken)) return;
}

static void idle(struct comm *comm, uint64_t at_most_ns) {
    struct timespec nap = {0, (long)(at_most_ns < IDLE_NS ? at_most_ns : IDLE_NS)};
    nanosleep(&nap, NULL);
}

const struct comm_ops comm_threads_ops = {
    .name = "threads",
    .comm_bytes = sizeof(struct threads_comm),
    .group_bytes = sizeof(struct threads_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staging_bytes,
    .post = post,
    .test = test,
    .progress = progress,
    .idle = idle,
};
