#include "stages/policy_internal.h"

static void resolve(const struct policy *p, struct region *r) {
    const struct stage *s = p->stage;
    const struct placement whole = {{REPLICATE, REPLICATE}};
    r->state = s->state;
    r->grad_between = s->grad_between[p->accumulation];
    r->grad_step = s->grad_step;
    r->rest = r->persistent ? whole : s->param_rest;
    r->between = r->persistent ? whole : s->param_between;
    bool stays_partial = placement_is(r->grad_between, PARTIAL, PARTIAL);
    bool accumulates_whole = stays_partial && policy_passes(p) > 1;
    bool gathered = placement_is(r->grad_step, REPLICATE, REPLICATE);
    r->grad_given &= !gathered && !accumulates_whole && !p->free_order && !p->vertical;
    r->grad_kept =
        gathered || accumulates_whole || (p->free_order && !p->bound) || r->grad_lent || r->grad_given;
    bool alone = p->mesh[AXIS_SHARD] * p->mesh[AXIS_REPLICATE] == 1;
    /* Within a bound a gradient may be reduced several times, and the sums add up outside of the backward's buffer. */
    r->grad_in_place =
        (gathered && r->grad_between.axis[AXIS_SHARD] == PARTIAL && !r->grad_widens && !p->bound) ||
        (r->grad_lent && alone);
    bool once = r->first_use == r->last_use; /* else its sum waits from one use to the other */
    r->grad_turns = p->vertical && !stays_partial && !r->grad_kept && once;
    r->grad_brief = p->update_in_backward && !p->repeats && !r->waits && !gathered && !r->grad_in_place &&
                    (stays_partial || (policy_passes(p) == 1 && (once || !p->vertical)));
    r->full = r->second = r->stale = r->partial = r->reduced = r->final = r->grad_live = r->grad_second =
        r->updated = false;
}

static void find_uses(struct policy *p) {
    for (uint32_t i = 0; i < p->regions; i++) p->region[i].first_use = UINT32_MAX;
    for (uint32_t u = 0; u < p->uses; u++)
        for (uint8_t i = 0; i < p->forward[u].count; i++) {
            struct region *r = &p->region[p->forward[u].region[i]];
            if (r->first_use == UINT32_MAX) r->first_use = u;
            r->last_use = u;
        }
}

static void find_trained(struct policy *p) {
    p->refreshes = 0;
    for (uint32_t q = 0; q < p->uses; q++)
        for (uint8_t i = 0; i < p->forward[q].count; i++) {
            uint16_t region = p->forward[q].region[i];
            bool known = p->region[region].frozen;
            for (uint32_t k = 0; k < p->refreshes; k++) known |= p->region[k].kth_trained == region;
            if (!known) p->region[p->refreshes++].kth_trained = region;
        }
}

/* In the order of the backward, a region waits if the waiting elements stay below their share of all so far. */
static void choose_waiting(struct policy *p) {
    double all = 0, waiting = 0;
    for (uint32_t k = p->refreshes; k-- > 0;) {
        struct region *r = &p->region[p->region[k].kth_trained];
        double elements = (double)r->elements;
        all += elements;
        r->waits = k > 0 && p->update_in_backward && waiting + elements / 2 < p->waiting_share * all;
        waiting += r->waits ? elements : 0;
    }
}

static void order_refresh(struct policy *p) {
    uint32_t count = 0;
    for (uint32_t k = p->refreshes; k-- > 0 && p->update_in_backward;)
        if (!p->region[p->region[k].kth_trained].waits) p->refresh[count++] = p->region[k].kth_trained;
    for (uint32_t k = 0; k < p->refreshes; k++)
        if (!p->update_in_backward || p->region[p->region[k].kth_trained].waits)
            p->refresh[count++] = p->region[k].kth_trained;
}

void policy_open(struct policy *p) {
    p->eager = true;
    p->legs = 1;
    p->sums = 0;
    for (uint32_t i = 0; i < p->regions; i++) p->region[i].counted = 0;
    find_uses(p);
    find_trained(p);
    choose_waiting(p);
    order_refresh(p);
    for (uint32_t i = 0; i < p->regions; i++) {
        resolve(p, &p->region[i]);
        p->eager &= rests_replicated(&p->region[i]);
        if (update_rows[p->region[i].scope].legs > p->legs) p->legs = update_rows[p->region[i].scope].legs;
    }
    policy_find_kept(p);
    room_open(p);
    p->evaluating = p->last = false;
    p->cursor = p->positions = p->reductions = p->gathers = p->directed = 0;
}

