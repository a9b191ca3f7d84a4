/* The front: checks arguments, keeps fingerprints, counters and the sticky error, and passes calls on to the
 * transport. */
#include "engine/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/limits.h"
#include "engine/comm/control.h"
#include "engine/comm/shape.h"
#include "engine/comm/transport.h"
#include "engine/device/device.h"

/* ---- failures ---- */

/* Takes over a failure that any rank raised. `verb` and `record` describe this rank's current call for the message. */
static zero_status take_over(struct comm_group *group, const char *verb, const struct comm_record *record) {
    struct comm *comm = group->comm;
    if (comm->error.code || !comm_failure_raised(comm->failure)) return comm->error.code;
    comm->error = comm->failure->error;
    if (comm->failure->waits) {
        char text[RECORD_TEXT_BYTES];
        size_t used = strlen(comm->error.message);
        used += (size_t)snprintf(comm->error.message + used, sizeof comm->error.message - used,
                                 " while rank %u %s %s", comm->rank, verb,
                                 record_text(record, group->ordinal, text));
        if (used >= sizeof comm->error.message) return comm->error.code;
        if (comm->error.rank != (int32_t)comm->rank)
            snprintf(comm->error.message + used, sizeof comm->error.message - used,
                     "; see the log of rank %d", comm->error.rank);
        else if (comm->error.code == ZERO_E_PEER)
            snprintf(comm->error.message + used, sizeof comm->error.message - used,
                     "; this is rank %u: what it sends does not reach the other ranks", comm->rank);
    }
    return comm->error.code;
}

/* Takes over a raised failure. If a transport returns a failure and has not raised it, sets an error for that. */
static zero_status take_over_status(struct comm_work *work, zero_status status) {
    zero_status taken = take_over(work->group, "waited in", &work->record);
    if (taken || status == ZERO_OK) return taken;
    return error_set(&work->group->comm->error, status, "comm %s: rank %u: a call failed without a message",
                     work->group->comm->ops->name, work->group->comm->rank);
}

void comm_fail(struct comm *comm, const struct zero_error *error) {
    if (comm->error.code == ZERO_OK) {
        comm->error = *error;
        if (comm->error.code == ZERO_OK) comm->error.code = ZERO_E_PEER;
    }
    struct zero_error told = {.rank = (int32_t)comm->rank, .step = error->step};
    error_set(&told, ZERO_E_PEER, "rank %u failed: %s", comm->rank, error->message);
    comm_raise_error(comm, &told, false);
}

void comm_abandon(struct comm *comm) {
    if (comm && comm->ops->abandon) comm->ops->abandon(comm);
}

const struct zero_error *comm_error(const struct comm *comm) { return &comm->error; }
const struct zero_error *comm_group_error(const struct comm_group *group) { return &group->comm->error; }
const struct zero_error *comm_work_error(const struct comm_work *work) { return &work->group->comm->error; }

/* ---- opening ---- */

const char *comm_transport_name(const struct comm_ops *transport) { return transport->name; }
bool comm_of_processes(const struct comm_ops *transport) { return transport->processes; }
bool comm_takes_secret(const struct comm_ops *transport) { return transport->secret; }
bool comm_native_fp32(const struct comm_ops *transport) { return transport->native_fp32; }

