/* Transport sim: see sim.h.
 *
 * A call lives in the world from its first member's post to its last member's completion. Each member completes by
 * itself, from copies of all sources, because its peers may have completed earlier and changed their buffers.
 * Threads: all ranks of a world in one thread, or under one lock. There are no deadlines: only a network, if there is
 * one, has (virtual) time. */
#include "engine/comm/local/sim.h"

#include <stdlib.h>
#include <string.h>

#include "engine/comm/local/part.h"
#include "engine/comm/shape.h"
#include "engine/comm/staged.h"
#include "engine/comm/transport.h"
#include "kernels/device_work.h"

/* A posted buffer and a copy of its content at the time of the post. */
struct held {
    const void *live;
    void *copy;
    uint64_t bytes;
    uint64_t step, share; /* the call moves the first `share` of every `step` bytes */
};

enum { BUCKETS = 1024 }; /* of live calls: a world of many groups has hundreds */

struct sim_entry {
    bool posted, done;
    struct comm_record record;
    struct held source, target, staging;
};

/* The order of the calls of two groups, as a rank that is in both posted them up to a call: their hash. */
struct order {
    uint64_t groups; /* order_key */
    uint64_t hash;
    uint32_t rank;
};

struct orders {
    struct order *order;
    uint32_t count;
};

struct sim_call {
    struct sim_call *next;
    uint64_t group_key, sequence;
    uint32_t count, posted, done;
    uint32_t first;       /* the member that posted first */
    uint64_t *done_at_ns; /* per member; NULL without a network */
    struct orders orders; /* of the first member with each other group */
    const void **sources, **pointers;
    struct sim_entry entries[];
};

struct sim_world {
    uint32_t size;
    uint64_t random;
    double completion;
    bool without_data, without_staging, levels, one_order;
    const struct sim_network *network;
    bool *left;
    uint32_t left_count;
    struct comm_failure failure;
    struct sim_call *calls[BUCKETS];
};

struct sim_comm {
    struct comm base;
    struct sim_world *world;
    struct orders orders; /* so far, of each two groups of this rank */
};

struct sim_group {
    struct comm_group base;
    struct sim_call *calls[COMM_CALLS_MAX];
};

static struct sim_world *world_of(const struct comm *comm) { return ((const struct sim_comm *)comm)->world; }

/* ---- the world ---- */

struct sim_world *sim_world_create(const struct sim_options *options) {
    struct sim_world *world = calloc(1, sizeof *world);
    size_t ranks = options->ranks ? options->ranks : 1;
    if (world) world->left = calloc(ranks, sizeof *world->left);
    if (!world || !world->left) {
        sim_world_destroy(world);
        return NULL;
    }
    world->size = options->ranks;
    world->random = options->seed;
    world->completion = options->completion > 0 ? options->completion : 1;
    world->without_data = options->without_data;
    world->one_order = options->one_order;
    world->without_staging = options->without_staging;
    world->levels = options->levels;
    world->network = options->network;
    comm_failure_init(&world->failure);
    return world;
}

static void call_destroy(struct sim_call *call) {
    for (uint32_t m = 0; m < call->count; m++) {
        free(call->entries[m].source.copy);
        free(call->entries[m].target.copy);
        free(call->entries[m].staging.copy);
    }
    free(call->done_at_ns);
    free(call->orders.order);
    free(call->sources);
    free(call->pointers);
    free(call);
}

void sim_world_destroy(struct sim_world *world) {
    if (!world) return;
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (struct sim_call *call = world->calls[b], *next; call; call = next) {
            next = call->next;
            call_destroy(call);
        }
    comm_failure_destroy(&world->failure);
    free(world->left);
    free(world);
}

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct sim_world *world = options->sim;
    if (!world || world->size != comm->size)
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm sim: rank %u of %u ranks needs a sim_world of that many ranks", comm->rank,
                         comm->size);
    ((struct sim_comm *)comm)->world = world;
    comm->failure = &world->failure;
    comm->without_data = world->without_data;
    comm->one_order = world->one_order;
    comm->levels = world->levels;
    return ZERO_OK;
}

static void close_comm(struct comm *comm) {
    world_of(comm)->left[comm->rank] = true;
    world_of(comm)->left_count++;
    free(((struct sim_comm *)comm)->orders.order);
}

void sim_raise_silent(struct comm *finder, uint32_t rank, double silent_s) {
    comm_raise_silent(finder, rank, silent_s);
}

