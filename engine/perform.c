/* How each kind of operation is performed: one row per kind, through the mechanisms' tables. An item goes from step to
 * step: a step starts something on one mechanism, which the item then awaits, or nothing. On a device that is separate
 * from the host, all arithmetic and all copies are its work; nothing here looks at what is in its memory. */
#include <math.h>
#include <string.h>

#include "engine/executor_internal.h"
#include "kernels/norm.h"
#include "kernels/work.h"

static const struct region *policy_region(const struct executor *e, uint32_t region) {
    return &e->o.policy->region[region];
}

static uint64_t part_elements(const struct executor_options *o, uint32_t region, struct placement placement) {
    return o->model->region[region].padded / placement_parts(placement, o->policy->mesh);
}

static uint64_t shard_elements(const struct executor *e, uint32_t region, struct placement placement) {
    return part_elements(&e->o, region, placement);
}

void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype) {
    uint8_t *address = buffer_address(e, buffer);
    bool whole = ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL;
    if (!whole) return address;
    uint32_t part = placement_part(placement, e->o.policy->mesh, e->o.rank);
    return address + part * shard_elements(e, ref.region, placement) * dtype_bytes(dtype);
}

static struct placement grad_shard_placement(const struct region *r) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    return placement_equal(r->grad_step, whole) ? (struct placement){{SHARD, REPLICATE}} : r->grad_step;
}

/* ---- what an item awaits ---- */

zero_status submit(struct executor *e, struct item *item, const struct kernel *kernel,
                   enum device_stream stream, const void *argument, struct device_work *work) {
    work->kernel = kernel;
    work->stream = (uint8_t)stream;
    memcpy(work->argument, argument, kernel->argument_bytes);
    item->awaits = AWAITS_DEVICE;
    return e->o.device->ops->submit(e->o.device, work, &item->ticket, &e->error);
}

zero_status copy(struct executor *e, struct item *item, enum device_stream stream, void *target,
                 const void *source, uint64_t bytes) {
    item->awaits = AWAITS_DEVICE;
    return e->o.device->ops->copy(e->o.device, stream, target, source, bytes, &item->ticket, &e->error);
}

static zero_status post(struct executor *e, struct item *item, struct comm_group *group,
                        const struct comm_call *call) {
    zero_status status = comm_post(group, call, &item->work);
    item->awaits = AWAITS_COMM;
    if (status) error_pass(&e->error, comm_group_error(group));
    return status;
}

static zero_status test_device(struct executor *e, struct item *item, bool *out_done) {
    return e->o.device->ops->test(e->o.device, item->ticket, out_done, &e->error);
}

static zero_status test_comm(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = comm_test(item->work, out_done);
    if (status) error_pass(&e->error, comm_work_error(item->work));
    return status;
}

static zero_status test_nothing(struct executor *e, struct item *item, bool *out_done) {
    *out_done = true;
    return ZERO_OK;
}

static bool has_posted(const struct item *item) {
    bool posts = item->task->op.kind == OP_GATHER || item->task->op.kind == OP_REDUCE;
    return !posts || item->posted || item->done;
}

/* All ranks post in the order of emission, whatever an item did before. */
static zero_status test_turn(struct executor *e, struct item *item, bool *out_done) {
    const struct timeline *line = &e->stream[item->task->op.stream];
    *out_done = true;
    for (uint64_t i = line->retired; *out_done; i++) {
        const struct item *before = &line->item[i & line->item_mask];
        if (before == item) break;
        *out_done = has_posted(before);
    }
    return ZERO_OK;
}

static zero_status await_turn(struct executor *e, struct item *item) {
    item->awaits = AWAITS_TURN;
    return ZERO_OK;
}

/* ---- compute: the host does it, between begin and end ---- */

static zero_status compute(struct executor *e, struct item *item) {
    item->awaits = AWAITS_HOST;
    return ZERO_OK;
}

/* What it enqueued on its stream of the device, too. */
static zero_status test_host(struct executor *e, struct item *item, bool *out_done) {
    *out_done = false;
    return e->computed >= item->task->op.end ? test_device(e, item, out_done) : ZERO_OK;
}

/* ---- collectives ---- */

/* A gather or a reduction; what comm counts for the one call is this operation's. `codes`: it sends the codes of
 * shares of so many elements; 0: it sends elements. */