zero_status comm_open(const struct comm_ops *ops, const struct comm_options *options, struct comm **out_comm,
                      struct zero_error *error) {
    struct comm_options one = *options;
    *out_comm = NULL;
    if (ops->alone && ops->alone(options)) ops = &comm_self_ops, one.rank = 0, one.size = 1, options = &one;
    struct comm *comm = calloc(1, ops->comm_bytes);
    if (!comm) return error_set(error, ZERO_E_MEMORY, "comm %s: no memory for a communicator", ops->name);
    comm->ops = ops;
    comm->rank = options->rank, comm->size = options->size;
    comm->timeout_s = options->timeout_s > 0 ? options->timeout_s : COMM_TIMEOUT_S;
    comm->interrupted = options->interrupted, comm->interrupted_user = options->interrupted_user;
    comm->log = options->log;
    comm->levels = ops->levels;
    comm->device = options->device && options->device->discrete ? options->device : NULL;
    error_clear(&comm->error);
    zero_status status = ZERO_OK;
    if (!ops->knows_ranks && (comm->size == 0 || comm->size > RANKS_MAX || comm->rank >= comm->size))
        status = error_set(error, ZERO_E_ARGUMENT, "comm %s: rank %u of %u ranks: sizes are 1 to %d",
                           ops->name, comm->rank, comm->size, (int)RANKS_MAX);
    if (status == ZERO_OK) status = ops->open(comm, options, error);
    if (status != ZERO_OK) {
        free(comm);
        return status;
    }
    *out_comm = comm;
    return ZERO_OK;
}

void comm_close(struct comm *comm) {
    if (!comm) return;
    comm->ops->close(comm);
    free(comm->opened);
    free(comm);
}

const char *comm_name(const struct comm *comm) { return comm->ops->name; }
uint32_t comm_rank(const struct comm *comm) { return comm->rank; }
uint32_t comm_size(const struct comm *comm) { return comm->size; }

static bool members_valid(const struct comm *comm, const uint32_t *ranks, uint32_t count) {
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= comm->size || (i && ranks[i] <= ranks[i - 1])) return false;
        found |= ranks[i] == comm->rank;
    }
    return found;
}

/* Open groups of the same members share their list. */
static struct comm_members *members_take(const struct comm *comm, const uint32_t *ranks, uint32_t count) {
    struct comm_members *members;
    for (const struct comm_group *g = comm->groups; g; g = g->next)
        if (g->count == count && memcmp(g->ranks, ranks, count * sizeof *ranks) == 0) return g->members;
    members = malloc(sizeof *members + count * sizeof *ranks);
    if (!members) return NULL;
    members->holders = 0, members->hash = hash_add(0, count);
    for (uint32_t i = 0; i < count; i++) members->hash = hash_add(members->hash, ranks[i]);
    memcpy(members->rank, ranks, count * sizeof *ranks);
    return members;
}

/* `group` is not in its comm's list. */
static void group_free(struct comm_group *group) {
    if (--group->members->holders == 0) free(group->members);
    free(group);
}

/* The key is equal on all members: a hash of the members' ranks and of the number of earlier groups with the same
 * members. */
static bool group_key(struct comm *comm, uint64_t members, uint64_t *out_key) {
    if (comm->opened_count == comm->opened_capacity) {
        uint32_t capacity = comm->opened_capacity ? 2 * comm->opened_capacity : 8;
        uint64_t *opened = realloc(comm->opened, capacity * sizeof *opened);
        if (!opened) return false;
        comm->opened = opened, comm->opened_capacity = capacity;
    }
    uint64_t before = 0;
    for (uint32_t i = 0; i < comm->opened_count; i++) before += comm->opened[i] == members;
    comm->opened[comm->opened_count++] = members;
    *out_key = hash_add(members, before);
    return true;
}

static zero_status no_group(struct comm *comm, uint32_t count) {
    return error_set(&comm->error, ZERO_E_MEMORY, "comm %s: no memory for a group of %u ranks",
                     comm->ops->name, count);
}

static zero_status open_group(struct comm *comm, struct comm_members *members, uint32_t count,
                              struct comm_group **out_group) {
    struct comm_group *group = calloc(1, comm->ops->group_bytes);
    if (!group && !members->holders) free(members);
    if (!group) return no_group(comm, count);
    group->comm = comm, group->members = members, group->ranks = members->rank, group->count = count;
    group->index = member_of(group, comm->rank), group->nodes = 1;
    members->holders++;
    if (!group_key(comm, members->hash, &group->key)) {
        group_free(group);
        return no_group(comm, count);
    }
    group->ordinal = comm->opened_count - 1;
    zero_status status = comm->ops->group_open(group);
    if (status != ZERO_OK) {
        error_pass(&comm->error, &comm->failure->error);
        group_free(group);
        return status;
    }
    group->next = comm->groups;
    comm->groups = group;
    *out_group = group;
    return ZERO_OK;
}

