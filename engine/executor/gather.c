/* The steps of a gather: copy the share to the device, encode it, post the call, decode what arrived. */
#include "engine/executor/steps.h"

static uint64_t share_bytes(const struct comm_call *call) { return call->count * dtype_bytes(call->dtype); }

/* Where this rank's share is before it is sent: in its own part of the target, or in the buffer where it rests. */
static uint8_t *gather_source(const struct executor *e, const struct item *item,
                              const struct comm_call *call) {
    const struct operation *op = &item->task->op;
    uint32_t me = comm_group_index(e->o.shape.group[op->axes][op->stream]);
    bool in_place = op->read[0].kind == BUFFER_PARAM_FULL || op->read[0].kind == BUFFER_GRAD_FULL;
    uint8_t *source = buffer_address(e, item->task->read[0]);
    if (in_place || crosses(e, source))
        return (uint8_t *)buffer_address(e, item->task->write[0]) + me * share_bytes(call);
    return source;
}

/* Copies a share that rests in the host's memory to the device. */
zero_status bring_share(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o.shape, &item->task->op);
    uint8_t *rests = buffer_address(e, item->task->read[0]);
    if (!crosses(e, rests)) return ZERO_OK;
    return copy(e, item, DEVICE_IN, gather_source(e, item, &call), rests, share_bytes(&call));
}

zero_status encode_share(struct executor *e, struct item *item) {
    struct comm_call call = element_call(&e->o.shape, &item->task->op);
    return gathers_codes(item) ? code_gather(e, item, gather_source(e, item, &call), &call) : ZERO_OK;
}

zero_status post_gather(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    struct comm_call call = element_call(&e->o.shape, op);
    if (lent_region(e, op->write[0])) return lent_gather(e, item, call);
    call.source = gather_source(e, item, &call);
    call.target = buffer_address(e, item->task->write[0]);
    uint64_t codes = gathers_codes(item) ? call.count : 0;
    if (codes) coded_gather_call(e, item, &call);
    return post_counted(e, item, group, &call, codes);
}

zero_status decode_shares(struct executor *e, struct item *item) {
    if (lent_region(e, item->task->op.write[0])) return lent_take_gathered(e, item);
    return gathers_codes(item) ? decode_gather(e, item) : ZERO_OK;
}
