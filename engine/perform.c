/* How each kind of operation is performed: one row per kind, through the mechanisms' tables. */
#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/executor_internal.h"
#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/span.h"

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

zero_status submit(struct executor *e, struct item *item, const struct device_work *work) {
    return e->o.device->ops->submit(e->o.device, work, &item->ticket, &e->error);
}

static zero_status test_device(struct executor *e, struct item *item, bool *out_done) {
    return e->o.device->ops->test(e->o.device, item->ticket, out_done, &e->error);
}

static zero_status post(struct executor *e, struct item *item, struct comm_group *group,
                        const struct comm_call *call) {
    zero_status status = comm_post(group, call, &item->work);
    if (status) error_pass(&e->error, comm_error(e->o.comm));
    return status;
}

static zero_status test_comm(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = comm_test(item->work, out_done);
    if (status) error_pass(&e->error, comm_error(e->o.comm));
    return status;
}

/* ---- compute: the host does it, between begin and end ---- */

static zero_status start_nothing(struct executor *e, struct item *item) { return ZERO_OK; }

static zero_status test_compute(struct executor *e, struct item *item, bool *out_done) {
    *out_done = e->computed >= item->task->op.end;
    return ZERO_OK;
}

static zero_status test_done(struct executor *e, struct item *item, bool *out_done) {
    *out_done = true;
    return ZERO_OK;
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

static zero_status start_gather(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.group[op->axes][op->stream];
    struct comm_call call = element_call(&e->o, op);
    uint8_t *source = buffer_address(e, item->task->read[0]);
    bool in_place = op->read[0].kind == BUFFER_PARAM_FULL || op->read[0].kind == BUFFER_GRAD_FULL;
    if (in_place) source += comm_group_index(group) * call.count * dtype_bytes(call.dtype);
    call.source = source;
    call.target = buffer_address(e, item->task->write[0]);
    uint64_t codes = gathers_codes(item) ? call.count : 0;
    if (codes) code_gather(e, item, &call);
    return post_counted(e, item, group, &call, codes);
}

static zero_status test_gather(struct executor *e, struct item *item, bool *out_done) {
    zero_status status = test_comm(e, item, out_done);
    if (!status && *out_done && gathers_codes(item)) decode_gather(e, item);
    return status;
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
            if (bytes > most) most = bytes;
        }
    return most;
}

enum { STEP_ELEMENTS = 1024 };

static void cast_step(void *target, enum dtype to, const void *source, enum dtype from, float factor,
                      uint64_t count) {
    float wide[STEP_ELEMENTS];
    if (factor == 0) {
        cast(target, to, source, from, count);
        return;
    }
    cast(wide, DTYPE_F32, source, from, count);
    span_scale(wide, factor, count);
    cast(target, to, wide, DTYPE_F32, count);
}

/* A message narrower than the gradient, of another narrow type or multiplied, takes the gradient's place: after its
 * reduction nobody reads it. Element i lands at or below where it was, so that going upwards loses nothing. */
static void *cast_in_place(void *data, enum dtype from, enum dtype to, float factor, uint64_t count) {
    float step[STEP_ELEMENTS];
    for (uint64_t i = 0; i < count && (from != to || factor != 0); i += STEP_ELEMENTS) {
        uint64_t n = count - i < STEP_ELEMENTS ? count - i : STEP_ELEMENTS;
        cast_step(step, to, (uint8_t *)data + i * dtype_bytes(from), from, factor, n);
        memcpy((uint8_t *)data + i * dtype_bytes(to), step, n * dtype_bytes(to));
    }
    return data;
}

static void *message_of(struct executor *e, const struct task *task) {
    void *gradient = buffer_address(e, task->read[0]);
    if (e->o.without_data) return gradient;
    return cast_in_place(gradient, e->o.precision.compute, e->o.precision.message, e->o.gradient_factor,
                         e->o.model->region[task->op.region].padded);
}

static void *reduce_target(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return own_part_address(e, op->write[0], item->task->write[0],
                            grad_shard_placement(policy_region(e, op->region)), e->o.precision.reduced);
}

