/* Code that gathers and reductions share: the call that they post, and its traffic counters. */
#include "engine/executor/steps.h"

bool posts_calls(const struct operation *op) { return op->kind == OP_GATHER || op->kind == OP_REDUCE; }

bool has_posted(const struct item *item) {
    return !posts_calls(&item->task->op) || item->posted || item->done;
}

/* Nothing waits in a circle: an operation waits only for operations that were emitted before it. */
bool collective_turn(const struct executor *e, const struct item *item) {
    for (int s = 0; s < STREAMS && e->one_order; s++) {
        const struct timeline *line = &e->stream[s];
        if (s == item->task->op.stream) continue;
        for (uint64_t i = line->retired; i < line->started; i++) {
            const struct item *other = &line->item[i & line->item_mask];
            if (other->task->collective < item->task->collective && !has_posted(other)) return false;
        }
        for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++) {
            const struct task *other = &line->task[i & line->task_mask];
            if (other->collective >= item->task->collective) break;
            if (posts_calls(&other->op)) return false;
        }
    }
    return true;
}

static void run_alone(void *argument) { comm_perform(*(struct comm_work **)argument); }

/* A call that waits for no other rank: sums and copies of this rank's memory. */
static const struct kernel alone_kernel = {
    .name = "call of one rank", .run = run_alone, .argument_bytes = sizeof(struct comm_work *)};

zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call) {
    zero_status status = ahead_wait(e, item->task->ahead, item->before);
    if (status) return status;
    status = comm_post(group, call, &item->work);
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
    comm_counters_read(e->o.comm, &before);
    zero_status status = post_call(e, item, group, call);
    item->posted = true;
    comm_counters_read(e->o.comm, &after);
    *(gathers ? &t->gather_calls : &t->reduce_calls) += after.calls[call->kind] - before.calls[call->kind];
    *(gathers ? &t->gather_elements : &t->reduce_elements) +=
        codes ? (comm_group_size(group) - 1) * codes
              : after.elements[call->kind] - before.elements[call->kind];
    t->bytes += after.bytes - before.bytes;
    return status;
}

/* The type of the sent elements: a scatter sends summands; a sum over the replicate axis sends the shard. */
enum dtype reduced_from(const struct precision *p, bool scatter) { return scatter ? p->message : p->reduced; }

bool scatters(const struct operation *op) {
    return op->reads > 0; /* else it sums the shard over the replicate axis */
}

/* The elements of a share that an operation moves: it cuts a region into as many shares as its group has members. */
static uint64_t share_elements(const struct executor_shape *o, const struct operation *op) {
    if (op->object == OBJECT_NORM)
        return tensor_words(o, op->region) / comm_group_size(o->group[op->axes][op->stream]);
    if (op->kind == OP_GATHER)
        return o->model->region[op->region].padded / comm_group_size(o->group[op->axes][op->stream]);
    return part_elements(o, op->region, grad_shard_placement(&o->policy->region[op->region]));
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct part item_part(const struct executor_shape *o, const struct operation *op, uint32_t index) {
    struct part part = {.share = share_elements(o, op)};
    part.first = index * op->piece;
    part.count = op->piece ? min64(op->piece, part.share - part.first) : part.share;
    return part;
}

/* The elements that an item moves in its next round. */
struct part round_part(const struct executor_shape *o, const struct operation *op, uint32_t index,
                       uint64_t moved) {
    struct part part = item_part(o, op, index);
    part.first += moved;
    part.count = min64(part.count - moved, round_elements(o, op));
    return part;
}

/* The call of elements, before coding. */
struct comm_call element_call(const struct executor_shape *o, const struct operation *op, uint32_t index,
                              uint64_t moved) {
    struct precision p = moved_precision(o, op);
    struct part part = round_part(o, op, index, moved);
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .count = part.count,
                             .stride = part.count < part.share ? part.share : 0,
                             .tag = op->region,
                             .what = o->model->unit[o->model->region[op->region].unit]->name};
    if (op->kind == OP_GATHER) {
        call.dtype = call.target_dtype = op->object == OBJECT_GRAD ? p.reduced : p.compute;
        return call;
    }
    call.kind = scatters(op) ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    call.dtype = reduced_from(&p, scatters(op));
    call.target_dtype = p.reduced;
    call.native = o->native_reduction;
    call.add = op->add;
    if (!scatters(op)) call.stride = 0;
    return call;
}

struct operation sum_of_scatter(const struct operation *op) {
    struct operation sum = *op;
    sum.axes = AXES_REPLICATE;
    sum.reads = 0;
    sum.add = false;
    return sum;
}

bool executor_next_call(const struct executor_shape *o, const struct operation *op, uint32_t item,
                        struct executor_round *round, struct comm_call *out) {
    bool sums = op->summed && buffer_is_ring(op->write[0].kind) && !round->sum && round->axes;
    uint64_t count = round_part(o, op, item, round->moved).count;
    if (!sums && round->axes) round->moved += count, count = round_part(o, op, item, round->moved).count;
    struct operation now = sums ? sum_of_scatter(op) : *op;
    if (!count) return false;
    *out = element_call(o, &now, item, round->moved);
    out->count = count;
    *out = coded_call(o, &now, *out);
    round->axes = now.axes;
    round->sum = sums;
    return true;
}
