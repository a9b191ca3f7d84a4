/* The steps of a reduction: the gradient becomes a message; the messages are summed into the shard; the shard goes to
 * the memory where it rests. All other memory that a reduction needs is in its staging buffer. */
#include "engine/executor/steps.h"
#include "kernels/work.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

/* Bytes of the message in the staging buffer. The threads of a device cannot narrow elements in place, so a narrower
 * message needs its own memory. 0: the message takes the gradient's place. */
static uint64_t staged_message_bytes(const struct executor_shape *o, uint32_t region) {
    struct precision p = precision_of(o, region);
    bool narrows = dtype_bytes(p.message) < dtype_bytes(p.compute);
    return o->discrete && narrows ? aligned(o->model->region[region].padded * dtype_bytes(p.message)) : 0;
}

/* Bytes of the reduced shard at the end of the staging buffer, for a shard that rests in the host's memory. The
 * device makes that shard in the gradient, which nobody reads any more (0 bytes). It needs the staging buffer if the
 * gradient is gone or too narrow, or if the reduction adds to the old shard. */
static uint64_t staged_shard_bytes(const struct executor_shape *o, uint32_t region, bool scatter, bool add) {
    struct placement cut = grad_shard_placement(&o->policy->region[region]);
    struct precision p = precision_of(o, region);
    if (scatter && !add && !precision_widens(&p)) return 0;
    return aligned(part_elements(o, region, cut) * dtype_bytes(p.reduced));
}

static bool shard_leaves(const struct executor_shape *o, uint32_t region) {
    return o->host_updates && !placement_is(o->policy->region[region].grad_step, REPLICATE, REPLICATE);
}

/* A scatter cuts the whole region. A sum over the replicate axis is of the shard that a scatter left. */
uint64_t executor_staging_bytes(const struct executor_shape *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions; i++)
        for (int axes = AXES_SHARD; axes <= AXES_BOTH; axes++) {
            const struct comm_group *group = o->group[axes][STREAM_REDUCE];
            bool scatter = axes & AXES_SHARD;
            if (!group) continue;
            struct precision p = precision_of(o, i);
            struct comm_call call = {.kind = scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE,
                                     .dtype = reduced_from(&p, scatter),
                                     .target_dtype = p.reduced,
                                     .native = o->native_reduction};
            uint32_t parts = scatter ? comm_group_size(group) : o->policy->mesh[AXIS_SHARD];
            call.count = o->model->region[i].padded / parts;
            uint64_t bytes = scatter && codes_gradient(o, i) ? reduce_code_bytes(o, call.count, parts)
                                                             : comm_staging_bytes(group, &call);
            if (scatter && o->policy->region[i].grad_lent) bytes = lent_reduce_bytes(group, call);
            bool adds = (o->policy->accumulation == ACCUMULATE_EVERY && o->policy->micro_steps > 1) ||
                        o->policy->bound;
            bytes = aligned(bytes);
            if (scatter) bytes += staged_message_bytes(o, i);
            if (shard_leaves(o, i)) bytes += staged_shard_bytes(o, i, scatter, adds);
            if (bytes > most) most = bytes;
        }
    return most;
}

/* True if the message has another type than the gradient, or is multiplied by a factor. It then overwrites the
 * gradient, which nobody reads after its reduction, or it has its own memory. */
static bool message_differs(const struct executor_shape *o, const struct precision *p) {
    return p->compute != p->message || o->gradient_factor != 0;
}

/* The address that is `bytes` before the end of the staging buffer. */
static uint8_t *staging_end(const struct executor *e, const struct task *task, uint64_t bytes) {
    const struct plan_buffer *staging = &e->o.plan->buffer[task->write[1]];
    return (uint8_t *)buffer_address(e, task->write[1]) +
           (staging->bytes - bytes) / ALIGN_BYTES * ALIGN_BYTES;
}

/* The address where the reduced shard rests if that is the host's memory and the device is discrete; else NULL. */
static void *rest_of_shard(const struct executor *e, const struct task *task) {
    void *rests = buffer_address(e, task->write[0]);
    return crosses(e, rests) ? rests : NULL;
}

static uint64_t shard_on_staging(const struct executor *e, const struct task *task) {
    const struct operation *op = &task->op;
    return rest_of_shard(e, task) ? staged_shard_bytes(&e->o.shape, op->region, scatters(op), op->add) : 0;
}