static zero_status post_counted(struct executor *e, struct item *item, struct comm_group *group,
                                const struct comm_call *call, uint64_t codes) {
    struct traffic *t = &e->traffic;
    bool gathers = item->task->op.kind == OP_GATHER;
    struct comm_counters before, after;
    comm_counters_read(e->o.comm, &before);
    zero_status status = post(e, item, group, call);
    item->posted = true;
    comm_counters_read(e->o.comm, &after);
    *(gathers ? &t->gather_calls : &t->reduce_calls) += after.calls[call->kind] - before.calls[call->kind];
    *(gathers ? &t->gather_elements : &t->reduce_elements) +=
        codes ? (comm_group_size(group) - 1) * codes
              : after.elements[call->kind] - before.elements[call->kind];
    t->bytes += after.bytes - before.bytes;
    return status;
}

/* What is sent: a scatter's summands, or the shard of a sum over the replicate axis. */
static enum dtype reduced_from(const struct precision *p, bool scatter) {
    return scatter ? p->message : p->reduced;
}

static bool scatters(const struct operation *op) {
    return op->reads > 0; /* else it is the shard's sum over the replicate axis */
}

/* Of elements, before any are coded. */
static struct comm_call element_call(const struct executor_options *o, const struct operation *op) {
    const struct model_region *region = &o->model->region[op->region];
    struct comm_call call = {.tag = op->region, .what = o->model->unit[region->unit]->name};
    if (op->kind == OP_GATHER) {
        call.kind = COMM_ALL_GATHER;
        call.dtype = call.target_dtype =
            op->object == OBJECT_GRAD ? o->precision.reduced : o->precision.compute;
        call.count = region->padded / comm_group_size(o->group[op->axes][op->stream]);
        return call;
    }
    call.kind = scatters(op) ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    call.dtype = reduced_from(&o->precision, scatters(op));
    call.target_dtype = o->precision.reduced;
    call.count = part_elements(o, op->region, grad_shard_placement(&o->policy->region[op->region]));
    call.native = o->native_reduction;
    call.add = op->add;
    return call;
}

struct comm_call executor_call(const struct executor_options *o, const struct operation *op) {
    return coded_call(o, op, element_call(o, op));
}

static uint64_t share_bytes(const struct comm_call *call) { return call->count * dtype_bytes(call->dtype); }

/* Where this rank's share lies before it is sent: in its own part of the target, or where it rests. */
static uint8_t *gather_source(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint32_t me = comm_group_index(e->o.group[op->axes][op->stream]);
    bool in_place = op->read[0].kind == BUFFER_PARAM_FULL || op->read[0].kind == BUFFER_GRAD_FULL;
    uint8_t *source = buffer_address(e, item->task->read[0]);
    if (in_place || crosses(e, source))
        return (uint8_t *)buffer_address(e, item->task->write[0]) + me * share_bytes(call);
    return source;
}

/* A share that rests in the host's memory comes to the device. */
static zero_status bring_share(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o, &item->task->op);
    uint8_t *rests = buffer_address(e, item->task->read[0]);
    if (!crosses(e, rests)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, gather_source(e, item, &call), rests, share_bytes(&call));
}

static zero_status encode_share(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o, &item->task->op);
    return gathers_codes(item) ? code_gather(e, item, gather_source(e, item, &call), &call) : ZERO_OK;
}

static zero_status post_gather(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.group[op->axes][op->stream];
    struct comm_call call = element_call(&e->o, op);
    call.source = gather_source(e, item, &call);
    call.target = buffer_address(e, item->task->write[0]);
    uint64_t codes = gathers_codes(item) ? call.count : 0;
    if (codes) coded_gather_call(e, item, &call);
    return post_counted(e, item, group, &call, codes);
}

static zero_status decode_shares(struct executor *e, struct item *item) {
    return gathers_codes(item) ? decode_gather(e, item) : ZERO_OK;
}

static void add_norm_f32(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_F32, count);
}

static void add_norm_bf16(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_BF16, count);
}

static void add_norm_f16(void *user, const void *block, uint64_t first, uint64_t count) {
    *(double *)user += norm_block(block, DTYPE_F16, count);
}

static const comm_written_fn add_norm[DTYPES] = {
    [DTYPE_F32] = add_norm_f32, [DTYPE_BF16] = add_norm_bf16, [DTYPE_F16] = add_norm_f16};

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

