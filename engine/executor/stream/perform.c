/* How each kind of operation is performed: the table below has one row of steps per kind. A step may start work on
 * one mechanism; the item awaits that work before the next step. On a discrete device, all arithmetic and all copies
 * are work of the device: this code never reads the device's memory. */
#include "engine/executor/stream/stream.h"

#include <string.h>

#include "engine/executor/drive/drive.h"
#include "engine/executor/work/work.h"
#include "engine/model/lent.h"

/* ---- testing what an item awaits ---- */

static zero_status test_device(struct executor *e, struct item *item, bool *out_done) {
    return e->m.device->ops->test(e->m.device, item->ticket, out_done, &e->error);
}

static zero_status test_call(struct executor *e, struct comm_work *work, bool *out_done) {
    zero_status status = comm_test(work, out_done);
    if (status) error_pass(&e->error, comm_work_error(work));
    return status;
}

/* The calls of earlier rounds. */
static zero_status test_queued(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = ZERO_OK;
    *out_done = true;
    while (item->queued_count && *out_done && !status) {
        status = test_call(e, item->queued[0], out_done);
        if (*out_done) memmove(item->queued, item->queued + 1, --item->queued_count * sizeof *item->queued);
    }
    return status;
}

/* The call of a rank that is alone may be a job. */
static zero_status test_comm(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = item->job ? job_test(e, item, out_done) : test_queued(e, item, out_done);
    return item->job || status || !*out_done ? status : test_call(e, item->work, out_done);
}

static zero_status test_room(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = test_queued(e, item, out_done);
    *out_done = stream_has_room(e, &item->task->op);
    for (int axes = 0; axes <= AXES_BOTH; axes++) {
        const struct comm_group *group = e->o.shape.group[axes][item->task->op.stream];
        *out_done &= !group || !comm_group_full(group);
    }
    return status;
}

static zero_status test_nothing(struct executor *e, struct item *item, bool *out_done) {
    *out_done = true;
    return ZERO_OK;
}

/* The gather's staging belongs to the calls: those of a group in order use it one after the other. */
static bool stages_in_order(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return stages_gather(op) && !codes_gather(&e->o.shape, op) &&
           comm_group_in_order(e->o.shape.group[op->axes][op->stream]);
}

/* Items of a run that share scratch memory, or add to one norm, come one after the other; so do updates that take norms of tensors.
 * So do reductions of a discrete device where the later one has rounds: until its last round, sums of its blocks lie in memory that
 * all reductions use. If the host runs ahead, the device's stream orders them. */
static bool one_by_one(const struct executor *e, const struct item *before, const struct item *item) {
    bool reduces = item->task->op.kind == OP_REDUCE;
    if (item->task->op.kind == OP_UPDATE) return true;
    if (before->task == item->task)
        return reduces || (item->task->op.writes > 1 && !stages_in_order(e, item));
    return reduces && before->task->op.kind == OP_REDUCE && e->o.shape.terms->discrete &&
           !item->task->ahead && !reduce_posts_once(e, item);
}

/* An item may post when all earlier items of its stream have posted, and where comm has one order, those of all streams. So all ranks
 * post in the order of emission, however long the earlier steps of an item take. Of updates only those that take norms wait for a turn. */
static zero_status test_turn(struct executor *e, struct item *item, bool *out_done) {
    const struct timeline *line = &e->stream[item->task->op.stream];
    *out_done = !posts_calls(&item->task->op) || collective_turn(e, item);
    for (uint64_t i = line->retired; *out_done; i++) {
        const struct item *before = item_at(line, i);
        if (before == item) break;
        *out_done = before->leaves || (one_by_one(e, before, item) ? before->done : has_posted(before));
    }
    return ZERO_OK;
}

static zero_status await_turn(struct executor *e, struct item *item) {
    item->awaits = AWAITS_TURN;
    return ZERO_OK;
}

static zero_status await_order(struct executor *e, struct item *item) {
    return policy_leg(e->o.shape.policy, &item->task->op)->ordered ? await_turn(e, item) : ZERO_OK;
}

/* ---- compute: the host computes, between begin and end ---- */

