#include "engine/executor/executor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/executor/drive/drive.h"
#include "engine/executor/stream/stream.h"

/* The most items of a stream that may be in flight: one on compute (the host), on update (an update uses all threads)
 * and on control; more where latency must be hidden. 0: the number of staging slots. */
static const uint8_t in_flight[STREAMS] = {
    [STREAM_COMPUTE] = 1, [STREAM_GATHER] = 8, [STREAM_REDUCE] = 8, [STREAM_UPDATE] = 1, [STREAM_FETCH] = 0,
    [STREAM_STORE] = 0,   [STREAM_PARAM] = 8,  [STREAM_GRAD] = 8,   [STREAM_CONTROL] = 1};

/* The same for a discrete device. Work that is queued on it needs no host. So the host may begin the next use while
 * the device still works on the last use, and the next update while the last weights are being copied. 0: as above. */
static const uint8_t in_flight_discrete[STREAMS] = {[STREAM_COMPUTE] = 16, [STREAM_UPDATE] = UPDATE_STAGINGS};

/* The same for a host that runs ahead of the device: the limit of how far ahead it runs. 0: as above. */
static const uint8_t in_flight_ahead[STREAMS] = {
    [STREAM_COMPUTE] = 64, [STREAM_GATHER] = COMM_CALLS_MAX, [STREAM_REDUCE] = COMM_CALLS_MAX};

uint32_t executor_requests_max(const struct plan *plan) {
    uint32_t access = 1;
    return TRANSFERS_MAX * (plan->layout.slots + in_flight[STREAM_PARAM] + access) + in_flight[STREAM_GRAD];
}

/* ---- opening ---- */

enum { EVENT_OPERATIONS = 2 }; /* on each stream, beside those of regions */

/* No region has rows that this stream moves. FETCH and STORE move staged chunks. */
static bool stream_unused(const struct executor *e, enum stream stream) {
    const struct chunk_layout *layout = &e->o.plan->layout;
    if (stream == STREAM_FETCH || stream == STREAM_STORE) return !layout->slots;
    if (stream != STREAM_PARAM && stream != STREAM_GRAD) return false;
    for (uint32_t i = 0; i < e->o.shape.policy->regions; i++) {
        const struct offload_region *r = &layout->region[i];
        if (r->grads || (stream == STREAM_PARAM ? r->params : r->held)) return false;
    }
    return true;
}

/* The most operations that one event emits on a stream. Per region these are at most: on compute a copy and a
 * release; on gather one gather ahead and one refresh, or the gather of a gradient; on reduce a reduction, its release,
 * a sum and a clear; three updates; two fetches; one store; one fetch of parameters and two of gradients; three stores of gradients. Where an
 * optimizer updates whole matrices, or needs norms of whole tensors, three times as many. */
static uint64_t event_most(const struct executor *e, enum stream stream) {
    static const uint8_t per_region[STREAMS] = {
        [STREAM_COMPUTE] = 2, [STREAM_GATHER] = 2, [STREAM_REDUCE] = 4, [STREAM_UPDATE] = 3,
        [STREAM_FETCH] = 2,   [STREAM_STORE] = 1,  [STREAM_PARAM] = 3,  [STREAM_GRAD] = 3};
    const struct policy *policy = e->o.shape.policy;
    uint32_t times = policy->legs > 1 ? 3 : 1; /* what is handed between legs goes through the same streams */
    if (e->stream[stream].unused) return EVENT_OPERATIONS;
    return (uint64_t)per_region[stream] * times * policy->regions + EVENT_OPERATIONS;
}

/* Each stream has room for the operations of one event while those of the event before it are still at work; and for those of a
 * pass, if the host runs ahead. */