bool sim_raise_stuck(struct comm *finder, uint32_t rank, double waited_s) {
    for (const struct comm_group *group = finder->groups; group; group = group->next) {
        uint32_t theirs = member_of(group, rank);
        for (uint32_t slot = 0; slot < COMM_CALLS_MAX && theirs < group->count; slot++) {
            const struct comm_work *work = &group->works[slot];
            const struct sim_call *call = ((const struct sim_group *)group)->calls[slot];
            if (!work->busy || !call || call->entries[theirs].posted) continue;
            comm_raise_stuck(finder, group->ordinal, &work->record, rank, waited_s);
            return true;
        }
    }
    return false;
}

static zero_status group_open(struct comm_group *group) { return ZERO_OK; }

static void group_close(struct comm_group *group) {}

static void idle(struct comm *comm, uint64_t at_most_ns) {}

/* ---- posting ---- */

/* As much as transports mpi and nccl need, so that tests with sim also test the plan of the staging. */
static uint64_t staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    return world_of(group->comm)->without_staging ? 0 : staged_bytes(group, call);
}

static struct sim_call *call_create(const struct comm_group *group, uint64_t sequence) {
    struct sim_call *call = calloc(1, sizeof *call + group->count * sizeof *call->entries);
    if (!call) return NULL;
    bool timed = world_of(group->comm)->network;
    call->sources = calloc(group->count, sizeof *call->sources);
    call->pointers = calloc(group->count, sizeof *call->pointers);
    if (timed) call->done_at_ns = calloc(group->count, sizeof *call->done_at_ns);
    call->group_key = group->key, call->sequence = sequence, call->count = group->count;
    call->first = group->index;
    if (call->sources && call->pointers && (call->done_at_ns || !timed)) return call;
    call_destroy(call);
    return NULL;
}

static struct sim_call **bucket(struct sim_world *world, uint64_t group_key, uint64_t sequence) {
    return &world->calls[hash_add(group_key, sequence) % BUCKETS];
}

static struct sim_call *find_call(struct sim_world *world, const struct comm_work *work) {
    struct sim_call **list = bucket(world, work->group->key, work->record.sequence), *call = *list;
    while (call && (call->group_key != work->group->key || call->sequence != work->record.sequence))
        call = call->next;
    if (!call && (call = call_create(work->group, work->record.sequence))) {
        call->next = *list;
        *list = call;
    }
    return call;
}

/* `step`: bytes from one share to the next; the call moves the first `share` of them. 0: the call moves all bytes. */
static bool hold(struct held *held, const void *live, uint64_t bytes, uint64_t step, uint64_t share) {
    if (bytes == 0) return true;
    held->copy = malloc(bytes);
    if (!held->copy) return false;
    memcpy(held->copy, live, bytes);
    held->live = live, held->bytes = bytes;
    held->step = step ? step : bytes, held->share = step ? share : bytes;
    return true;
}

/* Poisons the target, except the part that is also the source. */
static void poison(const struct comm_call *call, uint64_t target_bytes, uint64_t source_bytes) {
    uint64_t step = call->stride * dtype_bytes(call->dtype);
    for (uint64_t at = 0; at < target_bytes && step; at += step)
        if ((const char *)call->target + at != call->source)
            memset((char *)call->target + at, 0xff, call->count * dtype_bytes(call->dtype));
    if (step) return;
    char *target = call->target, *end = target + target_bytes;
    const char *source = call->source, *source_end = source + source_bytes;
    if (source_bytes == 0 || source >= end || source_end <= target) {
        memset(target, 0xff, target_bytes);
        return;
    }
    if (source > target) memset(target, 0xff, (size_t)(source - target));
    if (source_end < end) memset(end - (end - source_end), 0xff, (size_t)(end - source_end));
}

static bool hold_buffers(const struct comm_work *work, struct sim_entry *entry) {
    const struct comm_call *call = &work->call;
    uint32_t members = work->group->count;
    uint64_t staging = call->count ? staging_bytes(work->group, call) : 0;
    uint64_t source = shape_source_bytes(call, members), target = shape_target_bytes(call, members);
    /* Its target is its source. */
    bool gives = call->kind == COMM_BROADCAST && call->root == work->group->index;
    if (target && !call->add && !gives) {
        struct comm_call poisoned = *call;
        if (call->kind != COMM_ALL_GATHER) poisoned.stride = 0; /* of the source */
        poison(&poisoned, target, source);
    }
    if (staging) memset(call->staging, 0xff, staging);
    uint64_t share = call->count * dtype_bytes(call->dtype), step = call->stride * dtype_bytes(call->dtype);
    bool gathers = call->kind == COMM_ALL_GATHER;
    return hold(&entry->source, call->source, source, gathers ? 0 : step, share) &&
           hold(&entry->target, call->target, target, gathers ? step : 0, share) &&
           hold(&entry->staging, call->staging, staging, 0, 0);
}

