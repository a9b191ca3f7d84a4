/* The steps of a gather: copy the share to the device, encode it, post the call, decode what arrived. An item of a run
 * does so with a part of each share. */
#include "engine/executor/steps.h"

static uint64_t call_bytes(const struct comm_call *call) { return call->count * dtype_bytes(call->dtype); }

static struct comm_call call_of(const struct executor *e, const struct item *item) {
    return element_call(&e->o.shape, &item->task->op, item->index, 0);
}

/* The target of the call: the same part of each share. */
static uint8_t *gather_target(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    struct part part = item_part(&e->o.shape, &item->task->op, item->index);
    return (uint8_t *)buffer_address(e, item->task->write[0]) + part.first * dtype_bytes(call->dtype);
}

static uint8_t *rest_of_share(const struct executor *e, const struct item *item) {
    return item_address(e, item, item->task->op.read[0], item->task->read[0]);
}

/* Where this rank's share is before it is sent: in its own part of the target, or in the buffer where it rests. */
static uint8_t *gather_source(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint64_t stride = call->stride ? call->stride : call->count;
    uint32_t me = comm_group_index(e->o.shape.group[op->axes][op->stream]);
    bool in_place = op->read[0].kind == BUFFER_PARAM_FULL || op->read[0].kind == BUFFER_GRAD_FULL;
    uint8_t *source = rest_of_share(e, item);
    if (in_place || crosses(e, source))
        return gather_target(e, item, call) + me * stride * dtype_bytes(call->dtype);
    return source;
}

/* Copies a share that rests in the host's memory to the device. */
zero_status bring_share(struct executor *e, struct item *item) {
    struct comm_call call = call_of(e, item);
    uint8_t *rests = rest_of_share(e, item);
    if (!crosses(e, rests)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, gather_source(e, item, &call), rests, call_bytes(&call));
}

zero_status encode_share(struct executor *e, struct item *item) {
    struct comm_call call = call_of(e, item);
    return gathers_codes(item) ? code_gather(e, item, gather_source(e, item, &call), &call) : ZERO_OK;
}

zero_status post_gather(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    struct comm_call call = call_of(e, item);
    if (lent_region(e, op->write[0])) return lent_gather(e, item, call);
    call.source = gather_source(e, item, &call);
    call.target = gather_target(e, item, &call);
    uint64_t codes = gathers_codes(item) ? call.count : 0;
    if (codes) coded_gather_call(e, item, &call);
    return post_counted(e, item, group, &call, codes);
}

zero_status decode_shares(struct executor *e, struct item *item) {
    if (lent_region(e, item->task->op.write[0])) return lent_take_gathered(e, item);
    return gathers_codes(item)
               ? decode_gather(e, item, item_part(&e->o.shape, &item->task->op, item->index))
               : ZERO_OK;
}
