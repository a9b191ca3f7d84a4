/* The norms of a region's tensors, for an optimizer that needs norms of whole tensors: each rank takes the norms of
 * its shard, and all ranks gather them. */
#include "stages/tensor.h"

#include "stages/emit.h"
#include "stages/grad.h"

void tensor_measure(struct policy *p, uint16_t region, enum outcome outcome, struct operation_list *out) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    const struct region *r = &p->region[region];
    struct placement_step steps[4];
    bool gathered = placement_equal(r->grad_step, whole);
    struct operation *op = emit(out, OP_UPDATE, OBJECT_NORM, STREAM_UPDATE, region);
    op->outcome = (uint8_t)outcome;
    if (outcome != OUTCOME_SKIPPED) {
        emit_reads(op, gathered ? BUFFER_GRAD_FULL : grad_shard_buffer(r), region);
        emit_reads(op, rests_replicated(r) ? BUFFER_PARAM_FULL : BUFFER_PARAM_SHARD, region);
    }
    emit_writes(op, BUFFER_TENSOR_NORMS, region);
    emit_writes(op, BUFFER_STATE, region);
    if (outcome == OUTCOME_SKIPPED) return;
    uint32_t count = placement_change(r->state, whole, p->mesh, steps);
    for (uint32_t i = 0; i < count; i++) { /* at zero0 each rank has all of them */
        op = emit(out, OP_GATHER, OBJECT_NORM, STREAM_GATHER, region);
        op->axes = steps[i].axes;
        emit_reads(op, BUFFER_TENSOR_NORMS, region);
        emit_writes(op, BUFFER_TENSOR_NORMS, region);
    }
}