zero_status comm_group_open(struct comm *comm, const uint32_t *ranks, uint32_t count,
                            struct comm_group **out_group) {
    *out_group = NULL;
    if (comm->error.code) return comm->error.code;
    if (!members_valid(comm, ranks, count))
        return error_set(&comm->error, ZERO_E_ARGUMENT,
                         "comm %s: rank %u cannot open a group of %u ranks: members must ascend, be below "
                         "%u, and include the caller",
                         comm->ops->name, comm->rank, count, comm->size);
    struct comm_members *members = members_take(comm, ranks, count);
    return members ? open_group(comm, members, count, out_group) : no_group(comm, count);
}

zero_status comm_group_open_like(struct comm *comm, const struct comm_group *other,
                                 struct comm_group **out_group) {
    *out_group = NULL;
    return comm->error.code ? comm->error.code : open_group(comm, other->members, other->count, out_group);
}

/* A rank that closes first finishes its posted calls, because other ranks may wait in them. After the time limit it
 * raises a failure for all ranks. At most PASS_NS between two tests count: while this rank gets no CPU time, the others
 * may get none either, and what they sent has not been read. */
static void finish_call(struct comm_work *work) {
    enum { AT_MOST_NS = 1000000, PASS_NS = 10000000, LEAVE_NS = 1000000000 };
    struct comm *comm = work->group->comm;
    uint64_t limit_ns = comm->timeout_s < LEAVE_NS * 1e-9 ? (uint64_t)(comm->timeout_s * 1e9) : LEAVE_NS;
    bool done = false;
    for (uint64_t tested_ns = clock_now_ns(); comm_test(work, &done) == ZERO_OK && !done;) {
        uint64_t now_ns = clock_now_ns(), passed_ns = now_ns - tested_ns;
        comm->leaving_ns += passed_ns < PASS_NS ? passed_ns : PASS_NS;
        tested_ns = now_ns;
        if (comm->leaving_ns > limit_ns) {
            char text[RECORD_TEXT_BYTES];
            comm_raise(comm, ZERO_E_PEER, (int32_t)comm->rank, true,
                       "rank %u closed its communicator before %s was done: its loop ended earlier than that "
                       "of the others",
                       comm->rank, record_text(&work->record, work->group->ordinal, text));
            return;
        }
        comm_idle(comm, AT_MOST_NS);
    }
}

void comm_group_close(struct comm_group *group) {
    if (!group) return;
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX && !group->comm->ops->virtual_time; slot++)
        if (group->works[slot].busy) finish_call(&group->works[slot]);
    struct comm_group **link = &group->comm->groups;
    while (*link != group) link = &(*link)->next;
    *link = group->next;
    group->comm->ops->group_close(group);
    group_free(group);
}

uint32_t comm_group_size(const struct comm_group *group) { return group->count; }
uint32_t comm_group_index(const struct comm_group *group) { return group->index; }
const uint32_t *comm_group_ranks(const struct comm_group *group) { return group->ranks; }
uint32_t comm_group_node_members(const struct comm_group *group) { return group->count / group->nodes; }
bool comm_group_levels(const struct comm_group *group) { return group_levels(group); }

void comm_group_place(struct comm_group *group, uint32_t node_ranks, uint32_t step) {
    uint32_t members = step && node_ranks % step == 0 ? node_ranks / step : 1;
    group->nodes = members && group->count % members == 0 ? group->count / members : 1;
}

/* ---- calls ---- */

uint64_t comm_staging_bytes(const struct comm_group *group, const struct comm_call *call) {
    const struct comm_ops *ops = group->comm->ops;
    return ops->staging_bytes ? ops->staging_bytes(group, call) : 0;
}