static bool open_timeline(struct executor *e, enum stream stream) {
    struct timeline *line = &e->stream[stream];
    line->unused = stream_unused(e, stream);
    uint64_t least = (e->ahead ? 4 : 2) * event_most(e, stream);
    for (line->tasks = 4; line->tasks < least;) line->tasks *= 2;
    line->capacity = in_flight[stream] ? in_flight[stream] : e->o.plan->layout.slots;
    if (line->unused) line->capacity = 1;
    if (e->o.shape.terms->discrete && in_flight_discrete[stream]) line->capacity = in_flight_discrete[stream];
    if (e->ahead && in_flight_ahead[stream]) line->capacity = in_flight_ahead[stream];
    line->task = calloc(line->tasks, sizeof *line->task);
    line->item = calloc(line->capacity, sizeof *line->item);
    return line->task && line->item;
}

static void open_offload(struct executor *e) {
    e->offload = (struct offload){.slots = e->o.plan->layout.slots,
                                  .param_slots = e->o.plan->layout.params.slots,
                                  .grad_slots = e->o.plan->layout.grads.slots,
                                  .chunk_elements = e->o.plan->layout.chunk_elements,
                                  .by_chunk = plan_updates_by_chunk(e->o.plan),
                                  .hands_over = plan_host_updates(e->o.plan),
                                  .in_turn = e->o.shape.policy->update_in_backward,
                                  .region = e->o.plan->layout.region,
                                  .refresh = e->o.shape.policy->refresh,
                                  .refreshes = e->o.shape.policy->refreshes};
    offload_open(&e->offload);
    e->epoch = 1;
}

static bool open_list(struct operation_list *list, uint32_t capacity) {
    *list = (struct operation_list){calloc(capacity, sizeof *list->item), 0, capacity};
    return list->item;
}

static zero_status open_tables(struct executor *e, struct zero_error *error) {
    const struct policy *p = e->o.shape.policy;
    bool whole = true;
    for (int s = 0; s < STREAMS; s++) whole &= open_timeline(e, (enum stream)s);
    open_offload(e);
    whole &= open_list(&e->list, policy_operations_max(p));
    whole &= open_list(&e->expanded, offload_operations_max(&e->offload));
    e->stored = calloc(e->o.plan->layout.chunks, sizeof *e->stored);
    e->access.held = calloc(e->o.plan->layout.slots + 1, sizeof *e->access.held);
    e->access.count = 1;
    e->hazards.record = calloc(e->o.plan->buffers, sizeof *e->hazards.record);
    e->hazards.part = calloc(e->o.plan->parts + 1, sizeof *e->hazards.part);
    e->hazards.span = e->o.plan->span;
    e->bound = malloc(PLAN_SLOT_KINDS * p->regions * sizeof *e->bound);
    e->live = calloc(e->o.plan->parts + 1, sizeof *e->live);
    e->norm = e->m.norms ? e->m.norms : calloc(p->regions, sizeof *e->norm);
    e->normed = calloc(p->regions, sizeof *e->normed);
    e->mine = e->m.agreements;
    e->all = e->m.agreements + 1;
    whole &= e->stored && e->access.held && e->hazards.record && e->hazards.part && e->bound && e->live &&
             e->norm && e->normed;
    if (!whole) return error_set(error, ZERO_E_MEMORY, "no memory for the executor's tables");
    memset(e->bound, 0xff, PLAN_SLOT_KINDS * p->regions * sizeof *e->bound);
    return ZERO_OK;
}

zero_status executor_open(const struct executor_options *options,
                          const struct executor_mechanisms *mechanisms, struct executor **out,
                          struct zero_error *error) {
    struct executor *e = calloc(1, sizeof *e);
    if (!e) return error_set(error, ZERO_E_MEMORY, "no memory for the executor");
    e->o = *options;
    e->m = *mechanisms;
    e->ahead = ahead_possible(e);
    e->one_order = e->m.comm && comm_one_order(e->m.comm);
    error_clear(&e->error);
    zero_status status = open_tables(e, error);
    if (status) {
        executor_close(e);
        return status;
    }
    *out = e;
    return ZERO_OK;
}

void executor_close(struct executor *e) {
    if (!e) return;
    for (int s = 0; s < STREAMS; s++) {
        free(e->stream[s].task);
        free(e->stream[s].item);
    }
    free(e->list.item);
    free(e->expanded.item);
    free(e->stored);
    free(e->access.held);
    free(e->hazards.record);
    free(e->hazards.part);
    free(e->bound);
    free(e->live);
    if (!e->m.norms) free(e->norm);
    free(e->normed);
    free(e);
}

