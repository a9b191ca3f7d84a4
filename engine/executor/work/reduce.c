/* The steps of a reduction: the gradient becomes a message; the messages are summed into the shard; the shard goes to
 * the memory where it rests. All other memory that a reduction needs is in its staging buffer. */
#include "engine/executor/work/work.h"

#include "engine/base/integer.h"
#include "engine/model/lent.h"
#include "kernels/device_work.h"
#include "kernels/gradients.h"

/* ---- staging ---- */

/* True if the message has another type than the gradient, or is multiplied by a factor. It then overwrites the
 * gradient, which nobody reads after its reduction, or it has its own memory. */
static bool message_differs(const struct executor_shape *o, const struct precision *p) {
    return p->compute != p->message || o->terms->gradient_factor != 0;
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

static struct part round_of(const struct executor *e, const struct item *item) {
    return round_part(&e->o.shape, &item->task->op, item->index, item->moved);
}

static uint64_t shard_on_staging(const struct executor *e, const struct item *item) {
    return staged_shard_bytes(&e->o.shape, &item->task->op, round_of(e, item).count);
}

/* ---- the message ---- */

/* Where the round's part of the first share is in the message. */
static uint8_t *message_address(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    struct part part = round_of(e, item);
    uint64_t bytes = staged_message_bytes(&e->o.shape, op, part.count);
    if (bytes) return staging_end(e, item, bytes + shard_on_staging(e, item));
    return (uint8_t *)buffer_address(e, item->task->read[0]) +
           part.first * dtype_bytes(moved_precision(&e->o.shape, op).message);
}

/* Elements from one share of the message to the next. */
static uint64_t message_step(const struct executor *e, const struct item *item) {
    struct part part = round_of(e, item);
    return stages_message(&e->o.shape, &item->task->op) ? part.count : part.share;
}

/* `rows` of `count` elements, `step` elements apart in the source. */
static zero_status cast_message(struct executor *e, struct item *item, void *target, const void *source,
                                uint64_t count, uint32_t rows, uint64_t step) {
    const struct precision p = precision_of(&e->o.shape, item->task->op.region);
    struct cast_scaled_argument a = {.target = target,
                                     .source = source,
                                     .count = count,
                                     .step = step,
                                     .rows = rows,
                                     .factor = e->o.shape.terms->gradient_factor,
                                     .target_dtype = p.message,
                                     .source_dtype = p.compute};
    struct device_work work = {.reads = 1,
                               .writes = 1,
                               .read = {{(void *)a.source, count * dtype_bytes(p.compute)}},
                               .write = {{a.target, count * dtype_bytes(p.message)}},
                               .rows = rows,
                               .read_step = step * dtype_bytes(p.compute),
                               .write_step = count * dtype_bytes(p.message)};
    if (a.target == a.source) work.write[0] = work.read[0];
    return submit(e, item, &kernel_cast_scaled, DEVICE_REDUCE, &a, &work);
}

/* The round's part of the message, from memory that the host gave, or from its arrays. */
struct given_argument {
    const struct model_region *region;
    uint8_t *message;
    struct part part;
    uint64_t bytes; /* of an element */
    uint32_t members;
};

static void run_given(void *argument) {
    const struct given_argument *a = argument;
    for (uint32_t m = 0; m < a->members; m++)
        lent_read(a->region, LENT_GRADS, a->bytes, m * a->part.share + a->part.first, a->part.count,
                  a->message + m * a->part.count * a->bytes);
}

static const struct kernel given_kernel = {
    .name = "given gradient", .run = run_given, .argument_bytes = sizeof(struct given_argument)};

/* The same by the device, piece by piece, as its stream has room. */
static zero_status copy_given(struct executor *e, struct item *item, const struct given_argument *a) {
    zero_status status = ZERO_OK;
    for (uint64_t n; item->taken < a->members * a->part.count && !status; item->taken += n) {
        uint64_t member = item->taken / a->part.count, at = item->taken % a->part.count;
        uint8_t *to = a->message + item->taken * a->bytes;
        if (await_room(e, item, NULL)) return ZERO_OK;
        const void *from =
            lent_at(a->region, LENT_GRADS, a->bytes, member * a->part.share + a->part.first + at, &n);
        n = min64(n, a->part.count - at);
        status = from ? copy(e, item, DEVICE_REDUCE, to, from, n * a->bytes)
                      : clear_memory(e, item, DEVICE_REDUCE, to, n * a->bytes);
        item->before = 0; /* the stream has waited for it */
    }
    item->taken = 0;
    return status;
}

static zero_status take_given(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct given_argument a = {.region = &e->o.shape.model->region[op->region],
                               .message = message_address(e, item),
                               .part = round_of(e, item),
                               .bytes = dtype_bytes(precision_of(&e->o.shape, op->region).compute),
                               .members = comm_group_size(e->o.shape.group[op->axes][op->stream])};
    struct device_work work = {.writes = 1, .write = {{a.message, a.members * a.part.count * a.bytes}}};
    return e->o.shape.terms->discrete ? copy_given(e, item, &a)
                                      : submit(e, item, &given_kernel, DEVICE_REDUCE, &a, &work);
}

/* In the gradient's place, the whole message is made at once; in memory of its own, round by round. */
zero_status make_message(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const struct precision p = precision_of(&e->o.shape, op->region);
    uint8_t *gradient = scatters(op) ? buffer_address(e, item->task->read[0]) : NULL;
    struct part part = round_of(e, item);
    if (reads_given(&e->o.shape, op)) return take_given(e, item);
    if (!gradient || op->object != OBJECT_GRAD || !message_differs(&e->o.shape, &p)) return ZERO_OK;
    if (!stages_message(&e->o.shape, op))
        return part.first ? ZERO_OK
                          : cast_message(e, item, gradient, gradient,
                                         e->o.shape.model->region[op->region].padded, 1, 0);
    uint32_t members = comm_group_size(e->o.shape.group[op->axes][op->stream]);
    return cast_message(e, item, message_address(e, item), gradient + part.first * dtype_bytes(p.compute),
                        part.count, members, part.share);
}

zero_status encode_message(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o.shape, &item->task->op, item->index, item->moved);
    if (!codes_reduce(&e->o.shape, &item->task->op)) return ZERO_OK;
    return code_reduce(e, item, message_address(e, item), message_step(e, item), &call);
}

