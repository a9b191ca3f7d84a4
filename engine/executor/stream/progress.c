/* Starts the operations that are ready, and retires those that are done. */
#include "engine/executor/stream/stream.h"

/* The points of `stream` that `op` may count on. On the compute stream of a discrete device an operation need not
 * wait until earlier operations are done: the device runs them in order, so it is enough that they have started. */
static uint64_t passed(const struct executor *e, const struct operation *op, int stream) {
    bool queued = e->o.shape.terms->discrete && stream == STREAM_COMPUTE && op->stream == STREAM_COMPUTE;
    return queued ? e->stream[stream].started : e->stream[stream].retired;
}

/* The reduction has nothing left but the copy of its shard to the host's memory. */
static bool leaves(struct executor *e, const struct item *item) {
    bool left = true;
    if (item->leaves && item->left) e->m.device->ops->test(e->m.device, item->left, &left, &e->error);
    return item->leaves && left;
}

/* AGREE needs norms, and that all ranks have posted the same calls. It does not wait for copies of reduced shards to the host's memory. */
static bool agreement_reached(struct executor *e, const struct task *task, int stream) {
    const struct timeline *line = &e->stream[stream];
    bool reached = task->op.kind == OP_AGREE;
    for (uint64_t i = line->retired; reached && i < line->started; i++) {
        const struct item *item = item_at(line, i);
        reached = item->done || leaves(e, item) || item->task->op.kind == OP_RELEASE;
    }
    for (uint64_t i = line->tasks_started; reached && i < line->tasks_emitted; i++) {
        const struct operation *op = &task_at(line, i)->op;
        if (op->end > task->op.after[stream]) break;
        reached = op->kind == OP_RELEASE;
    }
    return reached;
}

static bool can_start(struct executor *e, const struct task *task, uint32_t item) {
    const struct operation *op = &task->op;
    for (int s = 0; s < STREAMS; s++)
        if (op->after[s] > passed(e, op, s) && !ahead_reached(e, task, s) && !agreement_reached(e, task, s))
            return false;
    return !op->pipe.used || (int64_t)e->stream[op->pipe.stream].retired >= op->pipe.value + item;
}

static bool held_back(const struct executor *e, const struct operation *op) {
    return op->kind == OP_UPDATE && e->go && !atomic_load_explicit(&e->go[op->region], memory_order_acquire);
}

void executor_hold(struct executor *e, const atomic_uchar *go) { e->go = go; }

static void retire(struct timeline *line) {
    while (line->retired < line->started && item_at(line, line->retired)->done) {
        const struct task *task = item_at(line, line->retired)->task;
        line->retired++;
        line->tasks_retired += line->retired == task->op.end;
    }
}

typedef void (*watcher)(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                        const uint32_t *write);

static void watch(const struct executor *e, watcher watcher, const struct item *item) {
    const struct task *task = item->task;
    if (watcher) watcher(e->m.watch->user, &task->op, item->index, task->read, task->write);
}

/* The parts of the address space that an operation begins to use get memory. They never exceed the plan, because the policy makes the
 * operation wait until other parts have been emptied. */
static zero_status take_parts(struct executor *e, const struct item *item) {
    const struct task *task = item->task;
    const struct device_ops *ops = e->m.space && !item->index ? e->m.device->ops : NULL;
    zero_status status = ZERO_OK;
    for (uint8_t i = 0; i < task->op.writes && ops && !status; i++) {
        uint32_t part = task->write[i];
        if (!(task->op.acquires & 1u << i) || !plan_in_space(e->o.plan, part)) continue;
        e->parts_bytes += part_bytes(e, part);
        if (e->parts_bytes > e->o.plan->row_bytes[MEMORY_GATHERED]) break;
        if (ops->fill)
            status =
                ops->fill(e->m.device, buffer_address(e, part), e->o.plan->buffer[part].bytes, &e->error);
    }
    if (status || e->parts_bytes <= e->o.plan->row_bytes[MEMORY_GATHERED]) return status;
    return error_set(
        &e->error, ZERO_E_INTERNAL,
        "rank %u: %s of \"%s\" would take more memory than is planned for gathered units: a fault of the "
        "engine; report it with the configuration",
        e->m.rank, operation_kind_name((enum operation_kind)task->op.kind), unit_name(e, task->op.region));
}

