#include "engine/plan/plan_internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t dry_run_slots(const struct policy *policy) {
    return 4 * policy->uses * USE_REGIONS_MAX * PLAN_SLOT_KINDS;
}

uint32_t *dry_run_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref) {
    const struct use *use = policy_use(plan->policy, position);
    uint32_t k = 0;
    while (k < use->count && use->region[k] != ref.region) k++;
    if (k == use->count) return NULL;
    uint32_t index = ((evaluating ? 3 * plan->policy->uses : 0) + position) * USE_REGIONS_MAX + k;
    return &plan->slot[PLAN_SLOT_KINDS * index + plan_slot_kind(ref.kind)];
}

/* The bytes that the gathers in a list of operations read from the drive. */
static uint64_t fetched_bytes(const struct plan *plan, const struct operation_list *list) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operation *op = &list->item[i];
        bool fetches = op->kind == OP_GATHER && op->read[0].kind == BUFFER_PARAM_SHARD;
        if (fetches && plan->layout.region[op->region].params)
            bytes += chunk_layout_param_bytes(&plan->layout, op->region);
    }
    return bytes;
}

/* Free order within a bound: one interval for each buffer that is gathered or released. All uses of a pass have it. */
static void begin_apart(struct plan *plan, struct intervals *intervals, struct buffer_ref ref) {
    const struct policy *p = plan->policy;
    uint64_t bytes = plan_part_bytes(plan, ref.region, (struct placement){{REPLICATE, REPLICATE}},
                                     plan_precision(plan, ref.region).compute);
    uint32_t known = interval_begin(intervals, ref, UINT32_MAX, bytes, 0);
    interval_end(intervals, ref, 1);
    for (uint32_t q = 0; q < 4 * p->uses; q++) {
        bool evaluating = q >= 3 * p->uses;
        uint32_t *slot = dry_run_slot(plan, evaluating, evaluating ? q - 3 * p->uses : q, ref);
        if (slot) *slot = known;
    }
}

void dry_run_begin_apart(struct plan *plan, struct intervals *intervals) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    for (uint16_t i = 0; i < plan->policy->regions && plan->policy->bound; i++) {
        const struct region *r = &plan->policy->region[i];
        if (!placement_equal(r->rest, whole))
            begin_apart(plan, intervals, (struct buffer_ref){BUFFER_PARAM_FULL, i});
        if (!r->frozen && !r->grad_kept)
            begin_apart(plan, intervals, (struct buffer_ref){BUFFER_GRAD_FULL, i});
    }
}

/* Adds the bytes that the reductions in a list move between drive and staging. */
static void note_gradients(struct plan *plan, const struct operation_list *list) {
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operation *op = &list->item[i];
        const struct offload_region *r = &plan->layout.region[op->region];
        bool stores = offload_stores_gradient(r, op), fetches = offload_fetches_gradient(r, op);
        if (!stores && !fetches) continue;
        uint64_t bytes = chunk_layout_grad_bytes(&plan->layout, op->region);
        plan->grad_store_bytes += stores * bytes;
        plan->sum_fetch_bytes += fetches * bytes;
    }
}

/* Begins and ends the intervals of a list of operations that was emitted at `tick`. */
static void note(struct plan *plan, struct intervals *intervals, const struct policy *policy,
                 const struct operation_list *list, uint32_t tick) {
    note_gradients(plan, list);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operation *op = &list->item[i];
        for (uint8_t k = 0; k < op->writes; k++) {
            if (!(op->acquires & 1u << k)) continue;
            uint32_t *slot = dry_run_slot(plan, policy->evaluating, op->use, op->write[k]);
            uint64_t bytes =
                plan_part_bytes(plan, op->write[k].region, (struct placement){{REPLICATE, REPLICATE}},
                                plan_precision(plan, op->write[k].region).compute);
            *slot = interval_begin(intervals, op->write[k], *slot, bytes, tick);
            /* the same use goes on with another micro-batch */
            intervals->item[*slot].open |= policy->vertical && op->kind == OP_COMPUTE;
            if (op->kind == OP_GATHER) plan->live += policy->region[op->region].elements;
        }
        if (op->kind == OP_RELEASE && op->object == OBJECT_PARAM)
            plan->live -= policy->region[op->region].elements;
        if (plan->live > plan->live_most) plan->live_most = plan->live;
        if (op->kind == OP_RELEASE) {
            /* When a gradient is released, its reduction has only just begun. So the gradient keeps its place for one
             * more use, and the next backward need not wait for that reduction. */
            uint32_t lag = op->object == OBJECT_GRAD && policy->backward_depth ? 2 : 0;
            interval_end(intervals, op->write[0], tick + lag);
        }
    }
}

/* Notes where the buffers of a use are, also the buffers that an earlier use began. A pass that skips the earlier use
 * begins these buffers at this use, and needs their place. */
static void note_use(struct plan *plan, const struct intervals *intervals, const struct policy *policy,
                     uint32_t position) {
    static const uint16_t kinds[PLAN_SLOT_KINDS] = {BUFFER_PARAM_FULL, BUFFER_GRAD_FULL, BUFFER_GRAD_SECOND};
    const struct use *use = policy_use(policy, position);
    for (uint8_t k = 0; k < use->count; k++)
        for (int kind = 0; kind < PLAN_SLOT_KINDS; kind++) {
            const struct buffer_ref ref = {kinds[kind], use->region[k]};
            uint32_t *slot = dry_run_slot(plan, policy->evaluating, position, ref);
            if (*slot == NO_BUFFER) *slot = interval_open(intervals, ref);
        }
}

