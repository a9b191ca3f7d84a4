/* A reduction, step by step: the gradient becomes a message, is summed into the shard, which goes to where it rests.
 * What it needs besides the two lies in the staging. */
#include "engine/executor/steps.h"
#include "kernels/work.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

/* A device's threads narrow nothing in place: the message has a place of its own, in the staging. 0: it has not. */
static uint64_t staged_message_bytes(const struct executor_options *o, uint32_t region) {
    bool narrows = dtype_bytes(o->precision.message) < dtype_bytes(o->precision.compute);
    return o->discrete && narrows
               ? aligned(o->model->region[region].padded * dtype_bytes(o->precision.message))
               : 0;
}

/* A shard that rests in the host's memory is made on the device in the gradient, which nobody reads any more; or, where
 * that is gone or too narrow, or where it is added to what was there, in the staging's end. 0: not there. */
static uint64_t staged_shard_bytes(const struct executor_options *o, uint32_t region, bool scatter,
                                   bool add) {
    struct placement cut = grad_shard_placement(&o->policy->region[region]);
    if (scatter && !add && !precision_widens(&o->precision)) return 0;
    return aligned(part_elements(o, region, cut) * dtype_bytes(o->precision.reduced));
}

static bool shard_leaves(const struct executor_options *o, uint32_t region) {
    return o->host_updates && !placement_is(o->policy->region[region].grad_step, REPLICATE, REPLICATE);
}

/* Scatters cut the whole region; sums over the replicate axis are of what one scatter leaves. */
uint64_t executor_staging_bytes(const struct executor_options *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions; i++)
        for (int axes = AXES_SHARD; axes <= AXES_BOTH; axes++) {
            const struct comm_group *group = o->group[axes][STREAM_REDUCE];
            bool scatter = axes & AXES_SHARD;
            if (!group) continue;
            struct comm_call call = {.kind = scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE,
                                     .dtype = reduced_from(&o->precision, scatter),
                                     .target_dtype = o->precision.reduced,
                                     .native = o->native_reduction};
            uint32_t parts = scatter ? comm_group_size(group) : o->policy->mesh[AXIS_SHARD];
            call.count = o->model->region[i].padded / parts;
            uint64_t bytes = scatter && o->gradient_bits ? reduce_code_bytes(o, call.count, parts)
                                                         : comm_staging_bytes(group, &call);
            bool adds = o->policy->accumulation == ACCUMULATE_EVERY && o->policy->micro_steps > 1;
            bytes = aligned(bytes);
            if (scatter) bytes += staged_message_bytes(o, i);
            if (shard_leaves(o, i)) bytes += staged_shard_bytes(o, i, scatter, adds);
            if (bytes > most) most = bytes;
        }
    return most;
}

/* A message of another type than the gradient, or multiplied, takes the gradient's place, or a place of its own: after
 * its reduction nobody reads the gradient. */
static bool message_differs(const struct executor_options *o) {
    return o->precision.compute != o->precision.message || o->gradient_factor != 0;
}

/* So many bytes before the staging's end. */
static uint8_t *staging_end(const struct executor *e, const struct task *task, uint64_t bytes) {
    const struct plan_buffer *staging = &e->o.plan->buffer[task->write[1]];
    return (uint8_t *)buffer_address(e, task->write[1]) +
           (staging->bytes - bytes) / ALIGN_BYTES * ALIGN_BYTES;
}

/* Where the reduced shard rests, if that is the host's memory and the device is another; else NULL. */
static void *rest_of_shard(const struct executor *e, const struct task *task) {
    void *rests = buffer_address(e, task->write[0]);
    return crosses(e, rests) ? rests : NULL;
}

static uint64_t shard_on_staging(const struct executor *e, const struct task *task) {
    const struct operation *op = &task->op;
    return rest_of_shard(e, task) ? staged_shard_bytes(&e->o, op->region, scatters(op), op->add) : 0;
}

static uint8_t *message_address(const struct executor *e, const struct task *task) {
    uint64_t bytes = staged_message_bytes(&e->o, task->op.region);
    return bytes ? staging_end(e, task, bytes + shard_on_staging(e, task))
                 : (uint8_t *)buffer_address(e, task->read[0]);
}

zero_status make_message(struct executor *e, struct item *item) {
    const struct precision *p = &e->o.precision;
    uint64_t count = e->o.model->region[item->task->op.region].padded;
    if (!scatters(&item->task->op) || !message_differs(&e->o)) return ZERO_OK;
    struct cast_scaled_argument a = {.target = message_address(e, item->task),
                                     .source = buffer_address(e, item->task->read[0]),
                                     .count = count,
                                     .factor = e->o.gradient_factor,
                                     .target_dtype = p->message,
                                     .source_dtype = p->compute};
    struct device_work work = {.reads = 1,
                               .writes = 1,
                               .read = {{(void *)a.source, count * dtype_bytes(p->compute)}},
                               .write = {{a.target, count * dtype_bytes(p->message)}}};
    if (a.target == a.source) work.write[0] = work.read[0];
    return submit(e, item, &kernel_cast_scaled, DEVICE_REDUCE, &a, &work);
}

/* The reduced shard on the device, or on the host's. */
static void *reduce_target(const struct executor *e, const struct task *task) {
    const struct operation *op = &task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    uint64_t staged = shard_on_staging(e, task);
    if (staged) return staging_end(e, task, staged);
    bool there = rest_of_shard(e, task);
    return own_part_address(e, there ? op->read[0] : op->write[0], there ? task->read[0] : task->write[0],
                            cut, e->o.precision.reduced);
}

/* What a reduction adds to, or sums over the replicate axis, comes to the device from where it rests ... */
zero_status bring_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const void *rests = rest_of_shard(e, item->task);
    if (!rests || (scatters(op) && !op->add)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, reduce_target(e, item->task), rests, grad_shard_bytes(e, op->region));
}

/* ... and what it made goes there, while later units are computed. */
zero_status leave_shard(struct executor *e, struct item *item) {
    void *rests = rest_of_shard(e, item->task);
    if (!rests) return ZERO_OK;
    return copy(e, item, DEVICE_OUT, rests, reduce_target(e, item->task),
                grad_shard_bytes(e, item->task->op.region));
}

zero_status encode_message(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o, &item->task->op);
    return reduces_codes(e, item) ? code_reduce(e, item, message_address(e, item->task), &call) : ZERO_OK;
}

zero_status post_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_call call = element_call(&e->o, op);
    call.target = reduce_target(e, item->task);
    call.source = scatters(op) ? message_address(e, item->task) : call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written = scatters(op) && op->final && !e->o.discrete ? norm_of_written(call.target_dtype) : NULL;
    call.written_user = &e->norm[op->region];
    uint64_t codes = reduces_codes(e, item) ? call.count : 0;
    if (codes) coded_reduce_call(e, item, &call);
    e->norm[op->region] = 0;
    e->normed[op->region] = call.written != NULL;
    return post_counted(e, item, e->o.group[op->axes][op->stream], &call, codes);
}

zero_status decode_sum(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    if (!reduces_codes(e, item)) return ZERO_OK;
    return decode_reduce(e, item, reduce_target(e, item->task), shard_elements(e, op->region, cut));
}

zero_status norm_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    bool takes = e->o.discrete && op->final && !e->normed[op->region];
    return takes ? norm_on_device(e, item, op->region, reduce_target(e, item->task)) : ZERO_OK;
}