/* ---- the shard ---- */

/* Where the round's part of the shard rests. */
static uint8_t *round_rest(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = moved_precision(&e->o.shape, op).reduced;
    if (op->object == OBJECT_DIRECTION)
        return (uint8_t *)(part_of_directions(e, op->region, item->task->write[0], cut) + item->moved);
    uint8_t *rests = buffer_is_ring(op->write[0].kind)
                         ? item_address(e, item, op->write[0], item->task->write[0])
                         : own_part_address(e, op->write[0], item->task->write[0], cut, reduced);
    return rests + item->moved * dtype_bytes(reduced);
}

/* Where the reduction writes it. */
static uint8_t *round_target(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = precision_of(&e->o.shape, op->region).reduced;
    if (!rest_of_shard(e, item) && !lent_region(e, op->write[0])) return round_rest(e, item);
    if (stages_shard(&e->o.shape, op)) return staging_end(e, item, shard_on_staging(e, item));
    return (uint8_t *)own_part_address(e, op->read[0], item->task->read[0], cut, reduced) +
           round_of(e, item).first * dtype_bytes(reduced);
}

static uint64_t round_bytes(const struct executor *e, const struct item *item) {
    return round_of(e, item).count * dtype_bytes(moved_precision(&e->o.shape, &item->task->op).reduced);
}

static bool host_adds(const struct executor *e, const struct item *item) {
    return executor_host_adds(&e->o.shape, &item->task->op) && rest_of_shard(e, item);
}

/* Copies the shard from the host's memory to the device, if the device adds to it or sums it over the replicate axis. */
zero_status bring_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    if (!rest_of_shard(e, item) || (scatters(op) && !op->add) || host_adds(e, item)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, round_target(e, item), round_rest(e, item), round_bytes(e, item));
}

/* A shard that goes to the drive through the ring may have no later write in the step, so each write of it takes the norm. */
static bool takes_norm(const struct operation *op) {
    if (op->object == OBJECT_DIRECTION) return false;
    return buffer_is_ring(op->write[0].kind) || (op->final && !op->summed);
}

/* A round of the shard, on its way to the sum in the host's memory. */
static void *round_staging(const struct executor *e, const struct item *item) {
    uint16_t index = item->task->op.write[1].region;
    return executor_address(e, (struct buffer_ref){BUFFER_ROUND_STAGING, index});
}