/* Runs the policy for the segment that may be recomputed before the backward at `position`. A segment of one unit
 * needs nothing here: its recomputation gathers the unit where its backward needs it. Returns the bytes that are
 * fetched. */
static uint64_t dry_recompute(struct plan *plan, struct intervals *intervals, struct policy *policy,
                              struct operation_list *list, uint32_t position, uint32_t *tick) {
    uint32_t last = 2 * policy->uses - 1 - position;
    const struct zero_unit *unit = plan->model->unit[last];
    uint32_t first = unit->segment_last == last ? unit->segment_first : last;
    uint64_t fetched = 0;
    for (uint32_t use = first; use <= last && first < last; use++) {
        list->count = 0, ++*tick;
        policy_recompute(policy, &(struct event){.unit = use, .position = position}, list);
        fetched += fetched_bytes(plan, list);
        note(plan, intervals, policy, list, *tick);
        note_use(plan, intervals, policy, policy_recompute_position(policy, use, position));
        list->count = 0, ++*tick;
        policy_recomputed(policy, &(struct event){.unit = use}, list);
        note(plan, intervals, policy, list, *tick);
    }
    return fetched;
}

/* The use's other micro-batches. */
static void dry_micros(struct plan *plan, struct intervals *intervals, struct policy *policy,
                       struct operation_list *list, uint32_t position, uint32_t *tick) {
    struct event use = {.position = position};
    uint32_t count = policy_backward(policy, position) ? policy_use_micros(policy) : 1;
    for (uint32_t micro = 1; micro < count; micro++) {
        list->count = 0, ++*tick;
        policy_step_aside(policy, &use, list);
        policy_go_on(policy, &use, list);
        note(plan, intervals, policy, list, *tick);
    }
}

/* Returns the bytes that the pass fetches. */
static uint64_t dry_pass(struct plan *plan, struct intervals *intervals, struct policy *policy,
                         struct operation_list *list, bool evaluating, bool last, uint32_t *tick) {
    const struct event pass = {.evaluating = evaluating, .last = last};
    uint64_t fetched = 0;
    list->count = 0;
    policy_pass(policy, &pass, list);
    note(plan, intervals, policy, list, *tick);
    for (uint32_t q = 0; q < (evaluating ? 1 : 2) * policy->uses; q++) {
        if (policy_backward(policy, q) && !policy->free_order)
            fetched += dry_recompute(plan, intervals, policy, list, q, tick);
        list->count = 0, ++*tick;
        policy_begin(policy, &(struct event){.position = q}, list);
        fetched += fetched_bytes(plan, list);
        note(plan, intervals, policy, list, *tick);
        note_use(plan, intervals, policy, q);
        dry_micros(plan, intervals, policy, list, q, tick);
        list->count = 0, ++*tick;
        policy_end(policy, &pass, list);
        note(plan, intervals, policy, list, *tick);
    }
    list->count = 0;
    policy_pass(policy, &pass, list);
    note(plan, intervals, policy, list, *tick);
    return fetched;
}

/* Computes the bytes of a step from those of its first and last micro-steps. The micro-steps between them read the sum that
 * they add to, if the first one stored it. */
static void count_gradients(struct plan *plan, uint32_t passes, uint64_t stored, uint64_t summed) {
    if (passes == 1) {
        plan->grad_store_bytes = stored, plan->sum_fetch_bytes = summed;
        return;
    }
    plan->grad_store_bytes += (passes - 2) * stored;
    plan->sum_fetch_bytes += (passes - 2) * (stored + summed);
}

/* Runs the policy for a first and a last micro-step of training, then for an evaluation. */
zero_status dry_run(struct plan *plan, struct intervals *intervals, struct zero_error *error) {
    struct policy policy = *plan->policy;
    uint32_t capacity = policy_operations_max(&policy);
    struct operation_list list = {malloc(capacity * sizeof *list.item), 0, capacity};
    struct region *regions = malloc(policy.regions * sizeof *regions);
    if (!list.item || !regions) {
        free(list.item), free(regions);
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan's dry run");
    }
    memcpy(regions, plan->policy->region, policy.regions * sizeof *regions);
    policy.region = regions;
    uint32_t tick = 0, passes = policy_passes(&policy);
    uint64_t first = dry_pass(plan, intervals, &policy, &list, false, passes == 1, &tick);
    uint64_t stored = plan->grad_store_bytes, summed = plan->sum_fetch_bytes;
    uint64_t last = policy.vertical ? first : dry_pass(plan, intervals, &policy, &list, false, true, &tick);
    plan->param_fetch_bytes = (passes - 1) * first + last;
    count_gradients(plan, passes, stored, summed);
    dry_pass(plan, intervals, &policy, &list, true, false, &tick);
    bool whole = !operation_list_overflowed(&list);
    free(list.item), free(regions);
    return whole ? ZERO_OK
                 : error_set(error, ZERO_E_INTERNAL,
                             "the plan's dry run listed more operations than it has room for, %u", capacity);
}
