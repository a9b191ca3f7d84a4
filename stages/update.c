/* The update of a region: the legs of its optimizer's scope, and what follows each of them (engine/base/update.h). */
#include "stages/policy_internal.h"

#include "engine/base/update.h"

/* What a leg makes for the next one. Regions use the buffers for directions in turn. */
static struct buffer_ref between_legs(const struct policy *p, uint16_t region, uint8_t kind) {
    return (struct buffer_ref){kind, kind == BUFFER_DIRECTION ? (uint16_t)((p->directed - 1) % p->directions)
                                                              : region};
}

/* Moves it between two placements, by gathers or reductions. */
static void move(struct policy *p, uint16_t region, enum object object, struct buffer_ref ref,
                 struct placement from, struct placement to, struct operation_list *out) {
    struct placement_step steps[4];
    uint32_t count = placement_change(from, to, p->mesh, steps);
    for (uint32_t i = 0; i < count; i++) {
        bool gathers = steps[i].kind == OP_GATHER;
        struct operation *op = emit(out, (enum operation_kind)steps[i].kind, object,
                                    gathers ? STREAM_GATHER : STREAM_REDUCE, region);
        op->axes = steps[i].axes;
        /* a reduction without a source is a sum of shards over the replicate axis */
        if (gathers || steps[i].axes & AXES_SHARD) emit_reads(op, (enum buffer_kind)ref.kind, ref.region);
        emit_writes(op, (enum buffer_kind)ref.kind, ref.region);
        if (!gathers) grad_stage_through(p, op);
    }
}

/* A matrix's owner changes its part; all other ranks set theirs to zero, so that a reduction brings the owner's. */
static void change_matrices(uint16_t region, const struct update_leg *leg, struct buffer_ref ref,
                            struct operation_list *out) {
    struct operation *op = emit(out, OP_MATRIX, (enum object)leg->object, STREAM_UPDATE, region);
    emit_writes(op, (enum buffer_kind)ref.kind, ref.region);
    emit_writes(op, BUFFER_MATRIX_SCRATCH, 0);
}

static void follow(struct policy *p, uint16_t region, const struct update_leg *leg,
                   struct operation_list *out) {
    const struct placement whole = {{REPLICATE, REPLICATE}}, summands = {{PARTIAL, PARTIAL}};
    const struct placement state = p->region[region].state;
    const enum object object = (enum object)leg->object;
    struct buffer_ref ref = between_legs(p, region, leg->makes);
    for (int i = 0; i < LEG_FOLLOWS_MAX && leg->follow[i]; i++) {
        if (leg->follow[i] == OP_GATHER) move(p, region, object, ref, state, whole, out);
        if (leg->follow[i] == OP_MATRIX) change_matrices(region, leg, ref, out);
        if (leg->follow[i] == OP_REDUCE) move(p, region, object, ref, summands, state, out);
    }
}

/* Taking an update back needs no gradient, and nothing of another leg. */
static void update_leg(struct policy *p, uint16_t region, uint8_t index, enum outcome outcome,
                       struct operation_list *out) {
    const struct region *r = &p->region[region];
    const struct update_leg *leg = &update_rows[r->scope].leg[index];
    const enum buffer_kind params = rests_replicated(r) ? BUFFER_PARAM_FULL : BUFFER_PARAM_SHARD;
    bool whole = placement_is(r->grad_step, REPLICATE, REPLICATE), back = outcome == OUTCOME_SKIPPED;
    struct operation *op = emit(out, OP_UPDATE, (enum object)leg->object, STREAM_UPDATE, region);
    op->leg = index;
    op->outcome = (uint8_t)outcome;
    p->directed += leg->makes == BUFFER_DIRECTION;
    if (leg->takes && !back) op->read[op->reads++] = between_legs(p, region, leg->takes);
    if (leg->reads & ARRAY_GRADIENT && !back)
        emit_reads(op, whole ? BUFFER_GRAD_FULL : grad_shard_buffer(r), region);
    if (leg->reads & ~leg->writes & ARRAY_PARAMS && !back) emit_reads(op, params, region);
    if (leg->makes) op->write[op->writes++] = between_legs(p, region, leg->makes);
    if (leg->writes & ARRAY_PARAMS) emit_writes(op, params, region);
    emit_writes(op, BUFFER_STATE, region);
    if (!back) follow(p, region, leg, out);
}

void update_lead(struct policy *p, uint16_t region, struct operation_list *out) {
    for (uint8_t i = 0; i < update_rows[p->region[region].scope].leads; i++)
        update_leg(p, region, i, OUTCOME_UPDATED, out);
}

void update_region(struct policy *p, uint16_t region, enum outcome outcome, struct operation_list *out) {
    struct region *r = &p->region[region];
    const struct update_row *row = &update_rows[r->scope];
    for (uint8_t i = p->update_in_backward ? 0 : row->leads; i < row->legs; i++)
        update_leg(p, region, i, outcome, out);
    if (!rests_replicated(r) || placement_is(r->state, REPLICATE, REPLICATE)) return;
    r->stale = true;
    if (p->eager) param_refresh(p, region, out);
}