static zero_status start_item(struct executor *e, struct item *item) {
    item->waits = false;
    if (e->m.watch) watch(e, e->m.watch->started, item);
    zero_status status = ahead_start(e, item);
    if (!status) status = take_parts(e, item);
    return status ? status : perform_start(e, item);
}

static zero_status test_item(struct executor *e, struct item *item, bool *out_moved) {
    if (item->waits && !can_start(e, item->task, item->index)) return ZERO_OK;
    *out_moved |= item->waits;
    return item->waits ? start_item(e, item) : perform_test(e, item, &item->done);
}

static zero_status test_in_flight(struct executor *e, struct timeline *line, bool *out_moved) {
    for (uint64_t i = line->retired; i < line->started; i++) {
        struct item *item = item_at(line, i);
        if (item->done) continue;
        TRY(test_item(e, item, out_moved));
        if (item->done && e->m.watch) watch(e, e->m.watch->done, item);
        *out_moved |= item->done;
    }
    retire(line);
    return ZERO_OK;
}

/* A release between two reductions comes after the first one. It waits in flight, so that the second can start. */
static bool waits_in_flight(const struct task *task) {
    return task->op.kind == OP_RELEASE && task->op.stream == STREAM_REDUCE && !task->ahead;
}

static zero_status start_ready(struct executor *e, struct timeline *line, bool *out_moved) {
    while (line->tasks_started < line->tasks_emitted && line->started - line->retired < line->capacity) {
        struct task *task = task_at(line, line->tasks_started);
        bool ready = can_start(e, task, line->next) && !held_back(e, &task->op) &&
                     ahead_turn(e, line, task) && stream_has_room(e, &task->op);
        if (!ready && !waits_in_flight(task)) break;
        struct item *item = item_at(line, line->started);
        *item = (struct item){.task = task, .index = line->next, .waits = !ready};
        TRY(ready ? start_item(e, item) : ZERO_OK);
        line->started++;
        *out_moved = true;
        if (++line->next < task->op.items) continue;
        line->next = 0;
        line->tasks_started++;
    }
    return ZERO_OK;
}

zero_status executor_poll(struct executor *e, bool *out_moved) {
    uint64_t steps = e->steps;
    *out_moved = false;
    for (int s = 0; s < STREAMS && !e->error.code; s++) {
        zero_status status = test_in_flight(e, &e->stream[s], out_moved);
        if (!status) status = start_ready(e, &e->stream[s], out_moved);
        if (status && !e->error.code) error_set(&e->error, status, "%s", zero_status_meaning(status));
    }
    *out_moved |= e->one_order && e->steps != steps; /* a call of another stream may have waited for it */
    return e->error.code;
}

bool executor_idle(const struct executor *e) {
    for (int s = 0; s < STREAMS; s++)
        if (e->stream[s].retired != e->stream[s].emitted) return false;
    return true;
}

static bool in_flight_on(const struct executor *e, const enum stream *streams, int count) {
    for (int i = 0; i < count; i++)
        if (e->stream[streams[i]].retired != e->stream[streams[i]].started) return true;
    return false;
}

static const enum stream shared_streams[3] = {STREAM_GATHER, STREAM_REDUCE, STREAM_CONTROL};

bool executor_in_flight(const struct executor *e) { return in_flight_on(e, shared_streams, 3); }

bool executor_owes(const struct executor *e) {
    for (int i = 0; i < 3 && !e->error.code; i++)
        if (e->stream[shared_streams[i]].retired != e->stream[shared_streams[i]].emitted) return true;
    return false;
}

bool executor_runs_ahead(const struct executor *e) { return e->ahead; }

bool executor_stored(const struct executor *e) {
    return e->stream[STREAM_STORE].retired == e->stream[STREAM_STORE].emitted;
}

bool executor_transferring(const struct executor *e) {
    static const enum stream transfers[4] = {STREAM_FETCH, STREAM_STORE, STREAM_PARAM, STREAM_GRAD};
    return in_flight_on(e, transfers, 4);
}