struct zero_error *executor_error(struct executor *e) {
    return &e->error;
}

void executor_place(struct executor *e, void *const memory[TIERS], void *space,
                    struct agreement *agreements) {
    memcpy(e->m.memory, memory, sizeof e->m.memory);
    e->m.space = space;
    e->mine = agreements;
    e->all = agreements + 1;
}

/* ---- emission ---- */

/* Notes that a buffer begins or ends. False: another one has a part of it. */
static bool set_live(struct executor *e, uint32_t buffer, bool live) {
    const struct hazard_span *span = &e->o.plan->span[buffer];
    bool apart = true;
    for (uint32_t i = span->first; i < span->end; i++) {
        apart &= e->live[i] != live;
        e->live[i] = live;
    }
    return apart;
}

/* An interval begins: its place must be planned, and nothing live may share it. */
static zero_status acquire(struct executor *e, const struct operation *op, struct buffer_ref ref) {
    uint32_t buffer = plan_slot(e->o.plan, e->o.shape.policy->evaluating, op->use, ref);
    if (buffer == NO_BUFFER || !set_live(e, buffer, true))
        return error_set(&e->error, ZERO_E_INTERNAL, "rank %u: %s of \"%s\" at position %d of the pass %s",
                         e->m.rank, operation_kind_name((enum operation_kind)op->kind),
                         unit_name(e, ref.region), op->use,
                         buffer == NO_BUFFER ? "was not planned" : "would overlap a live buffer");
    *buffer_binding(e, ref) = buffer;
    return ZERO_OK;
}

static void hash_in(uint64_t *hash, uint64_t value) {
    *hash = (*hash ^ value) * 0x100000001b3u ^ *hash >> 29;
}

/* What ranks must do alike. Where all parameters rest whole, an evaluation moves nothing, and each rank may have its own: they are not
 * counted, nor are the points of the compute stream, which count all uses. */
static void trace(struct executor *e, const struct operation *op) {
    const struct policy *policy = e->o.shape.policy;
    if (policy->eager && policy->evaluating && op->kind == OP_COMPUTE) return;
    hash_in(&e->trace, (uint64_t)op->kind | (uint64_t)op->object << 8 | (uint64_t)op->stream << 16 |
                           (uint64_t)op->axes << 24 | (uint64_t)op->outcome << 28 |
                           (uint64_t)op->region << 32 | (uint64_t)op->use << 48);
    hash_in(&e->trace, (uint64_t)op->first << 32 | op->chunks);
    hash_in(&e->trace, op->pipe.used ? (uint64_t)op->pipe.value << 3 | op->pipe.stream : 0);
    for (int s = 0; s < STREAMS; s++)
        if (s != STREAM_COMPUTE || !policy->eager) hash_in(&e->trace, op->after[s]);
}

static bool bind(const struct executor *e, const struct buffer_ref *refs, uint8_t count, uint32_t *out) {
    bool there = true;
    for (uint8_t i = 0; i < count; i++) there &= (out[i] = bound_buffer(e, refs[i])) != NO_BUFFER;
    return there;
}

static zero_status too_many(struct executor *e, const char *what, uint64_t room) {
    return error_set(&e->error, ZERO_E_INTERNAL,
                     "rank %u: %s more operations than the executor has room for, %" PRIu64
                     ": a fault of the engine; report it with the configuration",
                     e->m.rank, what, room);
}

