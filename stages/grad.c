/* The gradients of a region: where a backward writes them, when they are reduced, and where they are at the step. */
#include "stages/policy_internal.h"

/* The buffer that a reduction writes. zero0 without sharded accumulation reduces into this rank's part of the full
 * gradient, if its type is wide enough. Everything else reduces into a shard. */
enum buffer_kind grad_shard_buffer(const struct region *r) {
    return r->grad_in_place ? BUFFER_GRAD_FULL : BUFFER_GRAD_SHARD;
}

void grad_begin(struct policy *p, uint16_t region, uint32_t position, struct operation *compute) {
    struct region *r = &p->region[region];
    if (r->frozen) return;
    if (!r->partial) room_take(p, OBJECT_GRAD, region, compute);
    if (!r->grad_kept && !r->grad_live) {
        compute->acquires |= (uint16_t)(1u << compute->writes);
        r->grad_live = true;
    }
    compute->use = (uint16_t)position;
    emit_writes(compute, policy_gradient(r), region);
    r->partial = true;
}

void grad_stage_through(struct policy *p, struct operation *op) {
    if (p->stagings) emit_writes(op, BUFFER_STAGING, p->reductions++ % p->stagings);
}

static struct operation *reduce(struct policy *p, uint16_t region, struct placement to, bool final,
                                struct operation_list *out) {
    struct region *r = &p->region[region];
    struct placement_step steps[4];
    placement_change((struct placement){{PARTIAL, PARTIAL}}, to, p->mesh, steps);
    struct operation *op = emit(out, OP_REDUCE, OBJECT_GRAD, STREAM_REDUCE, region);
    op->axes = steps[0].axes;
    op->add = r->reduced;
    op->final = final;
    enum buffer_kind whole = policy_gradient(r);
    emit_reads(op, whole, region);
    emit_writes(op, grad_shard_buffer(r), region);
    grad_stage_through(p, op);
    room_give(p, OBJECT_GRAD, region, r->grad_live);
    r->partial = false;
    r->reduced = true;
    r->grad_second = r->grad_turns && !final && !r->grad_second;
    if (!r->grad_live) return op;
    r->grad_live = false;
    emit_writes(emit(out, OP_RELEASE, OBJECT_GRAD, STREAM_REDUCE, region), whole, region);
    return op;
}

/* The changes from a reduced shard to the placement of the step. */
static uint32_t last_changes(const struct policy *p, const struct region *r, struct placement_step out[4]) {
    struct placement from = placement_is(r->grad_step, SHARD, SHARD) ? (struct placement){{SHARD, SHARD}}
                                                                     : (struct placement){{SHARD, PARTIAL}};
    return placement_change(from, r->grad_step, p->mesh, out);
}

/* Brings the reduced shard to the placement of the step: adds over the replicate axis; at zero0 gathers it back. */
static void finish(struct policy *p, uint16_t region, bool follows, struct operation_list *out) {
    struct region *r = &p->region[region];
    struct placement_step steps[4];
    uint32_t count = last_changes(p, r, steps);
    for (uint32_t i = 0; i < count; i++) {
        /* The gather is on its own stream, so that the next reduction does not wait for it. */
        enum stream stream = steps[i].kind == OP_GATHER ? STREAM_GATHER : STREAM_REDUCE;
        struct operation *op = emit(out, (enum operation_kind)steps[i].kind, OBJECT_GRAD, stream, region);
        op->axes = steps[i].axes;
        op->final = op->kind == OP_REDUCE;
        op->sums = op->final && follows;
        if (op->kind == OP_GATHER) emit_reads(op, grad_shard_buffer(r), region);
        emit_writes(op, op->kind == OP_GATHER ? BUFFER_GRAD_FULL : grad_shard_buffer(r), region);
        if (op->kind == OP_REDUCE) grad_stage_through(p, op);
        if (op->kind == OP_GATHER && r->grad_lent) emit_lent_staging(p, op);
    }
    r->final = true;
}

/* Reduces a partial gradient. `final`: also brings it to the placement of the step. */
void grad_to(struct policy *p, uint16_t region, bool final, struct operation_list *out) {
    struct region *r = &p->region[region];
    bool stays_partial = placement_is(r->grad_between, PARTIAL, PARTIAL);
    struct placement_step steps[4];
    bool summed = r->partial && final && last_changes(p, r, steps) && steps[0].kind == OP_REDUCE;
    struct operation *op = NULL;
    if (r->partial)
        op = reduce(p, region, final || stays_partial ? r->grad_step : r->grad_between, final, out);
    if (op) op->summed = summed;
    if (final) finish(p, region, summed, out);
}

void grad_leave(struct policy *p, uint16_t region, struct operation_list *out) {
    struct region *r = &p->region[region];
    bool stays_partial = placement_is(r->grad_between, PARTIAL, PARTIAL);
    reduce(p, region, p->last || stays_partial ? r->grad_step : r->grad_between, p->last, out);
}

void grad_clear(struct policy *p, uint16_t region, struct operation_list *out) {
    struct operation *op = emit(out, OP_CLEAR, OBJECT_GRAD, STREAM_REDUCE, region);
    op->final = true;
    emit_writes(op, grad_shard_buffer(&p->region[region]), region);
    p->region[region].reduced = true;
}
