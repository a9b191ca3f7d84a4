/* Code that gathers and reductions share: the call that they post, and its traffic counters. */
#include "engine/executor/steps.h"

zero_status post_call(struct executor *e, struct item *item, struct comm_group *group,
                      const struct comm_call *call) {
    zero_status status = ahead_wait(e, item->task->ahead, item->before);
    if (status) return status;
    status = comm_post(group, call, &item->work);
    item->awaits = AWAITS_COMM;
    if (status) error_pass(&e->error, comm_group_error(group));
    return status;
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

/* The call of elements, before coding. */
struct comm_call element_call(const struct executor_shape *o, const struct operation *op) {
    const struct model_region *region = &o->model->region[op->region];
    struct precision p = precision_of(o, op->region);
    struct comm_call call = {.tag = op->region, .what = o->model->unit[region->unit]->name};
    if (op->kind == OP_GATHER) {
        call.kind = COMM_ALL_GATHER;
        call.dtype = call.target_dtype = op->object == OBJECT_GRAD ? p.reduced : p.compute;
        call.count = region->padded / comm_group_size(o->group[op->axes][op->stream]);
        return call;
    }
    call.kind = scatters(op) ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    call.dtype = reduced_from(&p, scatters(op));
    call.target_dtype = p.reduced;
    call.count = part_elements(o, op->region, grad_shard_placement(&o->policy->region[op->region]));
    call.native = o->native_reduction;
    call.add = op->add;
    return call;
}

struct comm_call executor_call(const struct executor_shape *o, const struct operation *op) {
    return coded_call(o, op, element_call(o, op));
}