static zero_status start_reduce(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_call call = element_call(&e->o, op);
    call.target = reduce_target(e, item);
    call.source = scatters(op) ? message_of(e, item->task) : call.target;
    call.staging = op->writes > 1 ? buffer_address(e, item->task->write[1]) : NULL;
    call.written = scatters(op) && op->final ? add_norm[call.target_dtype] : NULL;
    call.written_user = &e->norm[op->region];
    uint64_t codes = reduces_codes(e, item) ? call.count : 0;
    if (codes) code_reduce(e, item, &call);
    e->norm[op->region] = 0;
    e->normed[op->region] = call.written != NULL;
    return post_counted(e, item, e->o.group[op->axes][op->stream], &call, codes);
}

static zero_status test_reduce(struct executor *e, struct item *item, bool *out_done) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    zero_status status = test_comm(e, item, out_done);
    if (!status && *out_done && reduces_codes(e, item))
        decode_reduce(e, item, reduce_target(e, item), shard_elements(e, op->region, cut));
    return status;
}

/* ---- the agreement ---- */

/* Gradients whose last write took no norm: reduced in an earlier micro-step, or over the replicate axis. */
static void complete_norms(struct executor *e) {
    for (uint32_t k = 0; k < e->o.policy->refreshes; k++) {
        uint32_t region = e->o.policy->refresh[k];
        if (e->normed[region]) continue;
        e->norm[region] =
            norm_span(executor_grad_shard(e, region), e->o.precision.reduced,
                      shard_elements(e, region, grad_shard_placement(policy_region(e, region))));
        e->normed[region] = true;
    }
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

static zero_status start_agree(struct executor *e, struct item *item) {
    if (!e->o.without_data) complete_norms(e);
    e->mine->norm_squared = executor_norm_squared(e);
    e->mine->overflow_unit = overflow_unit(e);
    e->mine->trace = e->trace;
    e->mine->fingerprint = comm_fingerprint(e->o.comm);
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_U8,
                             .count = sizeof *e->mine,
                             .what = "the step's agreement",
                             .source = e->mine,
                             .target = e->all};
    return post(e, item, e->o.world, &call);
}

/* ---- work of the device ---- */

static zero_status start_clear(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = grad_shard_placement(policy_region(e, op->region));
    enum dtype reduced = e->o.precision.reduced;
    void *shard = own_part_address(e, op->write[0], item->task->write[0], cut, reduced);
    uint64_t bytes = shard_elements(e, op->region, cut) * dtype_bytes(reduced);
    e->norm[op->region] = 0;
    e->normed[op->region] = true;
    return e->o.device->ops->clear(e->o.device, DEVICE_REDUCE, shard, bytes, &item->ticket, &e->error);
}

static zero_status start_copy(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct placement cut = policy_region(e, op->region)->between;
    enum dtype compute = e->o.precision.compute;
    void *source = own_part_address(e, op->read[0], item->task->read[0], cut, compute);
    return e->o.device->ops->copy(e->o.device, DEVICE_COMPUTE, buffer_address(e, item->task->write[0]),
                                  source, shard_elements(e, op->region, cut) * dtype_bytes(compute),
                                  &item->ticket, &e->error);
}

/* ---- the table ---- */

static const struct {
    zero_status (*start)(struct executor *e, struct item *item);
    zero_status (*test)(struct executor *e, struct item *item, bool *out_done);
} performers[OP_KINDS] = {
    [OP_COMPUTE] = {start_nothing, test_compute}, [OP_GATHER] = {start_gather, test_gather},
    [OP_REDUCE] = {start_reduce, test_reduce},    [OP_RELEASE] = {start_nothing, test_done},
    [OP_UPDATE] = {start_update, test_device},    [OP_COPY] = {start_copy, test_device},
    [OP_CLEAR] = {start_clear, test_device},      [OP_AGREE] = {start_agree, test_comm},
    [OP_FETCH] = {start_fetch, test_transfer},    [OP_STORE] = {start_store, test_transfer},
};

zero_status perform_start(struct executor *e, struct item *item) {
    const struct performer *p = e->o.performer;
    if (p) return p->start(p->user, &item->task->op, item->index, &item->ticket), ZERO_OK;
    return performers[item->task->op.kind].start(e, item);
}

zero_status perform_test(struct executor *e, struct item *item, bool *out_done) {
    const struct performer *p = e->o.performer;
    if (p && item->task->op.kind != OP_COMPUTE) return *out_done = p->done(p->user, item->ticket), ZERO_OK;
    return performers[item->task->op.kind].test(e, item, out_done);
}
