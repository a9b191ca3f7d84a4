/* The parameters of a region: when they are gathered, and when they are released. */
#include "stages/policy_internal.h"

static void gather(struct policy *p, uint16_t region, struct placement from, enum buffer_kind source,
                   struct operation *op) {
    struct placement_step steps[4];
    placement_change(from, (struct placement){{REPLICATE, REPLICATE}}, p->mesh, steps);
    op->axes = steps[0].axes;
    emit_reads(op, source, region);
    emit_writes(op, BUFFER_PARAM_FULL, region);
    if (p->gather_stagings && source == BUFFER_PARAM_SHARD && p->region[region].staged)
        emit_writes(op, BUFFER_GATHER_STAGING, p->gathers++ % p->gather_stagings);
}

static void release(struct policy *p, uint16_t region, struct operation_list *out) {
    p->region[region].full = false;
    room_give(p, OBJECT_PARAM, region, true);
    struct operation *op = emit(out, OP_RELEASE, OBJECT_PARAM, STREAM_COMPUTE, region);
    emit_writes(op, BUFFER_PARAM_FULL, region);
}

/* After an update, every rank has refreshed only its own part of a replicated region. This gathers the parts of the
 * other ranks in place. */
void param_refresh(struct policy *p, uint16_t region, struct operation_list *out) {
    struct region *r = &p->region[region];
    r->stale = false;
    struct operation *op = emit(out, OP_GATHER, OBJECT_PARAM, STREAM_GATHER, region);
    gather(p, region, r->state, BUFFER_PARAM_FULL, op);
    if (r->lent) emit_lent_staging(p, op);
}

void param_want(struct policy *p, uint16_t region, uint32_t position, struct operation_list *out) {
    struct region *r = &p->region[region];
    if (rests_replicated(r)) {
        if (r->stale) param_refresh(p, region, out);
        return;
    }
    if (r->full) return;
    struct operation *op = emit(out, OP_GATHER, OBJECT_PARAM, STREAM_GATHER, region);
    gather(p, region, r->second ? r->between : r->rest, r->second ? BUFFER_PARAM_SECOND : BUFFER_PARAM_SHARD,
           op);
    op->use = (uint16_t)position;
    op->acquires = 1;
    r->full = true;
    room_take(p, OBJECT_PARAM, region, op);
}

void param_to_rest(struct policy *p, uint16_t region, struct operation_list *out) {
    if (p->region[region].full) release(p, region, out);
    p->region[region].second = false;
}

/* True if the region stays whole until its next use. If not all units fit, it stays only from a forward to the
 * backward of the same use. */
static bool stays(const struct policy *p, const struct region *r, uint32_t position, uint32_t next) {
    if (!placement_is(r->between, REPLICATE, REPLICATE)) return false;
    return p->kept_from == 0 || (position >= p->kept_from && next == 2 * p->uses - 1 - position);
}

static bool has_second(const struct region *r) {
    return !placement_equal(r->between, r->rest) && !placement_is(r->between, REPLICATE, REPLICATE);
}

void param_leave(struct policy *p, uint16_t region, bool returns, struct operation_list *out) {
    struct region *r = &p->region[region];
    if (returns && has_second(r) && !r->second) {
        struct operation *op = emit(out, OP_COPY, OBJECT_PARAM, STREAM_COMPUTE, region);
        emit_reads(op, BUFFER_PARAM_FULL, region);
        emit_writes(op, BUFFER_PARAM_SECOND, region);
        r->second = true;
    }
    release(p, region, out);
}

/* Changes the placement of a region after a use. It stays gathered if the next position uses it; it returns to rest
 * if this pass does not use it again; else it gets its placement "between uses". */
void param_after_use(struct policy *p, uint16_t region, uint32_t position, struct operation_list *out) {
    struct region *r = &p->region[region];
    uint32_t next;
    if (rests_replicated(r) || !r->full) return;
    if (!policy_used_later(p, region, position, false, &next)) {
        param_to_rest(p, region, out);
        return;
    }
    if (next == position + 1 || stays(p, r, position, next)) return;
    param_leave(p, region, true, out);
}
