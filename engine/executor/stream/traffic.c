/* The bytes that operations move and the products that they make, for plans, simulations and traces. Pure. */
#include "engine/executor/executor.h"
#include "kernels/orthogonalize.h"

uint64_t executor_wire_bytes(const struct executor_shape *shape, const struct operation *op, uint32_t item) {
    struct executor_round round = {0};
    struct comm_call call;
    uint64_t bytes = 0;
    if (op->kind != OP_GATHER && op->kind != OP_REDUCE) return 0;
    while (executor_next_call(shape, op, item, &round, &call))
        bytes += comm_call_sent(shape->group[round.axes][op->stream], &call).bytes;
    return bytes;
}

uint64_t executor_drive_bytes(const struct plan *plan, const struct operation *op, uint32_t item) {
    if (op->kind != OP_FETCH && op->kind != OP_STORE) return 0;
    struct chunk c = chunk_layout_moved(&plan->layout, op, item);
    if (op->object == OBJECT_PARAM) return c.param_bytes;
    if (op->object == OBJECT_GRAD) return plan->layout.region[op->region].grads ? c.grad_bytes : 0;
    return (c.state ? chunk_record_bytes(&c) : 0) + c.params * c.param_bytes + c.grads * c.grad_bytes;
}

double executor_matrix_flops(const struct executor_shape *shape, uint32_t region, uint32_t rank) {
    enum { ITERATIONS = 5 }; /* the default */
    const struct model_region *r = &shape->model->region[region];
    double flops = 0;
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &shape->model->param[r->param[i]];
        if (shape->matrix_owner[r->param[i]] == rank)
            flops += ITERATIONS * orthogonalize_flops(p->shape[0], p->shape[1]);
    }
    return flops;
}
