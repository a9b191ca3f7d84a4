/* Collectives of fewer bits: shards are gathered, and gradients scattered, in blockwise codes (kernels/quantize.h). A
 * staging buffer holds what is sent, and behind it what came. Inexact, by request alone; the same bits on all ranks, at
 * every stage and on every transport, for each sum is of the same codes in rank order. */
#include <string.h>

#include "engine/executor_internal.h"
#include "kernels/cast.h"
#include "kernels/quantize.h"
#include "kernels/span.h"

/* An all-gather of codes in place of one of elements, an all-to-all of the shares' codes in place of a scatter. */
struct comm_call coded_call(const struct executor_options *o, const struct operation *op,
                            struct comm_call call) {
    bool gathers = op->kind == OP_GATHER;
    uint32_t bits = gathers ? (op->writes > 1 ? o->param_bits : 0) : op->reads > 0 ? o->gradient_bits : 0;
    if (!bits) return call;
    return (struct comm_call){.kind = gathers ? COMM_ALL_GATHER : COMM_ALL_TO_ALL,
                              .dtype = DTYPE_U8,
                              .target_dtype = DTYPE_U8,
                              .count = quantize_bytes(call.count, bits),
                              .tag = call.tag,
                              .what = call.what};
}

/* ---- gathers ---- */

uint64_t executor_gather_staging_bytes(const struct executor_options *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions && o->param_bits; i++)
        for (int axes = AXES_SHARD; axes <= AXES_BOTH; axes++) {
            const struct comm_group *group = o->group[axes][STREAM_GATHER];
            if (!group) continue;
            uint64_t members = comm_group_size(group), share = o->model->region[i].padded / members;
            uint64_t bytes = (members + 1) * quantize_bytes(share, o->param_bits);
            if (bytes > most) most = bytes;
        }
    return most;
}

bool gathers_codes(const struct item *item) {
    const struct operation *op = &item->task->op;
    return op->kind == OP_GATHER && op->writes > 1;
}

/* In place of a call that gathers elements: one that gathers their codes. */
void code_gather(struct executor *e, const struct item *item, struct comm_call *call) {
    uint8_t *staging = buffer_address(e, item->task->write[1]);
    if (!e->o.without_data) quantize(staging, call->source, call->dtype, call->count, e->o.param_bits);
    *call = coded_call(&e->o, &item->task->op, *call);
    call->source = staging, call->target = staging + call->count;
}

void decode_gather(struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    const struct comm_group *group = e->o.group[op->axes][op->stream];
    enum dtype dtype = e->o.precision.compute;
    if (e->o.without_data) return;
    uint32_t members = comm_group_size(group);
    uint64_t share = e->o.model->region[op->region].padded / members,
             bytes = quantize_bytes(share, e->o.param_bits);
    uint8_t *target = buffer_address(e, item->task->write[0]);
    const uint8_t *codes = (const uint8_t *)buffer_address(e, item->task->write[1]) + bytes;
    for (uint32_t m = 0; m < members; m++)
        dequantize(target + m * share * dtype_bytes(dtype), dtype, codes + m * bytes, share, e->o.param_bits);
}

/* ---- reductions ---- */

uint64_t reduce_code_bytes(const struct executor_options *o, uint64_t share, uint32_t members) {
    return 2 * (uint64_t)members * quantize_bytes(share, o->gradient_bits);
}

bool reduces_codes(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return op->kind == OP_REDUCE && op->reads > 0 && e->o.gradient_bits;
}

/* In place of a reduce-scatter: an all-to-all of the shares' codes. */
void code_reduce(struct executor *e, const struct item *item, struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint32_t members = comm_group_size(e->o.group[op->axes][op->stream]), bits = e->o.gradient_bits;
    uint64_t bytes = quantize_bytes(call->count, bits), step = call->count * dtype_bytes(call->dtype);
    uint8_t *staging = buffer_address(e, item->task->write[1]);
    for (uint32_t m = 0; m < members && !e->o.without_data; m++)
        quantize(staging + m * bytes, (const uint8_t *)call->source + m * step, call->dtype, call->count,
                 bits);
    *call = coded_call(&e->o, op, *call);
    call->source = staging, call->target = staging + members * bytes;
}

/* The members' codes, in rank order, in fp32, rounded once. */
void decode_reduce(struct executor *e, const struct item *item, void *target, uint64_t share) {
    enum { STEP_ELEMENTS = 4 * QUANTIZE_BLOCK };
    const struct operation *op = &item->task->op;
    uint32_t members = comm_group_size(e->o.group[op->axes][op->stream]), bits = e->o.gradient_bits;
    enum dtype reduced = e->o.precision.reduced;
    uint64_t bytes = quantize_bytes(share, bits);
    const uint8_t *codes = (const uint8_t *)buffer_address(e, item->task->write[1]) + members * bytes;
    float sum[STEP_ELEMENTS];
    if (e->o.without_data) return;
    for (uint64_t first = 0; first < share; first += STEP_ELEMENTS) {
        uint64_t n = share - first < STEP_ELEMENTS ? share - first : STEP_ELEMENTS;
        uint8_t *out = (uint8_t *)target + first * dtype_bytes(reduced);
        for (uint32_t m = 0; m < members; m++)
            dequantize_part(sum, codes + m * bytes, share, bits, first, n, m > 0);
        if (op->add) span_add(sum, (const float *)(const void *)out, n); /* shards that accumulate are fp32 */
        cast(out, reduced, sum, DTYPE_F32, n);
    }
}