bool comm_group_full(const struct comm_group *group) {
    return group->works[group->sequence % COMM_CALLS_MAX].busy;
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

/* The overlaps that a call allows: see enum comm_kind. */
static bool in_place(const struct comm_group *group, const struct comm_call *call) {
    uint64_t own = group->index * shape_stride(call) * dtype_bytes(call->dtype);
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return (const char *)call->source == (const char *)call->target + own;
    case COMM_REDUCE_SCATTER:
        return call->target_dtype == call->dtype && !call->add &&
               (const char *)call->target == (const char *)call->source + own;
    case COMM_ALL_REDUCE:
        return call->target_dtype == call->dtype && !call->add && call->target == call->source;
    default:
        return false;
    }
}

/* Says what is wrong with a call; NULL: nothing. */
static const char *find_fault(const struct comm_group *group, const struct comm_call *call) {
    if ((uint32_t)call->kind >= COMM_KINDS) return "there is no such kind of call";
    if (call->kind == COMM_BARRIER) return NULL;
    if ((uint32_t)call->dtype >= DTYPES) return "there is no such dtype";
    if (shape_stride(call) > (UINT64_MAX >> 4) / group->count)
        return "the count is too large for 64-bit sizes";
    if (shape_stride(call) < call->count) return "the shares overlap: the stride is below the count";
    if (call->stride && call->kind != COMM_ALL_GATHER && (call->kind != COMM_REDUCE_SCATTER || call->native))
        return "only an all-gather and an ordered reduce-scatter take a stride";
    if (shape_reduces(call)) {
        bool coded = call->code;
        if (coded &&
            (call->kind != COMM_REDUCE_SCATTER || call->stride || call->native || !group_levels(group)))
            return "codes are summed by ordered reduce-scatters by levels, without a stride";
        if ((call->dtype == DTYPE_U8) != coded) return "u8 cannot be summed: reduce fp32, bf16 or fp16";
        if (call->target_dtype != DTYPE_F32 && call->target_dtype != call->dtype && !coded)
            return "target_dtype must be dtype or fp32";
        if (call->add && call->kind == COMM_ALL_REDUCE && call->target_dtype != DTYPE_F32)
            return "an all-reduce with add needs an fp32 target";
    }
    if (call->written && call->kind != COMM_REDUCE_SCATTER) return "only a reduce-scatter calls `written`";
    if (call->kind == COMM_BROADCAST && call->root >= group->count)
        return "root is not an index in the group";
    if (group->comm->without_data || call->count == 0) return NULL;
    uint64_t source_bytes = shape_source_bytes(call, group->count),
             target_bytes = shape_target_bytes(call, group->count);
    if ((source_bytes && !call->source) || !call->target) return "source or target is NULL";
    if (!call->staging && comm_staging_bytes(group, call))
        return "staging is NULL where comm_staging_bytes is not 0";
    if (overlap(call->source, source_bytes, call->target, target_bytes) && !in_place(group, call))
        return "source and target overlap in another way than the in-place form";
    return NULL;
}

/* The formulas are in comm.h (struct comm_counters). */
struct comm_sent comm_call_sent(const struct comm_group *group, const struct comm_call *call) {
    struct comm_sent sent = {0};
    uint64_t share = shape_share(call, group->count), bytes = shape_share_bytes(call, group->count);
    bool ordered = shape_reduces(call) && !call->native;
    if (call->kind == COMM_BARRIER) return sent;
    sent.elements = (group->count - 1) * share;
    if (ordered && group_levels(group)) {
        sent.inside = (group->count - group->nodes) * bytes;
        sent.between = (group->nodes - 1) * share * sizeof(float);
    } else if (ordered || call->kind == COMM_ALL_TO_ALL) {
        sent.straight = (group->count - 1) * bytes;
    } else {
        sent.ring = (group->count - 1) * bytes;
    }
    if (call->kind == COMM_ALL_REDUCE) {
        sent.ring += sent.elements * dtype_bytes(call->target_dtype);
        sent.elements *= 2;
    }
    sent.bytes = sent.ring + sent.straight + sent.inside + sent.between;
    return sent;
}