static zero_status compute(struct executor *e, struct item *item) {
    item->awaits = AWAITS_HOST;
    return ZERO_OK;
}

/* COMPUTE is done when the host has ended the use and the device has done what the host enqueued on its stream. */
static zero_status test_host(struct executor *e, struct item *item, bool *out_done) {
    *out_done = false;
    return e->computed >= item->task->op.end ? test_device(e, item, out_done) : ZERO_OK;
}

/* ---- work of the device ---- */

/* The device clears the norm, because it may still have to write the norm of a gradient that was dropped. */
static zero_status clear_norm(struct executor *e, struct item *item, uint32_t region) {
    struct device *device = e->m.device;
    if (device->discrete)
        return device->ops->clear(device, DEVICE_REDUCE, &e->norm[region], sizeof e->norm[region],
                                  &item->ticket, &e->error);
    e->norm[region] = 0;
    return ZERO_OK;
}

static zero_status clear_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = precision_of(&e->o.shape, op->region).reduced;
    void *shard = buffer_is_ring(op->write[0].kind)
                      ? item_address(e, item, op->write[0], item->task->write[0])
                      : own_part_address(e, op->write[0], item->task->write[0], cut, reduced);
    e->normed[op->region] = true;
    if (lent_region(e, op->write[0])) {
        e->norm[op->region] = 0;
        return lent_clear(lent_region(e, op->write[0]), LENT_GRADS, dtype_bytes(reduced)), ZERO_OK;
    }
    item->awaits = AWAITS_DEVICE;
    TRY(clear_norm(e, item, op->region));
    return e->m.device->ops->clear(e->m.device, DEVICE_REDUCE, shard,
                                   item_part(&e->o.shape, op, item->index).count * dtype_bytes(reduced),
                                   &item->ticket, &e->error);
}

static zero_status copy_second(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = policy_region(e, op->region)->between;
    enum dtype compute = precision_of(&e->o.shape, op->region).compute;
    void *source = own_part_address(e, op->read[0], item->task->read[0], cut, compute);
    return copy(e, item, DEVICE_COMPUTE, buffer_address(e, item->task->write[0]), source,
                shard_elements(e, op->region, cut) * dtype_bytes(compute));
}

/* ---- memory ---- */

/* A part of the address space gives its memory back. Operations that wait for the memory wait until a device is done with it. */
static zero_status await_users(struct executor *e, struct item *item) {
    if (!plan_in_space(e->o.plan, item->task->write[0])) return ZERO_OK;
    item->awaits = AWAITS_DEVICE;
    item->ticket = item->before;
    return ZERO_OK;
}

static zero_status empty_part(struct executor *e, struct item *item) {
    uint32_t buffer = item->task->write[0];
    if (!plan_in_space(e->o.plan, buffer)) return ZERO_OK;
    e->m.device->ops->empty(e->m.device, buffer_address(e, buffer), e->o.plan->buffer[buffer].bytes);
    e->parts_bytes -= part_bytes(e, buffer);
    return ZERO_OK;
}

/* ---- the table ---- */

enum { STEPS_OF_ITEM = 12 }; /* the last one is NULL */

static const step_fn steps[OP_KINDS][STEPS_OF_ITEM] = {
    [OP_COMPUTE] = {compute},
    [OP_GATHER] = {bring_share, await_turn, encode_share, post_gather, decode_shares, leave_whole},
    /* all but the first: once per round */
    [OP_REDUCE] = {await_turn, bring_shard, make_message, encode_message, post_reduce, decode_sum,
                   sum_replicas, norm_shard, leave_shard, add_left, end_round},
    [OP_RELEASE] = {await_users, empty_part},
    [OP_UPDATE] = {bring_for_update, await_order, update, take_updated},
    [OP_MATRIX] = {change_matrices},
    [OP_COPY] = {copy_second},
    [OP_CLEAR] = {clear_shard},
    [OP_AGREE] = {complete_norms, post_agreement},
    [OP_FETCH] = {fetch_chunk, sum_fetched, check_fetched},
    [OP_STORE] = {cross_held, sum_stored, store_chunk},
};