static zero_status emit_task(struct executor *e, const struct operation *op) {
    struct timeline *line = &e->stream[op->stream];
    if (line->tasks_emitted - line->tasks_retired == line->tasks)
        return too_many(e, "a stream was given", line->tasks);
    struct task *task = task_at(line, line->tasks_emitted);
    *task = (struct task){.op = *op, .scalars = (uint8_t)(e->set % SCALAR_SETS)};
    for (uint8_t i = 0; i < op->writes; i++)
        if (op->acquires & 1u << i) {
            TRY(acquire(e, op, op->write[i]));
        }
    if (!bind(e, op->read, op->reads, task->read) || !bind(e, op->write, op->writes, task->write))
        return error_set(&e->error, ZERO_E_INTERNAL,
                         "rank %u: %s of \"%s\" uses a buffer that is not in memory", e->m.rank,
                         operation_kind_name((enum operation_kind)op->kind), unit_name(e, op->region));
    task->ahead = ahead_streams(e, task);
    task->collective = e->collectives;
    e->collectives += posts_calls(op);
    if (op->kind == OP_RELEASE) {
        set_live(e, task->write[0], false);
        *buffer_binding(e, op->write[0]) = NO_BUFFER;
    }
    hazard_emit(&e->hazards, &task->op, task->read, task->write);
    trace(e, &task->op);
    line->tasks_emitted++;
    line->emitted += op->items;
    return ZERO_OK;
}

/* Emits the list of the stage's policy, expanded by the second policy. */
static zero_status emit_list(struct executor *e) {
    if (operation_list_overflowed(&e->list))
        return too_many(e, "an event listed", policy_operations_max(e->o.shape.policy));
    if (e->m.watch && e->m.watch->listed) e->m.watch->listed(e->m.watch->user, &e->list);
    for (uint32_t i = 0; i < e->list.count && !e->error.code; i++) {
        e->expanded.count = 0;
        offload_expand(&e->offload, &e->list.item[i], &e->expanded);
        if (operation_list_overflowed(&e->expanded))
            too_many(e, "an operation became", offload_operations_max(&e->offload));
        for (uint32_t k = 0; k < e->expanded.count && !e->error.code; k++) emit_task(e, &e->expanded.item[k]);
    }
    e->list.count = 0;
    return e->error.code;
}

bool executor_has_room(const struct executor *e) {
    for (int s = 0; s < STREAMS; s++) {
        const struct timeline *line = &e->stream[s];
        if (line->tasks_emitted - line->tasks_retired + event_most(e, (enum stream)s) > line->tasks)
            return false;
    }
    return true;
}

/* ---- events ---- */

/* The last item that started on the compute stream; NULL if it is not in flight. */
static struct item *newest(const struct executor *e) {
    const struct timeline *line = &e->stream[STREAM_COMPUTE];
    return line->retired < line->started ? item_at(line, line->started - 1) : NULL;
}

bool executor_computing(const struct executor *e) {
    const struct item *item = newest(e);
    return item && item->task->op.kind == OP_COMPUTE && e->computed < item->task->op.end;
}

bool executor_waits_for_host(const struct executor *e) {
    for (int s = 0; s < STREAMS; s++) {
        const struct timeline *line = &e->stream[s];
        if (line->retired == line->emitted) continue;
        if (s != STREAM_COMPUTE || line->started - line->retired != 1 || !executor_computing(e))
            return e->error.code;
    }
    return true;
}

/* The host has ended the use. COMPUTE is done when the device has done what the host enqueued. */
static zero_status end_computing(struct executor *e, const struct event *event) {
    struct item *item = newest(e);
    e->computed = item->task->op.end;
    if (!e->m.device) return ZERO_OK;
    return e->m.device->ops->record(e->m.device, DEVICE_COMPUTE, &item->ticket, &e->error);
}

/* A device that has failed has room: the work that follows says so. */
bool executor_stream_has_room(const struct executor *e) {
    struct zero_error error;
    bool room;
    error_clear(&error);
    return device_has_room(e->m.device, DEVICE_COMPUTE, &room, &error) || room;
}

bool executor_agreed(const struct executor *e) {
    return e->stream[STREAM_CONTROL].retired == e->stream[STREAM_CONTROL].emitted;
}

const struct agreement *executor_agreements(const struct executor *e) { return e->all; }

bool executor_settled(const struct executor *e) { return !plan_settles(e->o.plan) || executor_idle(e); }