/* The sum of a round goes to the host's arrays. */
static zero_status leave_lent(struct executor *e, struct item *item, const struct model_region *lent) {
    const struct operation *op = &item->task->op;
    struct part part = round_of(e, item);
    uint32_t me = comm_group_index(e->o.shape.group[op->axes][op->stream]);
    lent_write(lent, LENT_GRADS, dtype_bytes(precision_of(&e->o.shape, op->region).reduced),
               me * part.share + part.first, part.count, round_target(e, item));
    return ZERO_OK;
}

/* Copies the reduced shard to the host's memory, while the program computes later units. */
zero_status leave_shard(struct executor *e, struct item *item) {
    const struct model_region *lent = lent_region(e, item->task->op.write[0]);
    if (lent) return reads_given(&e->o.shape, &item->task->op) ? leave_lent(e, item, lent) : ZERO_OK;
    if (!rest_of_shard(e, item)) return ZERO_OK;
    void *target = host_adds(e, item) ? round_staging(e, item) : round_rest(e, item);
    struct part whole = item_part(&e->o.shape, &item->task->op, item->index);
    bool last = item->moved + round_of(e, item).count == whole.count;
    item->leaves =
        last && !host_adds(e, item) && !buffer_is_ring(item->task->op.write[0].kind) &&
        e->normed[item->task->op.region]; /* else the agreement takes the norm of what has come there */
    item->left = item->before;
    return copy(e, item, DEVICE_OUT, target, round_target(e, item), round_bytes(e, item));
}

struct add_argument {
    struct executor *executor;
    struct gradient_take_argument take;
    struct part part;
    uint32_t region;
    bool norm;
};

static struct gradient_take_argument only_array(const void *user, uint32_t i) {
    return ((const struct add_argument *)user)->take;
}

static void run_add(void *argument) {
    struct add_argument *a = argument;
    gradients_take(only_array, a, 1, a->executor->m.threads);
    if (a->norm) add_norm_in_memory(a->executor, a->region, a->part, a->take.sum);
}

/* The addition by the host. */
static const struct kernel add_kernel = {
    .name = "add gradient", .run = run_add, .argument_bytes = sizeof(struct add_argument)};

zero_status add_left(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    if (!host_adds(e, item)) return ZERO_OK;
    struct part part = round_of(e, item);
    struct add_argument a = {e,
                             {round_rest(e, item), round_staging(e, item), part.count, DTYPE_F32, true},
                             part,
                             op->region,
                             takes_norm(op)};
    uint64_t bytes = part.count * sizeof(float);
    struct device_work work = {.reads = 2,
                               .writes = 1,
                               .read = {{(void *)a.take.gradient, bytes}, {a.take.sum, bytes}},
                               .write = {{a.take.sum, bytes}}};
    e->normed[op->region] = a.norm;
    return submit(e, item, &add_kernel, DEVICE_REDUCE, &a, &work);
}

/* The next round begins, or the item ends. */
zero_status end_round(struct executor *e, struct item *item) {
    struct part whole = item_part(&e->o.shape, &item->task->op, item->index);
    item->moved += round_of(e, item).count;
    if (item->moved < whole.count)
        repeat_from(item, bring_shard);
    else
        item->posted = true;
    return ZERO_OK;
}

/* ---- the sum ---- */

/* True if the shard's memory is reused before the agreement: then its norm can only be taken during its reduction. */
static bool leaves_memory(const struct executor *e, const struct operation *op) {
    return buffer_is_ring(op->write[0].kind) || op->write[0].kind == BUFFER_GRAD_HELD ||
           policy_region(e, op->region)->grad_brief;
}

/* The collective takes the norm while it writes the sum, if nothing is added to the sum later. */
static comm_written_fn norm_of_sum(const struct executor *e, const struct operation *op, enum dtype reduced) {
    bool takes = scatters(op) && takes_norm(op) && !sums_replicas(op) && !e->o.shape.terms->discrete;
    return takes ? norm_of_written(reduced) : NULL;
}

/* The same on a device, whose kernel sums in the device's memory. */
static bool norms_with_sum(const struct executor_shape *o, const struct operation *op, bool by_host) {
    return o->terms->discrete && scatters(op) && takes_norm(op) && !sums_replicas(op) && !by_host &&
           !codes_reduce(o, op);
}