/* Per region, one event emits at most: a release, a reduction, its release, two steps to the gradient's placement, a
 * clear, an update and a gather; of a region with matrices also two more updates, a gather and three steps back; of one whose tensors
 * are measured another update and two gathers. Per event it emits one COMPUTE or AGREE. */
uint32_t policy_operations_max(const struct policy *p) { return (p->legs > 1 ? 16 : 8) * p->regions + 8; }

/* ---- updates in the backward ---- */

/* The last reduction of the step. A gradient that no backward produced is zero. */
static void complete(struct policy *p, uint16_t region, struct operation_list *out) {
    struct region *r = &p->region[region];
    if (!r->partial && !r->reduced) grad_clear(p, region, out);
    if (!r->final) grad_to(p, region, true, out);
}

/* Called when the backward at `position` has ended or was skipped. If it was a region's last backward of the step,
 * emits the region's update, unless that waits for the step. */
static void update_after(struct policy *p, uint16_t region, uint32_t position, struct operation_list *out) {
    struct region *r = &p->region[region];
    if (!p->update_in_backward || !p->last || !p->turned || r->frozen || r->waits || r->updated) return;
    if (!policy_backward(p, position) || policy_used_later(p, region, position, true, NULL)) return;
    complete(p, region, out);
    update_region(p, region, OUTCOME_UPDATED, out);
    r->updated = true;
}

/* ---- passes ---- */

/* Ends a use, or skips it. A skipped use leaves the same buffers as an ended use, so that no buffer lives longer than
 * in a complete pass. A skipped use reduces its gradient only if the gradient has an open interval; else the end of
 * the pass reduces it. */
static void leave_use(struct policy *p, bool skipped, struct operation_list *out) {
    uint32_t position = p->cursor;
    const struct use *use = policy_use(p, position);
    for (uint8_t i = 0; i < use->count; i++) {
        struct region *r = &p->region[use->region[i]];
        bool done = policy_backward(p, position) && (skipped ? r->grad_live : r->partial) &&
                    !policy_used_later(p, use->region[i], position, true, NULL);
        if (done && (p->last || !placement_is(r->grad_between, PARTIAL, PARTIAL)))
            grad_to(p, use->region[i], p->last, out);
        param_after_use(p, use->region[i], position, out);
    }
    for (uint8_t i = use->count; i-- > 0;) update_after(p, use->region[i], position, out);
    p->cursor++;
}

void policy_skip_to(struct policy *p, uint32_t position, struct operation_list *out) {
    while (p->cursor < position) leave_use(p, true, out);
}

static void finish_pass(struct policy *p, struct operation_list *out) {
    /* A pass that an evaluation interrupts before its first backward is not over. */
    bool final = p->free_order && p->last && p->turned;
    policy_skip_to(p, p->positions, out);
    eviction_finish(p);
    for (uint32_t i = 0; i < p->regions; i++) {
        struct region *r = &p->region[i];
        param_to_rest(p, (uint16_t)i, out);
        if (r->partial && (final || !placement_is(r->grad_between, PARTIAL, PARTIAL)))
            grad_to(p, (uint16_t)i, final, out);
    }
}

static void begin_pass(struct policy *p, bool evaluating, bool last, struct operation_list *out) {
    finish_pass(p, out);
    p->evaluating = evaluating;
    p->last = last;
    p->cursor = 0;
    p->positions = p->free_order ? 0 : evaluating ? p->uses : 2 * p->uses;
}

void policy_pass(struct policy *p, const struct event *e, struct operation_list *out) {
    begin_pass(p, e->evaluating, e->last, out);
    for (uint32_t i = 0; i < p->regions && !e->evaluating; i++) p->region[i].awaited = 0;
}

void policy_resume(struct policy *p, const struct event *e, struct operation_list *out) {
    begin_pass(p, false, e->last, out);
    if (!p->free_order) p->cursor = p->uses;
}

void policy_cancel(struct policy *p, const struct event *e, struct operation_list *out) {
    bool step = e->kind == EVENT_CANCEL_STEP;
    if (!step) p->last = false; /* the gradients of earlier micro-steps wait for another last micro-step */
    finish_pass(p, out);
    for (uint32_t i = 0; i < p->regions && step; i++)
        p->region[i].partial = p->region[i].reduced = p->region[i].final = false;
    if (step) p->taken[OBJECT_GRAD] = 0;
}