static void count_call(struct comm_group *group, const struct comm_call *call) {
    struct comm_counters *counters = &group->comm->counters;
    struct comm_sent sent = comm_call_sent(group, call);
    counters->calls[call->kind]++;
    if (call->kind == COMM_BROADCAST && call->root != group->index) return;
    counters->elements[call->kind] += sent.elements;
    counters->bytes += sent.bytes;
}

static zero_status refuse(struct comm_group *group, const struct comm_record *record, zero_status code,
                          const char *why) {
    char text[RECORD_TEXT_BYTES];
    struct zero_error error = {.code = code, .rank = (int32_t)group->comm->rank};
    snprintf(error.message, sizeof error.message, "comm %s: rank %u cannot post %s: %s",
             group->comm->ops->name, group->comm->rank, record_text(record, group->ordinal, text), why);
    comm_fail(group->comm, &error);
    return code;
}

zero_status comm_post(struct comm_group *group, const struct comm_call *call, struct comm_work **out_work) {
    struct comm *comm = group->comm;
    struct comm_work *work = &group->works[group->sequence % COMM_CALLS_MAX];
    struct comm_record record;
    record_make(call, group->sequence, group->hash, &record);
    TRY(take_over(group, "posted", &record));
    if (work->busy)
        return refuse(group, &record, ZERO_E_ORDER,
                      "16 calls are in flight and the oldest is not done: test it first (comm_group_full)");
    const char *fault = find_fault(group, call);
    if (fault) return refuse(group, &record, ZERO_E_ARGUMENT, fault);
    *work = (struct comm_work){
        .group = group, .call = *call, .record = record, .posted_ns = clock_now_ns(), .busy = true};
    work->call.what = work->record.what; /* the caller may free its own text */
    group->sequence++;
    group->hash = record.hash;
    /* A sum, because ranks may post to different groups in different orders. */
    comm->fingerprint += hash_add(group->ordinal, record.hash);
    count_call(group, call);
    zero_status status = take_over_status(work, comm->ops->post(work));
    if (status == ZERO_OK) *out_work = work;
    return status;
}

/* At most 100 ms between two tests count, so that neither the host program's own computing nor a time in which the process was
 * stopped counts as waiting. */
static void count_wait(struct comm_work *work) {
    const uint64_t AT_MOST_NS = 100000000;
    uint64_t now_ns = clock_now_ns(), passed_ns = work->tested_ns ? now_ns - work->tested_ns : 0;
    work->tested_ns = now_ns;
    atomic_store_explicit(&work->group->comm->tested_ns, now_ns, memory_order_relaxed);
    work->waited_ns += passed_ns < AT_MOST_NS ? passed_ns : AT_MOST_NS;
}

/* Limits the wait for a call that all ranks have posted and whose data never arrives. A rank that did not post is reported
 * earlier, after 10 x timeout_s. A patient call has no limit: the log says once that it waits. */
static zero_status judge_wait(struct comm_work *work) {
    struct comm *comm = work->group->comm;
    const struct comm_ops *ops = comm->ops;
    uint64_t grace_ns = (uint64_t)(comm->timeout_s * 2e9);
    if (ops->virtual_time || work->told || !deadline_passed(comm->timeout_s, grace_ns, work->waited_ns))
        return ZERO_OK;
    char text[RECORD_TEXT_BYTES], who[32] = "a rank";
    int32_t rank = ops->late ? ops->late(work) : -1;
    if (rank >= 0) snprintf(who, sizeof who, "rank %d", (int)rank);
    record_text(&work->record, work->group->ordinal, text);
    work->told = work->call.patient;
    if (work->told)
        return log_line(&comm->log, ZERO_LOG_WARN,
                        "rank %u has waited %.0f s for %s in %s, and goes on waiting, because no rank is "
                        "silent: if that rank's files do not grow, its drive or file system stands still",
                        comm->rank, (double)work->waited_ns * 1e-9, who, text),
               ZERO_OK;
    return comm_raise(comm, ZERO_E_PEER, rank, false,
                      "rank %u waited %.1f s for %s, and the part of %s never arrived: a connection loses "
                      "data, or that rank no longer tests its calls (the limit is 12 x timeout_s, %g s)",
                      comm->rank, (double)work->waited_ns * 1e-9, text, who, comm->timeout_s);
}