/* A device's threads narrow nothing in place: the message has a place of its own, in the staging. 0: it has not. */
static uint64_t staged_message_bytes(const struct executor_options *o, uint32_t region) {
    bool narrows = dtype_bytes(o->precision.message) < dtype_bytes(o->precision.compute);
    return o->separate && narrows
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

static zero_status make_message(struct executor *e, struct item *item) {
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

static uint64_t shard_bytes(const struct executor *e, uint32_t region) {
    return shard_elements(e, region, grad_shard_placement(policy_region(e, region))) *
           dtype_bytes(e->o.precision.reduced);
}

/* What a reduction adds to, or sums over the replicate axis, comes to the device from where it rests ... */
static zero_status bring_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    const void *rests = rest_of_shard(e, item->task);
    if (!rests || (scatters(op) && !op->add)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, reduce_target(e, item->task), rests, shard_bytes(e, op->region));
}

/* ... and what it made goes there, while later units are computed. */
static zero_status leave_shard(struct executor *e, struct item *item) {
    void *rests = rest_of_shard(e, item->task);
    if (!rests) return ZERO_OK;
    return copy(e, item, DEVICE_OUT, rests, reduce_target(e, item->task),
                shard_bytes(e, item->task->op.region));
}

static zero_status encode_message(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o, &item->task->op);
    return reduces_codes(e, item) ? code_reduce(e, item, message_address(e, item->task), &call) : ZERO_OK;
}

static zero_status post_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_call call = element_call(&e->o, op);
    call.target = reduce_target(e, item->task);
    call.source = scatters(op) ? message_address(e, item->task) : call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written = scatters(op) && op->final && !e->o.separate ? add_norm[call.target_dtype] : NULL;
    call.written_user = &e->norm[op->region];
    uint64_t codes = reduces_codes(e, item) ? call.count : 0;
    if (codes) coded_reduce_call(e, item, &call);
    e->norm[op->region] = 0;
    e->normed[op->region] = call.written != NULL;
    return post_counted(e, item, e->o.group[op->axes][op->stream], &call, codes);
}

static zero_status decode_sum(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    if (!reduces_codes(e, item)) return ZERO_OK;
    return decode_reduce(e, item, reduce_target(e, item->task), shard_elements(e, op->region, cut));
}

/* ---- norms ---- */

/* On a device: of the blocks into its scratch, which the stream's works take turns with, and of those into what the host
 * reads. */
static zero_status norm_on_device(struct executor *e, struct item *item, uint32_t region, const void *shard) {
    uint64_t count = shard_elements(e, region, grad_shard_placement(policy_region(e, region)));
    uint64_t blocks = (count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
    double *sums =
        (double *)(void *)((uint8_t *)e->o.memory[TIER_DEVICE] + e->o.plan->row_offset[MEMORY_NORMS]);
    struct norm_blocks_argument each = {shard, sums, count, e->o.precision.reduced};
    struct norm_total_argument all = {sums, &e->norm[region], blocks};
    struct device_work work = {.reads = 1,
                               .writes = 1,
                               .read = {{(void *)each.elements, count * dtype_bytes(e->o.precision.reduced)}},
                               .write = {{sums, blocks * sizeof *sums}}};
    struct device_work total = {.reads = 1,
                                .writes = 1,
                                .read = {{sums, blocks * sizeof *sums}},
                                .write = {{all.total, sizeof *all.total}}};
    e->normed[region] = true;
    zero_status status = submit(e, item, &kernel_norm_blocks, DEVICE_REDUCE, &each, &work);
    return status ? status : submit(e, item, &kernel_norm_total, DEVICE_REDUCE, &all, &total);
}

static zero_status norm_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    bool takes = e->o.separate && op->final && !e->normed[op->region];
    return takes ? norm_on_device(e, item, op->region, reduce_target(e, item->task)) : ZERO_OK;
}

/* ---- the agreement ---- */

/* Gradients whose last write took no norm: reduced in an earlier micro-step, or over the replicate axis. */
static zero_status complete_norms(struct executor *e, struct item *item) {
    zero_status status = ZERO_OK;
    for (uint32_t k = 0; k < e->o.policy->refreshes && !status && !e->o.without_data; k++) {
        uint32_t region = e->o.policy->refresh[k];
        if (e->normed[region]) continue;
        const void *shard = executor_grad_shard(e, region);
        e->normed[region] = true;
        if (e->o.separate && !crosses(e, shard))
            status = norm_on_device(e, item, region, shard);
        else
            e->norm[region] =
                norm_span(shard, e->o.precision.reduced,
                          shard_elements(e, region, grad_shard_placement(policy_region(e, region))));
    }
    return status;
}

/* 1 + the last unit, which is the first in backward. */
static uint64_t overflow_unit(const struct executor *e) {
    uint64_t last = 0;
    for (uint32_t k = 0; k < e->o.policy->refreshes; k++) {
        uint32_t region = e->o.policy->refresh[k], unit = e->o.model->region[region].unit;
        if (!isfinite(e->norm[region]) && unit + 1 > last) last = unit + 1;
    }
    return last;
}