/* Gathers the use at `position`, and the uses after it that may be gathered ahead. */
static void want_uses(struct policy *p, uint32_t position, struct operation_list *out) {
    if (p->eager) return; /* all regions rest whole, and are never stale */
    uint32_t end = p->free_order ? position : policy_reach(p, position);
    for (uint32_t q = position; q <= end; q++) {
        const struct use *use = policy_use(p, q);
        for (uint8_t i = 0; i < use->count; i++) param_want(p, use->region[i], q, out);
    }
}

static void compute(struct policy *p, uint32_t position, struct operation_list *out) {
    const struct use *use = policy_use(p, position);
    struct operation *op = emit(out, OP_COMPUTE, OBJECT_PARAM, STREAM_COMPUTE, use->region[0]);
    op->use = (uint16_t)position;
    op->final = p->last && policy_backward(p, position);
    for (uint8_t i = 0; i < use->count; i++) emit_reads(op, BUFFER_PARAM_FULL, use->region[i]);
    if (policy_backward(p, position))
        for (uint8_t i = 0; i < use->count; i++) grad_begin(p, use->region[i], position, op);
}

void policy_begin(struct policy *p, const struct event *e, struct operation_list *out) {
    uint32_t position = e->position;
    p->turned |= policy_backward(p, position);
    if (!p->free_order) policy_skip_to(p, position, out);
    p->current = position;
    if (p->bound) eviction_begin(p, position, out);
    want_uses(p, position, out);
    compute(p, position, out);
}

/* A gradient that is not reduced in every micro-step goes on adding up in its buffer. */
void policy_step_aside(struct policy *p, const struct event *e, struct operation_list *out) {
    const struct use *use = policy_use(p, p->current);
    for (uint8_t i = 0; i < use->count && p->vertical && policy_backward(p, p->current); i++) {
        const struct region *r = &p->region[use->region[i]];
        if (r->partial && !placement_is(r->grad_between, PARTIAL, PARTIAL))
            grad_to(p, use->region[i], false, out);
    }
}

void policy_go_on(struct policy *p, const struct event *e, struct operation_list *out) {
    p->current = e->position;
    compute(p, e->position, out);
}

void policy_end(struct policy *p, const struct event *e, struct operation_list *out) {
    if (p->bound) eviction_end(p, out);
    if (!p->free_order) leave_use(p, false, out);
}

/* ---- the step ---- */

void policy_complete(struct policy *p, const struct event *e, struct operation_list *out) {
    finish_pass(p, out);
    for (uint32_t k = 0; k < p->refreshes; k++) complete(p, p->refresh[k], out);
}

void policy_agree(struct policy *p, const struct event *e, struct operation_list *out) {
    policy_complete(p, e, out);
    for (uint32_t k = 0; k < p->refreshes; k++) p->region[p->refresh[k]].final = false;
    struct operation *op = emit(out, OP_AGREE, OBJECT_NORM, STREAM_CONTROL, 0);
    op->axes = AXES_BOTH;
    /* so that all ranks have posted the same calls before AGREE */
    op->joins = 1u << STREAM_REDUCE | 1u << STREAM_GATHER;
}

void policy_apply(struct policy *p, const struct event *e, struct operation_list *out) {
    enum outcome outcome = e->outcome;
    for (uint32_t k = 0; k < p->refreshes && !p->update_in_backward && outcome != OUTCOME_SKIPPED; k++)
        update_lead(p, p->refresh[k], out);
    for (uint32_t k = 0; k < p->refreshes; k++) {
        struct region *r = &p->region[p->refresh[k]];
        enum outcome what = r->updated ? outcome : OUTCOME_UPDATED;
        r->partial = r->reduced = false;
        if (r->updated ? outcome != OUTCOME_UPDATED : outcome != OUTCOME_SKIPPED)
            update_region(p, p->refresh[k], what, out);
        r->updated = false;
    }
}

void policy_written(struct policy *p, const struct event *e, struct operation_list *out) {
    for (uint32_t i = 0; i < p->regions; i++) {
        struct region *r = &p->region[i];
        r->stale = rests_replicated(r) && !placement_is(r->state, REPLICATE, REPLICATE);
        if (r->stale && p->eager) param_refresh(p, (uint16_t)i, out);
    }
}

void policy_flush(struct policy *p, const struct event *e, struct operation_list *out) {
    finish_pass(p, out);
    for (uint32_t i = 0; i < p->regions; i++)
        if (p->region[i].stale) param_refresh(p, (uint16_t)i, out);
}