zero_status comm_test(struct comm_work *work, bool *out_done) {
    *out_done = false;
    TRY(take_over(work->group, "waited in", &work->record));
    bool done = false;
    count_wait(work);
    zero_status status = work->group->comm->ops->test(work, &done);
    if (status == ZERO_OK && !done) status = judge_wait(work);
    status = take_over_status(work, status);
    if (status) return status;
    if (done) work->busy = false;
    *out_done = done;
    return ZERO_OK;
}

bool comm_group_in_order(const struct comm_group *group) {
    const struct comm_ops *ops = group->comm->ops;
    return group->comm->device && ops->in_order && ops->in_order(group);
}

bool comm_one_order(const struct comm *comm) { return comm->one_order; }

uint8_t comm_streams(const struct comm_group *group, const struct comm_call *call) {
    return group->comm->ops->streams(call);
}

bool comm_work_queued(const struct comm_work *work, uint64_t *out_ticket) {
    return work->group->comm->ops->queued(work, out_ticket);
}

uint64_t comm_alone_bytes(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    const struct comm *comm = work->group->comm;
    if (!comm->ops->perform || comm->device || work->begun) return 0;
    bool copies = call->kind == COMM_ALL_GATHER || call->kind == COMM_ALL_TO_ALL;
    if (shape_reduces(call)) return call->count * dtype_bytes(call->target_dtype);
    return copies && call->source != call->target ? call->count * dtype_bytes(call->dtype) : 0;
}

void comm_perform(struct comm_work *work) { work->group->comm->ops->perform(work); }

zero_status comm_run(struct comm_group *group, const struct comm_call *call) {
    enum { AT_MOST_NS = 10000000 };
    struct comm_work *work;
    bool done = false;
    if (group->comm->ops->virtual_time && group->count > 1)
        return error_set(&group->comm->error, ZERO_E_UNSUPPORTED,
                         "comm sim: rank %u cannot wait in comm_run, because the other ranks share its "
                         "thread: post and test instead",
                         group->comm->rank);
    zero_status status = comm_post(group, call, &work);
    while (status == ZERO_OK) {
        status = comm_test(work, &done);
        if (done) break;
        if (status == ZERO_OK) comm_idle(group->comm, AT_MOST_NS);
    }
    return status;
}

void comm_idle(struct comm *comm, uint64_t at_most_ns) {
    if (comm->error.code || comm_failure_raised(comm->failure)) return;
    if (comm->ops->progress)
        for (struct comm_group *group = comm->groups; group; group = group->next) comm->ops->progress(group);
    comm->ops->idle(comm, at_most_ns);
    comm_ask_interrupted(comm);
}

static void tell_block(struct comm *comm, const struct comm_block *block, bool again) {
    if (comm->ops->block)
        comm->ops->block(comm, block, again);
    else if (comm->control && !again)
        control_block(comm->control, block);
}

void comm_stand(struct comm *comm, const char *what, const char *unit) {
    struct comm_block block = block_make(comm, what, unit);
    if (!block.calls || comm->ops->virtual_time) return;
    tell_block(comm, &block, comm->blocked);
    comm->blocked = true;
}

void comm_go_on(struct comm *comm) {
    if (comm->blocked) tell_block(comm, &(struct comm_block){0}, false);
    comm->blocked = false;
}

uint64_t comm_fingerprint(const struct comm *comm) { return comm->fingerprint; }

void comm_counters_read(const struct comm *comm, struct comm_counters *out_counters) {
    *out_counters = comm->counters;
    out_counters->control_messages = atomic_load_explicit(&comm->control_messages, memory_order_relaxed);
    out_counters->control_bytes = atomic_load_explicit(&comm->control_bytes, memory_order_relaxed);
}
