/* The steps of a reduction: the gradient becomes a message; the messages are summed into the shard; the shard goes to
 * the memory where it rests. All other memory that a reduction needs is in its staging buffer. */
#include "engine/executor/steps.h"
#include "engine/plan/chunk_layout.h"
#include "kernels/work.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

/* ---- rounds ---- */

static bool coded(const struct executor_shape *o, const struct operation *op) {
    return scatters(op) && codes_gradient(o, op->region);
}

/* The threads of a device cannot narrow elements in place, so a narrower message needs its own memory. Else the message
 * takes the gradient's place. */
static bool stages_message(const struct executor_shape *o, uint32_t region) {
    struct precision p = precision_of(o, region);
    return o->discrete && dtype_bytes(p.message) < dtype_bytes(p.compute);
}

static struct comm_call whole_call(const struct executor_shape *o, const struct operation *op, uint64_t count) {
    struct precision p = precision_of(o, op->region);
    bool scatter = scatters(op);
    return (struct comm_call){.kind = scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE,
                              .dtype = reduced_from(&p, scatter),
                              .target_dtype = p.reduced,
                              .count = count,
                              .native = o->native_reduction,
                              .add = op->add};
}

/* A reduction that needs scratch memory goes in rounds, so that this memory is not as large as its region. The bits of a
 * native sum may depend on its size, so it is not cut. The host's arrays have rounds of their own (lent.c). */
uint64_t round_elements(const struct executor_shape *o, const struct operation *op) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    if (op->kind != OP_REDUCE || o->native_reduction) return UINT64_MAX;
    struct comm_call call = whole_call(o, op, NORM_BLOCK_ELEMENTS);
    if (scatters(op) && o->policy->region[op->region].grad_lent) return UINT64_MAX;
    if (!comm_staging_bytes(group, &call) && !coded(o, op) && !(scatters(op) && stages_message(o, op->region)))
        return UINT64_MAX;
    uint64_t bytes = o->piece_bytes ? o->piece_bytes : PIECE_BYTES_DEFAULT;
    if (scatters(op)) bytes /= comm_group_size(group);
    uint64_t most = bytes / dtype_bytes(call.dtype) / NORM_BLOCK_ELEMENTS * NORM_BLOCK_ELEMENTS;
    return most ? most : NORM_BLOCK_ELEMENTS;
}

/* ---- staging ---- */

/* Bytes of the message in the staging buffer, of one round. 0: the message takes the gradient's place. */
static uint64_t staged_message_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count) {
    if (!scatters(op) || !stages_message(o, op->region)) return 0;
    uint32_t members = comm_group_size(o->group[op->axes][op->stream]);
    return aligned(members * count * dtype_bytes(precision_of(o, op->region).message));
}

/* Bytes of the reduced shard at the end of the staging buffer, for a shard that rests in the host's memory. The
 * device makes that shard in the gradient, which nobody reads any more (0 bytes). It needs the staging buffer if the
 * gradient is gone or too narrow, or if the reduction adds to the old shard. */
static uint64_t staged_shard_bytes(const struct executor_shape *o, const struct operation *op) {
    struct precision p = precision_of(o, op->region);
    if (scatters(op) && !op->add && !precision_widens(&p)) return 0;
    return aligned(item_part(o, op, 0).count * dtype_bytes(p.reduced));
}

static bool shard_leaves(const struct executor_shape *o, uint32_t region) {
    return o->host_updates && !placement_is(o->policy->region[region].grad_step, REPLICATE, REPLICATE);
}

static uint64_t staging_bytes(const struct executor_shape *o, const struct operation *op) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    uint64_t share = o->model->region[op->region].padded /
                     (scatters(op) ? comm_group_size(group) : o->policy->mesh[AXIS_SHARD]),
             round = round_elements(o, op);
    struct comm_call call = whole_call(o, op, share < round ? share : round);
    uint64_t bytes = coded(o, op) ? reduce_code_bytes(o, call.count, comm_group_size(group))
                                  : comm_staging_bytes(group, &call);
    if (scatters(op) && o->policy->region[op->region].grad_lent) bytes = lent_reduce_bytes(group, call);
    bytes = aligned(bytes) + staged_message_bytes(o, op, call.count);
    return shard_leaves(o, op->region) ? bytes + staged_shard_bytes(o, op) : bytes;
}