/* Compares with the first posted record: if every record equals the first, all are equal. */
static zero_status compare_records(const struct comm_work *work, const struct sim_call *call) {
    const struct comm_record *first = &call->entries[call->first].record;
    if (first->hash == work->record.hash) return ZERO_OK;
    return comm_raise_diverged(work->group->comm, work->group->ordinal, &work->record,
                               work->group->ranks[call->first], first);
}

/* A reduction of one member whose target is its source only reads. */
static uint64_t own_bytes(const struct comm_call *call, uint32_t members) {
    if (members > 1 || !shape_reduces(call)) return 0;
    uint64_t target = call->target == call->source ? 0 : shape_target_bytes(call, members);
    return shape_source_bytes(call, members) + (call->add ? 2 : 1) * target;
}

static void meet(const struct sim_network *network, const struct comm_work *work, struct sim_call *call) {
    struct sim_meeting meeting = {.ranks = work->group->ranks,
                                  .members = call->count,
                                  .poster = work->group->comm->rank,
                                  .source = work->call.source,
                                  .source_bytes = shape_source_bytes(&work->call, call->count),
                                  .sent = comm_call_sent(work->group, &work->call),
                                  .reduces = shape_reduces(&work->call),
                                  .own_bytes = own_bytes(&work->call, call->count)};
    network->meet(network->user, &meeting, call->done_at_ns);
}

static uint64_t order_key(uint64_t a, uint64_t b) { return a < b ? hash_add(a, b) : hash_add(b, a); }

/* A new order has rank UINT32_MAX. NULL: no memory. */
static struct order *order_of(struct orders *orders, uint64_t groups) {
    for (uint32_t i = 0; i < orders->count; i++)
        if (orders->order[i].groups == groups) return &orders->order[i];
    struct order *more = realloc(orders->order, (orders->count + 1) * sizeof *more);
    if (!more) return NULL;
    orders->order = more;
    more[orders->count] = (struct order){.groups = groups, .rank = UINT32_MAX};
    return &more[orders->count++];
}

/* Ranks that are in the same two groups must post the calls of both in one order. The first one is compared with all others. */
static zero_status compare_order(const struct comm_work *work, struct sim_call *call) {
    struct comm_group *group = work->group;
    struct sim_comm *comm = (struct sim_comm *)group->comm;
    for (const struct comm_group *other = comm->base.groups; other && comm->world->one_order;
         other = other->next) {
        uint64_t groups = order_key(group->key, other->key);
        if (other == group || group->count == 1 || other->count == 1) continue;
        struct order *mine = order_of(&comm->orders, groups), *first = order_of(&call->orders, groups);
        if (!mine || !first)
            return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                              "comm sim: no memory for the order of calls");
        mine->hash = hash_add(hash_add(mine->hash, group->key), work->record.sequence);
        if (first->rank == UINT32_MAX) *first = (struct order){groups, mine->hash, group->comm->rank};
        if (first->hash != mine->hash)
            return comm_raise(group->comm, ZERO_E_DIVERGED, (int32_t)group->comm->rank, false,
                              "comm sim: ranks %u and %u post their common calls in different orders: on a "
                              "GPU they may wait for each other forever",
                              group->comm->rank, first->rank);
    }
    return ZERO_OK;
}

static zero_status post(struct comm_work *work) {
    struct sim_world *world = world_of(work->group->comm);
    struct sim_call *call = find_call(world, work);
    ((struct sim_group *)work->group)->calls[work_slot(work)] = call;
    struct sim_entry *entry = call ? &call->entries[work->group->index] : NULL;
    if (!call || (!world->without_data && !hold_buffers(work, entry)))
        return comm_raise(work->group->comm, ZERO_E_MEMORY, (int32_t)work->group->comm->rank, false,
                          "comm sim: no memory for the copies of a call's buffers");
    entry->posted = true;
    entry->record = work->record;
    zero_status status = compare_records(work, call);
    if (!status) status = compare_order(work, call);
    if (++call->posted == call->count && world->network && !status) meet(world->network, work, call);
    return status;
}

