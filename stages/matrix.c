/* The directions of a region whose optimizer updates whole matrices: gathers them from shards, lets each matrix's
 * owner change its own, and brings them back to shards. */
#include "stages/matrix.h"

#include "stages/emit.h"
#include "stages/grad.h"

/* Moves directions between two placements, by gathers or reductions. */
static void move(struct policy *p, uint16_t region, struct buffer_ref direction, struct placement from,
                 struct placement to, struct operation_list *out) {
    struct placement_step steps[4];
    uint32_t count = placement_change(from, to, p->mesh, steps);
    for (uint32_t i = 0; i < count; i++) {
        bool gathers = steps[i].kind == OP_GATHER;
        struct operation *op = emit(out, (enum operation_kind)steps[i].kind, OBJECT_DIRECTION,
                                    gathers ? STREAM_GATHER : STREAM_REDUCE, region);
        op->axes = steps[i].axes;
        /* a reduction without a source is a sum of shards over the replicate axis */
        if (gathers || steps[i].axes & AXES_SHARD) emit_reads(op, BUFFER_DIRECTION, direction.region);
        emit_writes(op, BUFFER_DIRECTION, direction.region);
        if (!gathers) grad_stage_through(p, op);
    }
}

struct buffer_ref matrix_direct(struct policy *p, uint16_t region, enum outcome outcome,
                                struct operation_list *out) {
    const struct placement whole = {{REPLICATE, REPLICATE}}, summands = {{PARTIAL, PARTIAL}};
    struct region *r = &p->region[region];
    struct buffer_ref direction = {BUFFER_DIRECTION, (uint16_t)(p->directed++ % p->directions)};
    bool gathered = placement_equal(r->grad_step, whole);
    struct operation *op = emit(out, OP_UPDATE, OBJECT_DIRECTION, STREAM_UPDATE, region);
    op->outcome = (uint8_t)outcome;
    if (outcome != OUTCOME_SKIPPED)
        emit_reads(op, gathered ? BUFFER_GRAD_FULL : grad_shard_buffer(r), region);
    emit_writes(op, BUFFER_DIRECTION, direction.region);
    emit_writes(op, BUFFER_STATE, region);
    if (outcome == OUTCOME_SKIPPED) return direction;
    move(p, region, direction, r->state, whole, out);
    op = emit(out, OP_MATRIX, OBJECT_DIRECTION, STREAM_UPDATE, region);
    emit_writes(op, BUFFER_DIRECTION, direction.region);
    emit_writes(op, BUFFER_MATRIX_SCRATCH, 0);
    move(p, region, direction, summands, r->state, out);
    return direction;
}
