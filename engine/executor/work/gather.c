/* The steps of a gather: copy the share to the device, encode it, post the call, decode what arrived. An item of a run
 * does so with a part of each share, and one with staging in rounds of smaller parts. */
#include "engine/executor/work/work.h"

static struct comm_call call_of(const struct executor *e, const struct item *item) {
    return element_call(&e->o.shape, &item->task->op, item->index, item->moved);
}

static struct part round_of(const struct executor *e, const struct item *item) {
    return round_part(&e->o.shape, &item->task->op, item->index, item->moved);
}

/* The target of the call: the same part of each share. */
static uint8_t *gather_target(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    return (uint8_t *)buffer_address(e, item->task->write[0]) +
           round_of(e, item).first * dtype_bytes(call->dtype);
}

static uint8_t *rest_of_share(const struct executor *e, const struct item *item) {
    return item_address(e, item, item->task->op.read[0], item->task->read[0]);
}

/* The share rests in its own part of the target. */
static bool in_place(const struct operation *op) {
    return op->read[0].kind == BUFFER_PARAM_FULL || op->read[0].kind == BUFFER_GRAD_FULL ||
           op->read[0].kind == BUFFER_DIRECTION || op->read[0].kind == BUFFER_TENSOR_NORMS;
}

/* Where this rank's share is before it is sent: in its own part of the target, or in the buffer where it rests. */
static uint8_t *gather_source(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint64_t stride = call->stride ? call->stride : call->count;
    uint32_t me = comm_group_index(e->o.shape.group[op->axes][op->stream]);
    uint8_t *source = rest_of_share(e, item);
    if (in_place(op) || crosses(e, source))
        return gather_target(e, item, call) + me * stride * dtype_bytes(call->dtype);
    return source + item->moved * dtype_bytes(call->dtype);
}

/* Copies a share that rests in the host's memory to the device. */
zero_status bring_share(struct executor *e, struct item *item) {
    struct comm_call call = call_of(e, item);
    uint8_t *rests = rest_of_share(e, item);
    if (in_place(&item->task->op) || !crosses(e, rests))
        return ZERO_OK; /* norms are gathered in the host's memory */
    return copy(e, item, DEVICE_IN, gather_source(e, item, &call), rests,
                item_part(&e->o.shape, &item->task->op, item->index).count * dtype_bytes(call.dtype));
}

zero_status encode_share(struct executor *e, struct item *item) {
    struct comm_call call = call_of(e, item);
    return codes_gather(&e->o.shape, &item->task->op)
               ? code_gather(e, item, gather_source(e, item, &call), &call)
               : ZERO_OK;
}

zero_status post_gather(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    struct comm_call call = call_of(e, item);
    if (await_room(e, item, group)) return ZERO_OK;
    if (lent_region(e, op->write[0])) return lent_gather(e, item, call);
    call.source = gather_source(e, item, &call);
    call.target = gather_target(e, item, &call);
    call.staging = stages_gather(op) ? buffer_address(e, item->task->write[1]) : NULL;
    uint64_t codes = codes_gather(&e->o.shape, &item->task->op) ? call.count : 0;
    if (codes) coded_gather_call(e, item, &call);
    zero_status status = post_counted(e, item, group, &call, codes);
    item->posted = item->moved + round_of(e, item).count == item_part(&e->o.shape, op, item->index).count;
    return status;
}

zero_status decode_shares(struct executor *e, struct item *item) {
    if (lent_region(e, item->task->op.write[0])) return lent_take_gathered(e, item, post_gather);
    struct part part = round_of(e, item), whole = item_part(&e->o.shape, &item->task->op, item->index);
    zero_status status = codes_gather(&e->o.shape, &item->task->op) ? decode_gather(e, item, part) : ZERO_OK;
    item->moved += part.count;
    if (item->moved < whole.count) repeat_from(item, encode_share);
    return status;
}
