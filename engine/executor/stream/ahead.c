/* Running ahead of a device. If all of a device's work is ordered by its streams, an operation need not wait until the operations
 * before it are done: it is enough that they are queued. The device's streams then wait for each other, and the host goes on.
 *
 *   queued(item)   all that the item still does is on the device's streams, behind one ticket
 *   start(op)      every item that `op` waits for is done or queued; the streams of `op` wait for the tickets
 *
 * So order is kept along every chain of operations: the ticket of an item comes after the tickets for which its streams wait.
 *
 * Two rules keep ranks from waiting for each other forever. Each stream of the device is given the operations in the order of their
 * emission, which is the same on all ranks: one begins when the one before it is queued, or is a release that waits for the device
 * alone. A stream waits only for operations that were emitted before the one that it is given. Where comm has one order of calls, as NCCL,
 * the gathers and reductions of all streams are posted in the order of emission, too (collective_turn).
 *
 * Parameters come from the host's memory on the stream of copies into the device, behind the memory's last use there; reduced gradients
 * leave on the stream out of it. An operation that involves the host's processor or a drive waits until the operations that it needs are
 * done, and those that need it wait for it. So a gather runs ahead except where the host has still to update the parameters, and where it
 * takes memory that a part of the address space gives back: it then waits until the device is done with that part. */
#include "engine/executor/stream/stream.h"

/* The stream on which the first steps of an operation are queued. A release has no work: it passes the order on. That of a part of the
 * address space is queued once the part is empty, when all work on it is done. */
static uint8_t stream_of(const struct operation *op) {
    static const uint8_t streams[OP_KINDS] = {[OP_COMPUTE] = 1u << DEVICE_COMPUTE,
                                              [OP_COPY] = 1u << DEVICE_COMPUTE,
                                              [OP_CLEAR] = 1u << DEVICE_REDUCE,
                                              [OP_GATHER] = 1u << DEVICE_GATHER,
                                              [OP_REDUCE] = 1u << DEVICE_REDUCE};
    if (op->kind != OP_RELEASE) return streams[op->kind];
    return 1u << (op->stream == STREAM_REDUCE ? DEVICE_REDUCE : DEVICE_COMPUTE);
}

/* The release of a gradient whose reduction takes the shard to the host's memory: the next reduction need not wait for that copy. So the
 * release follows it on its stream, or, after a reduction that does not run ahead, waits in flight (progress.c). */
static bool follows_crossing(const struct executor *e, const struct operation *op) {
    return op->kind == OP_RELEASE && op->object == OBJECT_GRAD &&
           !e->o.plan->layout.region[op->region].held && crosses(e, executor_grad_shard(e, op->region));
}

static uint8_t follow(const struct executor *e, const struct operation *op) {
    const struct timeline *line = &e->stream[op->stream];
    const struct task *before = task_at(line, line->tasks_emitted - 1);
    return line->tasks_emitted && before->ahead ? 1u << DEVICE_OUT : 0;
}

static bool cross(const struct executor *e, const uint32_t *buffer, uint8_t count) {
    bool any = false;
    for (uint8_t i = 0; i < count; i++) any |= crosses(e, buffer_address(e, buffer[i]));
    return any;
}

/* The stream on which a gather brings what it gathers. What a reduction takes to the host's memory follows its other work. False: the
 * host's processor or a drive takes part. */
static bool crossing_streams(const struct executor *e, const struct task *task, uint8_t *out) {
    const struct operation *op = &task->op;
    bool in = cross(e, task->read, op->reads), away = cross(e, task->write, op->writes);
    *out = in ? 1u << DEVICE_IN : 0;
    if (in) return op->kind == OP_GATHER && op->object == OBJECT_PARAM && !away && !op->pipe.used;
    return !away || (op->kind == OP_REDUCE && op->reads && !op->add && !op->pipe.used);
}

uint8_t ahead_streams(const struct executor *e, const struct task *task) {
    const struct operation *op = &task->op;
    bool calls = op->kind == OP_GATHER || op->kind == OP_REDUCE;
    uint8_t streams = 0;
    if (!e->ahead || !crossing_streams(e, task, &streams)) return 0;
    if (follows_crossing(e, op)) return follow(e, op);
    if (!calls) return stream_of(op);
    struct executor_round first = {0};
    struct comm_call call;
    executor_next_call(&e->o.shape, op, 0, &first, &call);
    return streams | stream_of(op) | comm_streams(e->o.shape.group[op->axes][op->stream], &call);
}

bool ahead_possible(const struct executor *e) {
    bool all = e->o.shape.terms->discrete && e->m.device && !e->m.performer;
    for (int axes = 0; axes <= AXES_BOTH; axes++)
        for (int s = 0; s < STREAMS; s++) {
            const struct comm_group *group = e->o.shape.group[axes][s];
            all = all && (!group || comm_group_in_order(group));
        }
    return all;
}

bool ahead_turn(const struct executor *e, const struct timeline *line, const struct task *task) {
    uint64_t ticket;
    if (!task->ahead || task->op.stream == STREAM_COMPUTE || line->started == line->retired) return true;
    const struct item *before = item_at(line, line->started - 1);
    return (before->task->op.kind == OP_RELEASE && !before->waits) || perform_queued(e, before, &ticket);
}

bool ahead_reached(const struct executor *e, const struct task *task, int stream) {
    const struct timeline *line = &e->stream[stream];
    uint64_t ticket;
    if (!task->ahead || task->op.after[stream] > line->started) return false;
    for (uint64_t i = line->retired; i < task->op.after[stream]; i++)
        if (!perform_queued(e, item_at(line, i), &ticket)) return false;
    return true;
}

/* The tickets of the compute stream belong to one stream of the device, so the newest ticket is done last. */
static zero_status wait_for_line(struct executor *e, const struct task *task, int stream, bool *out_waits) {
    const struct timeline *line = &e->stream[stream];
    zero_status status = ZERO_OK;
    for (uint64_t i = task->op.after[stream]; i-- > line->retired && !status;) {
        uint64_t ticket;
        perform_queued(e, item_at(line, i), &ticket);
        status = await_ticket(e, task->ahead, ticket);
        *out_waits |= ticket != 0;
        if (ticket && stream == STREAM_COMPUTE) break;
    }
    return status;
}

/* The item passes the order on, also if it turns out to have no work of its own. */
static zero_status record(struct executor *e, struct item *item) {
    uint8_t streams = item->task->ahead ? item->task->ahead : stream_of(&item->task->op);
    int stream = DEVICE_COMPUTE;
    while (!(streams & 1u << stream)) stream++;
    return e->m.device->ops->record(e->m.device, (enum device_stream)stream, &item->before, &e->error);
}

zero_status ahead_start(struct executor *e, struct item *item) {
    const struct task *task = item->task;
    zero_status status = ZERO_OK;
    bool waits = false;
    for (int s = 0; s < STREAMS && task->ahead && !status; s++)
        if (s != STREAM_COMPUTE || task->op.stream != STREAM_COMPUTE) /* there they are in order */
            status = wait_for_line(e, task, s, &waits);
    waits |= task->op.kind == OP_RELEASE && e->m.space && plan_in_space(e->o.plan, task->write[0]);
    return status || !waits || task->op.kind == OP_COMPUTE ? status : record(e, item);
}