static zero_status (*const tests[AWAITS])(struct executor *e, struct item *item, bool *out_done) = {
    [AWAITS_NOTHING] = test_nothing, [AWAITS_HOST] = test_host, [AWAITS_DEVICE] = test_device,
    [AWAITS_COMM] = test_comm,       [AWAITS_TURN] = test_turn, [AWAITS_DRIVE] = transfer_done,
    [AWAITS_JOB] = job_test,         [AWAITS_ROOM] = test_room};

static bool has_steps(const struct item *item) { return steps[item->task->op.kind][item->step]; }

/* If the host runs ahead, a gather or a reduction takes its next step once the step before is queued, because the
 * device does all of its work. So do the rounds of a gather from a drive: their calls follow each other. */
static bool overtakes(const struct executor *e, struct item *item) {
    enum operation_kind kind = (enum operation_kind)item->task->op.kind;
    uint64_t ticket = item->ticket;
    bool comm = item->awaits == AWAITS_COMM,
         follows = item->task->ahead || (comm && stages_in_order(e, item));
    if (!follows || (kind != OP_GATHER && kind != OP_REDUCE) || !has_steps(item)) return false;
    if (comm && !item->posted && item->queued_count + 2 > ROUNDS_QUEUED)
        return false; /* another round follows, of up to two calls */
    if (!comm && item->awaits != AWAITS_DEVICE) return false;
    if (comm && !comm_work_queued(item->work, &ticket)) return false;
    if (ticket) item->before = ticket; /* 0: a call without work; earlier work may not be done */
    item->awaits_comm |= comm;
    return true;
}

/* After the last step: work that earlier steps left queued must also be done. */
static zero_status end(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = ZERO_OK;
    *out_done = true;
    if (item->awaits_comm) status = test_comm(e, item, out_done);
    if (status || !*out_done) return status;
    item->awaits_comm = false;
    return item->before ? e->m.device->ops->test(e->m.device, item->before, out_done, &e->error) : ZERO_OK;
}

bool perform_queued(const struct executor *e, const struct item *item, uint64_t *out_ticket) {
    const struct operation *op = &item->task->op;
    bool device = item->awaits == AWAITS_DEVICE;
    *out_ticket = 0;
    if (item->done) return true;
    *out_ticket = device || op->kind == OP_COMPUTE ? item->ticket : item->before;
    if (op->kind == OP_COMPUTE) return e->computed >= op->end;
    return (device || item->awaits == AWAITS_NOTHING) && !has_steps(item);
}

/* Runs steps until one has to wait, or all are done. */
static zero_status advance(struct executor *e, struct item *item, bool *out_done) {
    for (;;) {
        bool reached;
        zero_status status = tests[item->awaits](e, item, &reached);
        if (status || (!reached && !overtakes(e, item))) return status;
        item->awaits = AWAITS_NOTHING;
        if (!has_steps(item)) return end(e, item, out_done);
        e->steps++;
        TRY(item->steps[item->step++](e, item));
    }
}

/* Runs the steps that can start at once. It never ends the item: the next test notices that the item is done. */
zero_status perform_start(struct executor *e, struct item *item) {
    const struct performer *p = e->m.performer;
    if (p) return p->start(p->user, &item->task->op, item->index, &item->ticket), ZERO_OK;
    zero_status status = ZERO_OK;
    item->steps = steps[item->task->op.kind];
    bool reached = true;
    while (!status && reached && has_steps(item)) {
        if (item->awaits == AWAITS_COMM || item->awaits == AWAITS_HOST) break;
        status = tests[item->awaits](e, item, &reached);
        if (status || !reached) break;
        item->awaits = AWAITS_NOTHING;
        e->steps++;
        status = item->steps[item->step++](e, item);
    }
    return status;
}

zero_status perform_test(struct executor *e, struct item *item, bool *out_done) {
    const struct performer *p = e->m.performer;
    *out_done = false;
    if (p && item->task->op.kind == OP_COMPUTE) return *out_done = e->computed >= item->task->op.end, ZERO_OK;
    if (p) return *out_done = p->done(p->user, item->ticket), ZERO_OK;
    return advance(e, item, out_done);
}