static uint8_t *message_address(const struct executor *e, const struct task *task) {
    uint64_t bytes = staged_message_bytes(&e->o.shape, task->op.region);
    return bytes ? staging_end(e, task, bytes + shard_on_staging(e, task))
                 : (uint8_t *)buffer_address(e, task->read[0]);
}

zero_status make_message(struct executor *e, struct item *item) {
    const struct precision p = precision_of(&e->o.shape, item->task->op.region);
    uint64_t count = e->o.shape.model->region[item->task->op.region].padded;
    if (!scatters(&item->task->op) || !message_differs(&e->o.shape, &p)) return ZERO_OK;
    struct cast_scaled_argument a = {.target = message_address(e, item->task),
                                     .source = buffer_address(e, item->task->read[0]),
                                     .count = count,
                                     .factor = e->o.shape.gradient_factor,
                                     .target_dtype = p.message,
                                     .source_dtype = p.compute};
    struct device_work work = {.reads = 1,
                               .writes = 1,
                               .read = {{(void *)a.source, count * dtype_bytes(p.compute)}},
                               .write = {{a.target, count * dtype_bytes(p.message)}}};
    if (a.target == a.source) work.write[0] = work.read[0];
    return submit(e, item, &kernel_cast_scaled, DEVICE_REDUCE, &a, &work);
}

/* The address where the reduction writes the shard. */
static void *reduce_target(const struct executor *e, const struct task *task) {
    const struct operation *op = &task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    uint64_t staged = shard_on_staging(e, task);
    if (staged) return staging_end(e, task, staged);
    bool there = rest_of_shard(e, task);
    return own_part_address(e, there ? op->read[0] : op->write[0], there ? task->read[0] : task->write[0],
                            cut, precision_of(&e->o.shape, op->region).reduced);
}

/* Copies the shard from the host's memory to the device, if the reduction adds to it or sums it over the replicate
 * axis. */
zero_status bring_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const void *rests = rest_of_shard(e, item->task);
    if (!rests || (scatters(op) && !op->add)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, reduce_target(e, item->task), rests, grad_shard_bytes(e, op->region));
}

/* Copies the reduced shard to the host's memory, while the program computes later units. */
zero_status leave_shard(struct executor *e, struct item *item) {
    void *rests = rest_of_shard(e, item->task);
    if (!rests) return ZERO_OK;
    return copy(e, item, DEVICE_OUT, rests, reduce_target(e, item->task),
                grad_shard_bytes(e, item->task->op.region));
}

zero_status encode_message(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o.shape, &item->task->op);
    return reduces_codes(e, item) ? code_reduce(e, item, message_address(e, item->task), &call) : ZERO_OK;
}

/* A shard that goes to the drive may have no later write in the step, so each write of it takes the norm. */
static bool takes_norm(const struct operation *op) {
    return !op->summed && (op->final || op->write[0].kind == BUFFER_GRAD_STAGED);
}

zero_status post_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_call call = element_call(&e->o.shape, op);
    if (scatters(op) && lent_region(e, op->read[0])) return lent_reduce(e, item, call);
    call.target = reduce_target(e, item->task);
    call.source = scatters(op) ? message_address(e, item->task) : call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written =
        scatters(op) && takes_norm(op) && !e->o.shape.discrete ? norm_of_written(call.target_dtype) : NULL;
    call.written_user = &e->norm[op->region];
    uint64_t codes = reduces_codes(e, item) ? call.count : 0;
    if (codes) coded_reduce_call(e, item, &call);
    e->norm[op->region] = 0;
    e->normed[op->region] = call.written != NULL;
    return post_counted(e, item, e->o.shape.group[op->axes][op->stream], &call, codes);
}

zero_status decode_sum(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    if (scatters(op) && lent_region(e, op->read[0])) return lent_take_sum(e, item);
    if (!reduces_codes(e, item)) return ZERO_OK;
    return decode_reduce(e, item, reduce_target(e, item->task), shard_elements(e, op->region, cut));
}

/* Norms that the collective did not take. Shards that rest in memory have another chance, in complete_norms. */
zero_status norm_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    bool staged = op->write[0].kind == BUFFER_GRAD_STAGED;
    if (e->normed[op->region] || !takes_norm(op)) return ZERO_OK;
    if (e->o.shape.discrete) return norm_on_device(e, item, op->region, reduce_target(e, item->task));
    if (staged) norm_in_memory(e, op->region, reduce_target(e, item->task));
    return ZERO_OK;
}