bool executor_norm_apart(const struct executor_shape *o, const struct operation *op, bool by_host) {
    return o->terms->discrete && takes_norm(op) && !by_host && !norms_with_sum(o, op, by_host);
}

bool reduce_posts_once(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return !buffer_is_ring(op->write[0].kind) &&
           round_of(e, item).count == item_part(&e->o.shape, op, item->index).count;
}

/* The call's scratch memory lies before the message and the shard. */
static zero_status check_staging(struct executor *e, const struct item *item, const struct comm_group *group,
                                 const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint64_t behind =
                 staged_message_bytes(&e->o.shape, op, round_of(e, item).count) + shard_on_staging(e, item),
             has = op->writes > 1 ? e->o.plan->buffer[item->task->write[1]].bytes : 0,
             needs = comm_staging_bytes(group, call);
    if (!needs || needs + behind <= has) return ZERO_OK;
    return error_set(&e->error, ZERO_E_INTERNAL,
                     "rank %u: a reduction of %llu elements needs %llu bytes of scratch memory, and %llu are "
                     "planned: a fault of the engine; report it with the configuration",
                     e->m.rank, (unsigned long long)call->count, (unsigned long long)(needs + behind),
                     (unsigned long long)has);
}

zero_status post_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    struct comm_call call = element_call(&e->o.shape, op, item->index, item->moved);
    if (await_room(e, item, group)) return ZERO_OK;
    bool alone = sums_lent(&e->o.shape, op);
    e->traffic.reduce_calls += alone;
    if (alone) return lent_sum(e, op->region), item->posted = true, ZERO_OK;
    uint64_t step = scatters(op) ? message_step(e, item) : call.count;
    call.add = op->add && !host_adds(e, item);
    call.target = round_target(e, item);
    call.source = scatters(op) ? message_address(e, item) : call.target;
    call.stride = step > call.count ? step : 0;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written = norm_of_sum(e, op, call.target_dtype);
    call.written_user = &e->norm[op->region];
    bool with_sum = norms_with_sum(&e->o.shape, op, host_adds(e, item));
    if (with_sum) norm_with_sum(e, op->region, round_of(e, item), &call.norm);
    uint64_t codes = codes_reduce(&e->o.shape, &item->task->op) ? call.count : 0;
    if (codes) coded_reduce_call(e, item, &call);
    if (call.written && !item->index && !item->moved)
        e->norm[op->region] = 0; /* `written` adds to the norm */
    if (op->object == OBJECT_GRAD) e->normed[op->region] = call.written != NULL || with_sum;
    zero_status status = codes ? ZERO_OK : check_staging(e, item, group, &call);
    if (!status) status = post_counted(e, item, group, &call, codes);
    item->posted = reduce_posts_once(e, item);
    return status;
}

zero_status decode_sum(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    if (!codes_reduce(&e->o.shape, &item->task->op)) return ZERO_OK;
    return decode_reduce(e, item, round_target(e, item), round_of(e, item).count,
                         op->add && !host_adds(e, item));
}

/* On the way to a drive, what was scattered is summed over the replicate axis before it leaves its slot. */
zero_status sum_replicas(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op, sum = sum_of_scatter(op);
    struct comm_group *group = sums_replicas(op) ? e->o.shape.group[sum.axes][sum.stream] : NULL;
    if (!group || await_room(e, item, group)) return ZERO_OK;
    struct comm_call call = element_call(&e->o.shape, &sum, item->index, item->moved);
    call.count = round_of(e, item).count;
    call.target = round_target(e, item);
    call.source = call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    zero_status status = check_staging(e, item, group, &call);
    if (!status) status = post_counted(e, item, group, &call, 0);
    item->posted = false;
    return status;
}

/* Takes norms that the collective did not take. For shards that rest in memory, complete_norms can take them later. */
zero_status norm_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    if (e->normed[op->region] || !takes_norm(op) || host_adds(e, item)) return ZERO_OK;
    if (e->o.shape.terms->discrete)
        return norm_on_device(e, item, op->region, round_of(e, item), round_target(e, item));
    if (leaves_memory(e, op)) norm_in_memory(e, op->region, round_of(e, item), round_target(e, item));
    return ZERO_OK;
}
