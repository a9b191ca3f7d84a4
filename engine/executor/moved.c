/* The bytes that operations move, for plans, simulations and traces. Pure. */
#include "engine/executor/executor.h"

uint64_t executor_wire_bytes(const struct executor_shape *shape, const struct operation *op, uint32_t item) {
    struct executor_round round = {0};
    struct comm_call call;
    uint64_t bytes = 0;
    if (op->kind != OP_GATHER && op->kind != OP_REDUCE) return 0;
    while (executor_next_call(shape, op, item, &round, &call))
        bytes += comm_call_sent(&call, comm_group_size(shape->group[round.axes][op->stream])).bytes;
    return bytes;
}

uint64_t executor_drive_bytes(const struct plan *plan, const struct operation *op, uint32_t item) {
    if (op->kind != OP_FETCH && op->kind != OP_STORE) return 0;
    struct chunk c = chunk_layout_moved(&plan->layout, op, item);
    if (op->object == OBJECT_PARAM) return c.param_bytes;
    if (op->object == OBJECT_GRAD) return c.grad_bytes;
    return (c.state ? chunk_record_bytes(&c) : 0) + c.params * c.param_bytes + c.grads * c.grad_bytes;
}
