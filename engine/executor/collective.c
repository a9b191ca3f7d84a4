/* What gathers and reductions share when they post: their turn, and the traffic counters. */
#include "engine/executor/executor_internal.h"

bool posts_calls(const struct operation *op) { return op->kind == OP_GATHER || op->kind == OP_REDUCE; }

bool has_posted(const struct item *item) {
    return !posts_calls(&item->task->op) || item->posted || item->leaves || item->done;
}

/* Nothing waits in a circle: an operation waits only for operations that were emitted before it. */
bool collective_turn(const struct executor *e, const struct item *item) {
    for (int s = 0; s < STREAMS && e->one_order; s++) {
        const struct timeline *line = &e->stream[s];
        if (s == item->task->op.stream) continue;
        for (uint64_t i = line->retired; i < line->started; i++) {
            const struct item *other = item_at(line, i);
            if (other->task->collective < item->task->collective && !has_posted(other)) return false;
        }
        for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++) {
            const struct task *other = task_at(line, i);
            if (other->collective >= item->task->collective) break;
            if (posts_calls(&other->op)) return false;
        }
    }
    return true;
}

bool stream_has_room(struct executor *e, const struct operation *op) {
    bool room = true;
    if (posts_calls(op) && e->o.shape.terms->discrete && e->m.device)
        device_has_room(e->m.device, op->kind == OP_GATHER ? DEVICE_GATHER : DEVICE_REDUCE, &room, &e->error);
    return room;
}

bool await_room(struct executor *e, struct item *item, const struct comm_group *group) {
    if (group ? !comm_group_full(group) : stream_has_room(e, &item->task->op)) return false;
    item->step--;
    item->awaits = AWAITS_ROOM;
    return true;
}

static void run_alone(void *argument) { comm_perform(*(struct comm_work **)argument); }

/* A call that waits for no other rank: sums and copies of this rank's memory. */
static const struct kernel alone_kernel = {
    .name = "call of one rank", .run = run_alone, .argument_bytes = sizeof(struct comm_work *)};

zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call) {
    TRY(await_ticket(e, item->task->ahead, item->before));
    if (item->awaits_comm) item->queued[item->queued_count++] = item->work, item->awaits_comm = false;
    zero_status status = comm_post(group, call, &item->work);
    item->awaits = AWAITS_COMM;
    if (status) error_pass(&e->error, comm_group_error(group));
    if (status) return status;
    uint64_t bytes = comm_alone_bytes(item->work);
    if (bytes)
        job_submit(e, item, JOBS_CALLS, &alone_kernel, &item->work, bytes); /* else the first test does it */
    return ZERO_OK;
}

zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                         const struct comm_call *call, uint64_t codes) {
    struct traffic *t = &e->traffic;
    bool gathers = item->task->op.kind == OP_GATHER;
    struct comm_counters before, after;
    comm_counters_read(e->m.comm, &before);
    zero_status status = post_call(e, item, group, call);
    item->posted = true;
    comm_counters_read(e->m.comm, &after);
    *(gathers ? &t->gather_calls : &t->reduce_calls) += after.calls[call->kind] - before.calls[call->kind];
    *(gathers ? &t->gather_elements : &t->reduce_elements) +=
        codes ? (comm_group_size(group) - 1) * codes
              : after.elements[call->kind] - before.elements[call->kind];
    t->bytes += after.bytes - before.bytes;
    return status;
}