/* ---- completing ---- */

static double next_random(struct sim_world *world) {
    world->random = hash_add(world->random, 1);
    return (double)(world->random >> 11) * 0x1p-53;
}

static const void *source_of(const struct sim_entry *entry, const struct comm_call *call) {
    return call->kind == COMM_BROADCAST ? entry->target.copy : entry->source.copy;
}

static bool untouched(const struct held *held) {
    for (uint64_t at = 0; at < held->bytes; at += held->step)
        if (memcmp((const char *)held->live + at, (const char *)held->copy + at, held->share)) return false;
    return true;
}

static zero_status check_untouched(const struct comm_work *work, const struct sim_entry *entry) {
    const char *which = !untouched(&entry->target)    ? "target"
                        : !untouched(&entry->source)  ? "source"
                        : !untouched(&entry->staging) ? "staging"
                                                      : NULL;
    if (!which) return ZERO_OK;
    char text[RECORD_TEXT_BYTES];
    return comm_raise(work->group->comm, ZERO_E_INTERNAL, (int32_t)work->group->comm->rank, false,
                      "the %s buffer of %s was overwritten between post and completion on rank %u: a posted "
                      "call's buffers belong to it until it is done",
                      which, record_text(&work->record, work->group->ordinal, text), work->group->comm->rank);
}

static void forget(struct sim_world *world, struct sim_call *call) {
    struct sim_call **link = bucket(world, call->group_key, call->sequence);
    while (*link != call) link = &(*link)->next;
    *link = call->next;
    call_destroy(call);
}

/* The members' codes, one after another, take the place of the staging. */
static zero_status complete_codes(struct comm_work *work, struct sim_call *call) {
    uint64_t bytes = shape_share_bytes(&work->call, call->count);
    struct comm_group *group = work->group;
    char *codes = malloc(call->count * bytes);
    if (!codes)
        return comm_raise(group->comm, ZERO_E_MEMORY, (int32_t)group->comm->rank, false,
                          "comm sim: no memory for a call's codes");
    for (uint32_t m = 0; m < call->count; m++)
        memcpy(codes + m * bytes, (const char *)call->sources[m] + group->index * bytes, bytes);
    kernel_dequantize_sum.run(&(struct dequantize_sum_argument){.target = work->call.target,
                                                                .codes = codes,
                                                                .count = work->call.count,
                                                                .members = call->count,
                                                                .node_members = call->count / group->nodes,
                                                                .dtype = work->call.target_dtype,
                                                                .format = work->call.code,
                                                                .add = work->call.add});
    free(codes);
    return ZERO_OK;
}

static zero_status complete(struct comm_work *work, struct sim_call *call) {
    TRY(check_untouched(work, &call->entries[work->group->index]));
    for (uint32_t m = 0; m < call->count; m++) call->sources[m] = source_of(&call->entries[m], &work->call);
    if (work->call.code) return complete_codes(work, call);
    return part_complete(work, call->count, call->sources, call->pointers);
}

static bool ready(struct sim_world *world, const struct sim_call *call, uint32_t member) {
    if (world->network) return *world->network->now_ns >= call->done_at_ns[member];
    return next_random(world) < world->completion;
}

static zero_status test(struct comm_work *work, bool *out_done) {
    struct sim_world *world = world_of(work->group->comm);
    struct sim_call *call = ((struct sim_group *)work->group)->calls[work_slot(work)];
    if (call->posted < call->count) {
        for (uint32_t m = 0; m < call->count && world->left_count; m++)
            if (!call->entries[m].posted && world->left[work->group->ranks[m]])
                return comm_raise_left(work->group->comm, work->group->ordinal, &work->record,
                                       work->group->ranks[m]);
        return ZERO_OK;
    }
    if (!ready(world, call, work->group->index)) return ZERO_OK;
    TRY(world->without_data ? ZERO_OK : complete(work, call));
    call->entries[work->group->index].done = true;
    if (++call->done == call->count) forget(world, call);
    *out_done = true;
    return ZERO_OK;
}

const struct comm_ops comm_sim_ops = {
    .name = "sim",
    .virtual_time = true,
    .comm_bytes = sizeof(struct sim_comm),
    .group_bytes = sizeof(struct sim_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .staging_bytes = staging_bytes,
    .post = post,
    .test = test,
    .idle = idle,
};
