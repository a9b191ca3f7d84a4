/* The scratch memory of gathers and reductions. Pure. */
#include "engine/executor/work/work.h"

static uint64_t aligned(uint64_t bytes) { return round_up(bytes, ALIGN_BYTES); }

uint64_t staged_message_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count) {
    if (!scatters(op) || !stages_message(o, op)) return 0;
    uint32_t members = comm_group_size(o->group[op->axes][op->stream]);
    return aligned(members * count * dtype_bytes(precision_of(o, op->region).message));
}

uint64_t staged_shard_bytes(const struct executor_shape *o, const struct operation *op, uint64_t count) {
    return stages_shard(o, op) ? aligned(count * dtype_bytes(precision_of(o, op->region).reduced)) : 0;
}

/* The staging bytes of a call of at most call.count elements. An all-reduce whose count the members do not divide
 * takes more than one with the next larger count. */
static uint64_t call_staging_bytes(const struct comm_group *group, struct comm_call call) {
    uint64_t bytes = comm_staging_bytes(group, &call);
    if (call.kind != COMM_ALL_REDUCE || call.count < 2) return bytes;
    call.count--;
    uint64_t uneven = comm_staging_bytes(group, &call);
    return bytes > uneven ? bytes : uneven;
}

static uint64_t staging_bytes(const struct executor_shape *o, const struct operation *op) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    uint64_t share = o->model->region[op->region].padded /
                     (scatters(op) ? comm_group_size(group) : o->policy->mesh[AXIS_SHARD]),
             round = round_elements(o, op);
    if (sums_lent(o, op)) return 0;
    struct comm_call call = whole_call(o, op, share < round ? share : round);
    uint64_t bytes = codes_reduce(o, op) ? reduce_code_bytes(o, op, call) : call_staging_bytes(group, call);
    return aligned(bytes) + staged_message_bytes(o, op, call.count) + staged_shard_bytes(o, op, call.count);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The staging bytes of the part of the shard that the host adds. */
static uint64_t round_staging_bytes(const struct executor_shape *o, const struct operation *op) {
    uint64_t share = o->model->region[op->region].padded / comm_group_size(o->group[op->axes][op->stream]),
             round = round_elements(o, op);
    return executor_host_adds(o, op) ? staged_shard_bytes(o, op, share < round ? share : round) : 0;
}

/* The largest value of `bytes` over all reductions. A scatter cuts the whole region. A sum over the replicate axis sums the shard
 * that a scatter made. */
static uint64_t most_bytes(const struct executor_shape *o,
                           uint64_t (*bytes)(const struct executor_shape *o, const struct operation *op)) {
    uint64_t most = 0;
    bool adds =
        (o->policy->accumulation == ACCUMULATE_EVERY && o->policy->micro_steps > 1) || o->policy->bound;
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
            most = larger(most, o->group[axes][STREAM_REDUCE] ? bytes(o, &op) : 0);
            op.object = OBJECT_DIRECTION, op.add = false;
            if (update_makes(o->policy->region[i].scope, BUFFER_DIRECTION))
                most = larger(most, o->group[axes][STREAM_REDUCE] ? bytes(o, &op) : 0);
        }
    return most;
}

uint64_t executor_staging_bytes(const struct executor_shape *o) { return most_bytes(o, staging_bytes); }

uint64_t executor_round_staging_bytes(const struct executor_shape *o) {
    return most_bytes(o, round_staging_bytes);
}

uint64_t executor_gather_staging(const struct executor_shape *o, uint32_t region) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    struct placement_step steps[4];
    if (!placement_change(o->policy->stage->param_rest, whole, o->policy->mesh, steps)) return 0;
    const struct comm_group *group = o->group[steps[0].axes][STREAM_GATHER];
    uint64_t members = comm_group_size(group), share = o->model->region[region].padded / members;
    struct comm_call part = {.kind = COMM_ALL_GATHER, .dtype = precision_of(o, region).compute};
    part.count = min64(share, piece_elements(o, part.dtype, group));
    part.stride = part.count + 1; /* any: it is not the whole share */
    enum code_format format = region_code(&o->model->region[region]);
    if (format) return (members + 1) * quantize_bytes(part.count, format);
    return terms_params_staged(o->terms) ? comm_staging_bytes(group, &part) : 0;
}

uint64_t executor_gather_staging_bytes(const struct executor_shape *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions; i++) most = larger(most, executor_gather_staging(o, i));
    return most;
}