/* Begins the step's set of scalars, or replaces it. A set is reused only after its updates are done. A reduction overwrites the
 * gradient that the updates of the step before read, so those updates are done once a step has agreed on its norm. A step takes its
 * first set after the agreement of the step before, and a second set, for repeated updates, after its own agreement. So the sets in
 * use belong to two steps at most, and the later step has not taken its second set. */
static void take_settings(struct executor *e, const struct update_settings *settings) {
    if (!e->set_begun) e->set++;
    struct scalar_set *set = &e->scalars[e->set % SCALAR_SETS];
    set->scale = settings->scale;
    set->rounding_key = settings->rounding_key;
    set->average_share = settings->average_share;
    if (settings->count) memcpy(set->group, settings->scalars, settings->count * sizeof *settings->scalars);
    e->set_begun = true;
}

/* Of a pass, and of a flush. */
static zero_status write_back(struct executor *e, const struct event *event) {
    bool updates = event->last && !event->evaluating && e->o.shape.policy->update_in_backward;
    if (updates) take_settings(e, event->update);
    return access_flush(e);
}

static zero_status contribute(struct executor *e, const struct event *event) {
    *e->mine = *event->mine;
    return ZERO_OK;
}

static zero_status begin_updates(struct executor *e, const struct event *event) {
    bool early = e->o.shape.policy->update_in_backward, repeats = event->outcome == OUTCOME_REPEATED;
    if (repeats) e->set_begun = false; /* a job may still read the set of the backward */
    if (!early || repeats) take_settings(e, event->update);
    e->set_begun = false;
    e->commits |= e->o.plan->terms->shadow && event->outcome != OUTCOME_SKIPPED;
    if (event->outcome != OUTCOME_UPDATED) offload_applied(&e->offload);
    return ZERO_OK;
}

static void end_updates(struct executor *e) {
    offload_applied(&e->offload);
    executor_chunk_forget(e);
}

/* For each event: what the executor does before (or NULL), the policy's function, and what the executor does after (or NULL). */
static const struct {
    zero_status (*before)(struct executor *, const struct event *);
    policy_fn *policy;
    void (*after)(struct executor *);
} events[EVENTS] = {
    [EVENT_PASS] = {write_back, policy_pass, NULL},
    [EVENT_RESUME] = {NULL, policy_resume, NULL},
    [EVENT_CANCEL_PASS] = {NULL, policy_cancel, NULL},
    [EVENT_CANCEL_STEP] = {NULL, policy_cancel, NULL},
    [EVENT_BEGIN] = {NULL, policy_begin, NULL},
    [EVENT_END] = {end_computing, policy_end, NULL},
    [EVENT_STEP_ASIDE] = {end_computing, policy_step_aside, NULL},
    [EVENT_GO_ON] = {NULL, policy_go_on, NULL},
    [EVENT_RECOMPUTE] = {NULL, policy_recompute, NULL},
    [EVENT_RECOMPUTED] = {end_computing, policy_recomputed, NULL},
    [EVENT_COMPLETE] = {NULL, policy_complete, NULL},
    [EVENT_AGREE] = {contribute, policy_agree, NULL},
    [EVENT_APPLY] = {begin_updates, policy_apply, end_updates},
    [EVENT_WRITTEN] = {NULL, policy_written, NULL},
    [EVENT_FLUSH] = {write_back, policy_flush, NULL},
};

zero_status executor_emit(struct executor *e, const struct event *event) {
    TRY(events[event->kind].before ? events[event->kind].before(e, event) : ZERO_OK);
    events[event->kind].policy(e->o.shape.policy, event, &e->list);
    zero_status status = emit_list(e);
    if (events[event->kind].after) events[event->kind].after(e);
    return status;
}

/* ---- results ---- */

uint64_t executor_trace(const struct executor *e) { return e->trace; }

struct traffic executor_traffic(const struct executor *e) {
    return e->traffic;
}

double executor_update_seconds(const struct executor *e) {
    return (double)atomic_load_explicit(&e->update_ns, memory_order_relaxed) * 1e-9;
}
