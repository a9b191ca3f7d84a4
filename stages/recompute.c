/* Recomputation: forwards that run again inside a backward, for activation checkpointing (Chen et al. 2016, Training
 * Deep Nets with Sublinear Memory Cost). */
#include "stages/policy_internal.h"

uint32_t policy_recompute_position(const struct policy *p, uint32_t use, uint32_t next) {
    return 2 * p->uses - 1 - use == next ? next : 2 * p->uses + use;
}

/* The run of forward uses that are already gathered when the segment of the backward at `next` is recomputed: the
 * backward before `next` gathered them ahead, or the last forward did, or they were kept since their forward. */
static struct run held(struct policy *p, uint32_t next) {
    uint32_t last = 2 * p->uses - 1 - next, end = policy_reach(p, next - 1),
             turn = policy_reach(p, p->uses - 1);
    if (turn > end) end = turn;
    uint32_t first = end < next ? last + 1 : 2 * p->uses - 1 - end;
    bool keeps = placement_is(p->stage->param_between, REPLICATE, REPLICATE);
    return (struct run){keeps && p->kept_from < first ? p->kept_from : first, last};
}

/* True if the unit whose backward is at `position` stays gathered after its forward `use`: the backward at `next`
 * will gather ahead as far as `position`, and the unit has room beside each later forward of the segment. */
static bool stays(struct policy *p, uint32_t use, uint32_t position, uint32_t next) {
    struct run there = held(p, next);
    if (position > policy_reach(p, next)) return false;
    for (uint32_t u = use + 1; u <= there.last; u++)
        if (!policy_fits(p, (struct run){use, u}, there, &p->forward[u])) return false;
    return true;
}

/* The first forward use of the segment that is still gathered, for its backward, when `use` is recomputed. */
static uint32_t first_staying(struct policy *p, uint32_t use, uint32_t next) {
    uint32_t first = use, begin = use - p->forward[use].segment_offset;
    while (first > begin && stays(p, first - 1, 2 * p->uses - first, next)) first--;
    return first;
}

/* True if `ahead` may be gathered while `use` is recomputed. It is then in memory during all forwards from `use` up
 * to its own, so it must have room beside each of them and beside the units that stay gathered by then. */
static bool has_room(struct policy *p, uint32_t use, uint32_t ahead, uint32_t next) {
    for (uint32_t u = use; u < ahead; u++)
        if (!policy_fits(p, (struct run){first_staying(p, u, next), ahead}, held(p, next), &p->forward[u]))
            return false;
    return true;
}

static void after_use(struct policy *p, uint32_t use, struct operation_list *out) {
    bool keeps = placement_is(p->stage->param_between, REPLICATE, REPLICATE);
    for (uint8_t i = 0; i < p->forward[use].count; i++) {
        uint16_t region = p->forward[use].region[i];
        uint32_t next;
        bool later = policy_used_later(p, region, p->cursor - 1, false, &next);
        bool kept = keeps && use >= p->kept_from && next == 2 * p->uses - 1 - use;
        if (later && (kept || stays(p, use, next, p->cursor))) continue;
        param_after_use(p, region, p->cursor - 1, out);
    }
}

void policy_recompute(struct policy *p, const struct event *e, struct operation_list *out) {
    uint32_t use = e->unit, next = e->position;
    uint32_t last = 2 * p->uses - 1 - next, left = p->depth;
    p->turned |= !p->free_order && next > p->uses; /* backwards before it are skipped */
    policy_skip_to(p, next, out);
    p->current = 2 * p->uses + use;
    for (uint32_t u = use - p->forward[use].segment_offset; u < use; u++)
        after_use(p, u, out); /* this recomputation skips these uses */
    for (uint32_t u = use; u <= last; u++) {
        const struct use *ahead = &p->forward[u];
        if (u > use && policy_gathers(p, ahead) && (left-- == 0 || !has_room(p, use, u, next))) break;
        for (uint8_t i = 0; i < ahead->count; i++)
            param_want(p, ahead->region[i], policy_recompute_position(p, u, next), out);
    }
    struct operation *op = emit(out, OP_COMPUTE, OBJECT_PARAM, STREAM_COMPUTE, p->forward[use].region[0]);
    op->use = (uint16_t)(2 * p->uses + use);
    for (uint8_t i = 0; i < p->forward[use].count; i++)
        emit_reads(op, BUFFER_PARAM_FULL, p->forward[use].region[i]);
}

void policy_recomputed(struct policy *p, const struct event *e, struct operation_list *out) {
    after_use(p, e->unit, out);
}