static zero_status post_agreement(struct executor *e, struct item *item) {
    e->mine->norm_squared = executor_norm_squared(e);
    e->mine->overflow_unit = overflow_unit(e);
    e->mine->trace = e->trace;
    e->mine->fingerprint = comm_fingerprint(e->o.comm);
    struct comm_call call = comm_rows(e->mine, sizeof *e->mine, "the step's agreement");
    return post(e, item, e->o.world, &call);
}

/* ---- work of the device ---- */

static zero_status clear_shard(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = e->o.precision.reduced;
    void *shard = own_part_address(e, op->write[0], item->task->write[0], cut, reduced);
    e->norm[op->region] = 0;
    e->normed[op->region] = true;
    item->awaits = AWAITS_DEVICE;
    return e->o.device->ops->clear(e->o.device, DEVICE_REDUCE, shard, shard_bytes(e, op->region),
                                   &item->ticket, &e->error);
}

static zero_status copy_second(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = policy_region(e, op->region)->between;
    enum dtype compute = e->o.precision.compute;
    void *source = own_part_address(e, op->read[0], item->task->read[0], cut, compute);
    return copy(e, item, DEVICE_COMPUTE, buffer_address(e, item->task->write[0]), source,
                shard_elements(e, op->region, cut) * dtype_bytes(compute));
}

/* ---- the table ---- */

enum { STEPS_OF_ITEM = 8 };
typedef zero_status (*step_fn)(struct executor *e, struct item *item);

static const step_fn steps[OP_KINDS][STEPS_OF_ITEM] = {
    [OP_COMPUTE] = {compute},
    [OP_GATHER] = {bring_share, encode_share, await_turn, post_gather, decode_shares, leave_whole},
    [OP_REDUCE] = {make_message, encode_message, bring_shard, await_turn, post_reduce, decode_sum, norm_shard,
                   leave_shard},
    [OP_RELEASE] = {NULL},
    [OP_UPDATE] = {bring_for_update, update, take_updated},
    [OP_COPY] = {copy_second},
    [OP_CLEAR] = {clear_shard},
    [OP_AGREE] = {complete_norms, post_agreement},
    [OP_FETCH] = {fetch_chunk, check_fetched},
    [OP_STORE] = {store_chunk},
};

static zero_status (*const tests[AWAITS])(struct executor *e, struct item *item, bool *out_done) = {
    [AWAITS_NOTHING] = test_nothing, [AWAITS_HOST] = test_host, [AWAITS_DEVICE] = test_device,
    [AWAITS_COMM] = test_comm,       [AWAITS_TURN] = test_turn, [AWAITS_DRIVE] = transfer_done};

/* As far as it goes without waiting. */
static zero_status advance(struct executor *e, struct item *item, bool *out_done) {
    const step_fn *all = steps[item->task->op.kind];
    for (;;) {
        bool reached;
        zero_status status = tests[item->awaits](e, item, &reached);
        if (status || !reached) return status;
        item->awaits = AWAITS_NOTHING;
        *out_done = item->step == STEPS_OF_ITEM || !all[item->step];
        if (*out_done) return ZERO_OK;
        status = all[item->step++](e, item);
        if (status) return status;
    }
}

/* The steps that start at once; what is done at once is found so by the next test. */
zero_status perform_start(struct executor *e, struct item *item) {
    const struct performer *p = e->o.performer;
    if (p) return p->start(p->user, &item->task->op, item->index, &item->ticket), ZERO_OK;
    const step_fn *all = steps[item->task->op.kind];
    zero_status status = ZERO_OK;
    bool reached = true;
    while (!status && reached && item->step < STEPS_OF_ITEM && all[item->step]) {
        if (item->awaits == AWAITS_COMM || item->awaits == AWAITS_HOST) break;
        status = tests[item->awaits](e, item, &reached);
        if (status || !reached) break;
        item->awaits = AWAITS_NOTHING;
        status = all[item->step++](e, item);
    }
    return status;
}

zero_status perform_test(struct executor *e, struct item *item, bool *out_done) {
    const struct performer *p = e->o.performer;
    *out_done = false;
    if (p && item->task->op.kind == OP_COMPUTE) return *out_done = e->computed >= item->task->op.end, ZERO_OK;
    if (p) return *out_done = p->done(p->user, item->ticket), ZERO_OK;
    return advance(e, item, out_done);
}