/* A scatter cuts the whole region. A sum over the replicate axis is of the shard that a scatter left. */
uint64_t executor_staging_bytes(const struct executor_shape *o) {
    uint64_t most = 0;
    bool adds = (o->policy->accumulation == ACCUMULATE_EVERY && o->policy->micro_steps > 1) || o->policy->bound;
    for (uint32_t i = 0; i < o->model->regions; i++)
        for (uint8_t axes = AXES_SHARD; axes <= AXES_BOTH; axes++) {
            bool scatter = axes & AXES_SHARD;
            struct operation op = {.kind = OP_REDUCE,
                                   .object = OBJECT_GRAD,
                                   .stream = STREAM_REDUCE,
                                   .axes = axes,
                                   .add = scatter && adds,
                                   .reads = scatter,
                                   .region = (uint16_t)i};
            uint64_t bytes = o->group[axes][STREAM_REDUCE] ? staging_bytes(o, &op) : 0;
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
static uint8_t *staging_end(const struct executor *e, const struct item *item, uint64_t bytes) {
    const struct plan_buffer *staging = &e->o.plan->buffer[item->task->write[1]];
    return (uint8_t *)buffer_address(e, item->task->write[1]) +
           (staging->bytes - bytes) / ALIGN_BYTES * ALIGN_BYTES;
}

/* The address where the reduced shard rests if that is the host's memory and the device is discrete; else NULL. */
static void *rest_of_shard(const struct executor *e, const struct item *item) {
    void *rests = item_address(e, item, item->task->op.write[0], item->task->write[0]);
    return crosses(e, rests) ? rests : NULL;
}

static uint64_t shard_on_staging(const struct executor *e, const struct item *item) {
    return rest_of_shard(e, item) ? staged_shard_bytes(&e->o.shape, &item->task->op) : 0;
}

/* ---- the message ---- */

static struct part round_of(const struct executor *e, const struct item *item) {
    return round_part(&e->o.shape, &item->task->op, item->index, item->moved);
}

/* Where the round's part of the first share is in the message. */
static uint8_t *message_address(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    struct part part = round_of(e, item);
    uint64_t bytes = staged_message_bytes(&e->o.shape, op, part.count);
    if (bytes) return staging_end(e, item, bytes + shard_on_staging(e, item));
    return (uint8_t *)buffer_address(e, item->task->read[0]) +
           part.first * dtype_bytes(precision_of(&e->o.shape, op->region).message);
}

/* Elements from one share of the message to the next. */
static uint64_t message_step(const struct executor *e, const struct item *item) {
    struct part part = round_of(e, item);
    return stages_message(&e->o.shape, item->task->op.region) ? part.count : part.share;
}

static zero_status cast_message(struct executor *e, struct item *item, void *target, const void *source,
                                uint64_t count) {
    const struct precision p = precision_of(&e->o.shape, item->task->op.region);
    struct cast_scaled_argument a = {.target = target,
                                     .source = source,
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

/* In the gradient's place, the whole message is made at once; in memory of its own, round by round. */
zero_status make_message(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const struct precision p = precision_of(&e->o.shape, op->region);
    uint8_t *gradient = scatters(op) ? buffer_address(e, item->task->read[0]) : NULL;
    struct part part = round_of(e, item);
    uint64_t narrow = part.count * dtype_bytes(p.message);
    zero_status status = ZERO_OK;
    if (!gradient || !message_differs(&e->o.shape, &p)) return ZERO_OK;
    if (!stages_message(&e->o.shape, op->region))
        return part.first ? ZERO_OK
                          : cast_message(e, item, gradient, gradient,
                                         e->o.shape.model->region[op->region].padded);
    uint32_t members = comm_group_size(e->o.shape.group[op->axes][op->stream]);
    for (uint32_t m = 0; m < members && !status; m++)
        status = cast_message(e, item, message_address(e, item) + m * narrow,
                              gradient + (m * part.share + part.first) * dtype_bytes(p.compute), part.count);
    return status;
}

zero_status encode_message(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o.shape, &item->task->op, item->index, item->moved);
    if (!reduces_codes(e, item)) return ZERO_OK;
    return code_reduce(e, item, message_address(e, item), message_step(e, item), &call);
}

/* ---- the shard ---- */

/* The address where the reduction writes the item's part of the shard. */
static uint8_t *item_target(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    const struct task *task = item->task;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = precision_of(&e->o.shape, op->region).reduced;
    uint64_t staged = shard_on_staging(e, item);
    if (staged) return staging_end(e, item, staged);
    if (rest_of_shard(e, item))
        return (uint8_t *)own_part_address(e, op->read[0], task->read[0], cut, reduced) +
               item_part(&e->o.shape, op, item->index).first * dtype_bytes(reduced);
    if (buffer_is_ring(op->write[0].kind)) return item_address(e, item, op->write[0], task->write[0]);
    return own_part_address(e, op->write[0], task->write[0], cut, reduced);
}

/* The same of the present round. */
static uint8_t *round_target(const struct executor *e, const struct item *item) {
    return item_target(e, item) +
           item->moved * dtype_bytes(precision_of(&e->o.shape, item->task->op.region).reduced);
}

static uint64_t item_bytes(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return item_part(&e->o.shape, op, item->index).count *
           dtype_bytes(precision_of(&e->o.shape, op->region).reduced);
}

/* Copies the shard from the host's memory to the device, if the reduction adds to it or sums it over the replicate
 * axis. */
zero_status bring_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const void *rests = rest_of_shard(e, item);
    if (!rests || (scatters(op) && !op->add)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, item_target(e, item), rests, item_bytes(e, item));
}

/* Copies the reduced shard to the host's memory, while the program computes later units. */
zero_status leave_shard(struct executor *e, struct item *item) {
    void *rests = rest_of_shard(e, item);
    if (!rests) return ZERO_OK;
    return copy(e, item, DEVICE_OUT, rests, item_target(e, item), item_bytes(e, item));
}

/* ---- the sum ---- */

/* A shard that goes to the drive may have no later write in the step, so each write of it takes the norm. */
static bool takes_norm(const struct operation *op) {
    return buffer_is_ring(op->write[0].kind) || (op->final && !op->summed);
}

static bool sums_replicas(const struct operation *op) {
    return op->summed && buffer_is_ring(op->write[0].kind);
}

/* The collective takes the norm while it writes the sum, if nothing is added to the sum later. */
static comm_written_fn norm_of_sum(const struct executor *e, const struct operation *op, enum dtype reduced) {
    bool takes = scatters(op) && takes_norm(op) && !sums_replicas(op) && !e->o.shape.discrete;
    return takes ? norm_of_written(reduced) : NULL;
}

static bool ends_item(const struct executor *e, const struct item *item, uint64_t count) {
    return item->moved + count == item_part(&e->o.shape, &item->task->op, item->index).count;
}

zero_status post_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_call call = element_call(&e->o.shape, op, item->index, item->moved);
    if (scatters(op) && lent_region(e, op->read[0])) return lent_reduce(e, item, call);
    bool last = ends_item(e, item, call.count) && !sums_replicas(op);
    call.target = round_target(e, item);
    call.source = scatters(op) ? message_address(e, item) : call.target;
    if (call.stride) call.stride = message_step(e, item);
    if (call.stride == call.count) call.stride = 0;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written = norm_of_sum(e, op, call.target_dtype);
    call.written_user = &e->norm[op->region];
    uint64_t codes = reduces_codes(e, item) ? call.count : 0;
    if (codes) coded_reduce_call(e, item, &call);
    if (!item->index && !item->moved) e->norm[op->region] = 0;
    e->normed[op->region] = call.written != NULL;
    zero_status status = post_counted(e, item, e->o.shape.group[op->axes][op->stream], &call, codes);
    item->posted = last;
    return status;
}

/* Takes the sum of the round; then the steps from make_message on begin again, for the next one. */
zero_status decode_sum(struct executor *e, struct item *item) {
    enum { ROUND_STEPS = 4 };
    const struct operation *op = &item->task->op;
    if (scatters(op) && lent_region(e, op->read[0])) return lent_take_sum(e, item);
    struct part part = round_of(e, item);
    zero_status status = reduces_codes(e, item) ? decode_reduce(e, item, round_target(e, item), part.count)
                                                : ZERO_OK;
    bool ends = ends_item(e, item, part.count);
    item->moved = ends ? 0 : item->moved + part.count;
    if (!ends) item->step -= ROUND_STEPS;
    return status;
}

/* On the way to a drive, a chunk is summed over the replicate axis before it leaves its slot. */
zero_status sum_replicas(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op, sum = sum_of_scatter(op);
    struct part whole = item_part(&e->o.shape, op, item->index);
    if (!sums_replicas(op) || item->moved == whole.count) return ZERO_OK;
    struct comm_call call = element_call(&e->o.shape, &sum, item->index, item->moved);
    call.target = round_target(e, item);
    call.source = call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    zero_status status = post_counted(e, item, e->o.shape.group[sum.axes][sum.stream], &call, 0);
    item->moved += call.count;
    item->posted = item->moved == whole.count;
    item->step--; /* for the next round, or to go on */
    return status;
}

/* Norms that the collective did not take. Shards that rest in memory have another chance, in complete_norms. */
zero_status norm_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct part part = item_part(&e->o.shape, op, item->index);
    if (e->normed[op->region] || !takes_norm(op)) return ZERO_OK;
    if (e->o.shape.discrete) return norm_on_device(e, item, op->region, part, item_target(e, item));
    if (buffer_is_ring(op->write[0].kind)) norm_in_memory(e, op->region, part, item_target(e, item));
    return ZERO_OK;
}
