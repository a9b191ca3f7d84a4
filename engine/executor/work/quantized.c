/* Coded collectives: shards at rest are gathered, and gradients are scattered, as blockwise codes
 * (kernels/quantize.h). A staging buffer holds the codes that this rank sends, followed by the codes that it
 * receives, or, where sums go by levels, by the staging of the reduce-scatter.
 *
 * Coding is inexact, so it works only on request. All ranks, stages and transports get the same bits, because each
 * sum adds the same codes in one order. */
#include "engine/executor/work/work.h"

#include "kernels/device_work.h"
#include "kernels/quantize.h"

static struct device_work work_of(const void *read, uint64_t read_bytes, void *write, uint64_t write_bytes) {
    return (struct device_work){
        .reads = 1, .writes = 1, .read = {{(void *)read, read_bytes}}, .write = {{write, write_bytes}}};
}

static zero_status code(struct executor *e, struct item *item, enum device_stream stream,
                        const struct quantize_codes_argument *a) {
    uint64_t bytes = dtype_bytes((enum dtype)a->dtype),
             code = quantize_bytes(a->count, (enum code_format)a->format);
    struct device_work work = work_of(a->source, a->count * bytes, a->code, code);
    work.rows = a->rows, work.read_step = a->step * bytes, work.write_step = code;
    return submit(e, item, &kernel_quantize_codes, stream, a, &work);
}

bool stages_gather(const struct operation *op) {
    return op->kind == OP_GATHER && op->writes > 1 && op->write[1].kind == BUFFER_GATHER_STAGING;
}

bool codes_gather(const struct executor_shape *o, const struct operation *op) {
    return stages_gather(op) && region_code(&o->model->region[op->region]) != CODE_NONE;
}

bool codes_reduce(const struct executor_shape *o, const struct operation *op) {
    return op->kind == OP_REDUCE && op->object == OBJECT_GRAD && op->reads > 0 && o->terms->gradient_code &&
           !region_keeps_fp32(&o->model->region[op->region]);
}

static enum code_format gather_code(const struct executor_shape *o, const struct operation *op) {
    return region_code(&o->model->region[op->region]);
}

/* Sums of codes go by levels where the node's sum in fp32 has at most half of the bytes of the codes of its members: levels take one more
 * step inside the node. The bits are the same. */
static bool codes_by_levels(const struct executor_shape *o, const struct operation *op) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    uint64_t codes = quantize_bytes(NORM_BLOCK_ELEMENTS, o->terms->gradient_code);
    return comm_group_levels(group) &&
           comm_group_node_members(group) * codes >= 2 * NORM_BLOCK_ELEMENTS * sizeof(float);
}

/* A gather becomes an all-gather of codes; a scatter becomes an all-to-all of the codes of the shares, or, by levels, a reduce-scatter
 * of codes. */
struct comm_call coded_call(const struct executor_shape *o, const struct operation *op,
                            struct comm_call call) {
    bool gathers = op->kind == OP_GATHER;
    enum code_format format = gathers               ? (codes_gather(o, op) ? gather_code(o, op) : CODE_NONE)
                              : codes_reduce(o, op) ? o->terms->gradient_code
                                                    : CODE_NONE;
    if (!format) return call;
    if (!gathers && codes_by_levels(o, op))
        return (struct comm_call){.kind = COMM_REDUCE_SCATTER,
                                  .dtype = DTYPE_U8,
                                  .target_dtype = call.target_dtype,
                                  .count = call.count,
                                  .tag = call.tag,
                                  .what = call.what,
                                  .target = call.target,
                                  .code = (uint8_t)format,
                                  .add = call.add};
    return (struct comm_call){.kind = gathers ? COMM_ALL_GATHER : COMM_ALL_TO_ALL,
                              .dtype = DTYPE_U8,
                              .target_dtype = DTYPE_U8,
                              .count = quantize_bytes(call.count, format),
                              .tag = call.tag,
                              .what = call.what};
}

/* ---- gathers ---- */

zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call) {
    struct quantize_codes_argument a = {.code = buffer_address(e, item->task->write[1]),
                                        .source = source,
                                        .count = call->count,
                                        .dtype = call->dtype,
                                        .format = gather_code(&e->o.shape, &item->task->op)};
    return code(e, item, DEVICE_GATHER, &a);
}

/* Replaces the call that gathers elements. */
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call) {
    uint8_t *staging = buffer_address(e, item->task->write[1]);
    *call = coded_call(&e->o.shape, &item->task->op, *call);
    call->source = staging, call->target = staging + call->count;
}

zero_status decode_gather(struct executor *e, struct item *item, struct part part) {
    const struct operation *op = &item->task->op;
    const struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    enum dtype dtype = precision_of(&e->o.shape, op->region).compute;
    uint32_t members = comm_group_size(group);
    enum code_format format = gather_code(&e->o.shape, op);
    uint64_t bytes = quantize_bytes(part.count, format);
    struct dequantize_codes_argument a = {
        .target = (uint8_t *)buffer_address(e, item->task->write[0]) + part.first * dtype_bytes(dtype),
        .code = (const uint8_t *)buffer_address(e, item->task->write[1]) + bytes,
        .count = part.count,
        .step = part.share,
        .dtype = dtype,
        .format = format,
        .rows = members};
    struct device_work work = work_of(a.code, bytes, a.target, part.count * dtype_bytes(dtype));
    work.rows = members, work.read_step = bytes, work.write_step = part.share * dtype_bytes(dtype);
    return submit(e, item, &kernel_dequantize_codes, DEVICE_GATHER, &a, &work);
}

/* ---- reductions ---- */

uint64_t reduce_code_bytes(const struct executor_shape *o, const struct operation *op,
                           struct comm_call call) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    uint64_t codes = comm_group_size(group) * quantize_bytes(call.count, o->terms->gradient_code);
    call = coded_call(o, op, call);
    return codes + (call.code ? comm_staging_bytes(group, &call) : codes);
}

zero_status code_reduce(struct executor *e, struct item *item, const void *source, uint64_t step,
                        const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    struct quantize_codes_argument a = {.code = buffer_address(e, item->task->write[1]),
                                        .source = source,
                                        .count = call->count,
                                        .step = step,
                                        .dtype = call->dtype,
                                        .format = e->o.shape.terms->gradient_code,
                                        .rows = comm_group_size(e->o.shape.group[op->axes][op->stream])};
    return code(e, item, DEVICE_REDUCE, &a);
}

/* Replaces the reduce-scatter of elements. */
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint64_t codes = comm_group_size(e->o.shape.group[op->axes][op->stream]) *
                     quantize_bytes(call->count, e->o.shape.terms->gradient_code);
    uint8_t *staging = buffer_address(e, item->task->write[1]);
    *call = coded_call(&e->o.shape, op, *call);
    call->source = staging;
    *(call->code ? &call->staging : &call->target) = staging + codes;
}

/* Adds the members' codes, where the call did not, in the order of other sums (comm.h), in fp32, and rounds once. */
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t count, bool add) {
    const struct operation *op = &item->task->op;
    const struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    uint32_t members = comm_group_size(group);
    if (codes_by_levels(&e->o.shape, op)) return ZERO_OK;
    enum code_format format = e->o.shape.terms->gradient_code;
    enum dtype reduced = precision_of(&e->o.shape, op->region).reduced;
    uint64_t bytes = members * quantize_bytes(count, format);
    struct dequantize_sum_argument a = {.target = target,
                                        .codes =
                                            (const uint8_t *)buffer_address(e, item->task->write[1]) + bytes,
                                        .count = count,
                                        .members = members,
                                        .node_members = comm_group_node_members(group),
                                        .dtype = reduced,
                                        .format = format,
                                        .add = add};
    struct device_work work = work_of(a.codes, bytes, target, count * dtype_bytes(reduced));
    if (add) work.read[work.reads++] = work.write[0];
    return submit(e, item, &kernel_dequantize_sum, DEVICE_REDUCE, &a, &work);
}
