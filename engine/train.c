/* The training loop's calls: passes and uses. */
#include <inttypes.h>

#include "engine/base/clock.h"
#include "engine/engine_internal.h"

/* ---- passes ---- */

zero_status zero_micro_begin(zero_engine *e, zero_mode mode) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase == PHASE_DECLARING || !e->filled)
        return refuse(ZERO_E_ORDER, "zero_micro_begin: first zero_engine_commit, then zero_engine_fill");
    if (e->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "zero_micro_begin: unit \"%s\" is still in use; end it first",
                      e->unit->name);
    if (mode != ZERO_TRAIN && mode != ZERO_EVAL)
        return refuse(ZERO_E_ARGUMENT, "zero_micro_begin: mode %d is neither ZERO_TRAIN nor ZERO_EVAL",
                      (int)mode);
    if (mode == ZERO_TRAIN && e->micro == e->policy.micro_steps)
        return refuse(ZERO_E_ORDER,
                      "zero_micro_begin: %" PRIu32 " micro-steps of this step are done "
                      "(gradient_accumulation_steps); call zero_engine_step",
                      e->micro);
    status = engine_check_pass(e, "zero_micro_begin");
    if (status) return status;
    for (uint32_t i = 0; i < e->model.units; i++) e->model.unit[i]->forwarded = false;
    e->recompute_next = NULL;
    if (mode == ZERO_TRAIN) e->micro++;
    e->mode = mode;
    status = engine_drive_room(e);
    if (!status)
        status =
            ENGINE_EVENT(e, executor_pass(e->executor, mode == ZERO_EVAL, e->micro == e->policy.micro_steps));
    if (!status) e->phase = PHASE_PASS;
    return status;
}

/* ---- uses ---- */

static bool computing(const struct executor *executor, struct point point) {
    return executor_computing(executor);
}

static zero_status check_begin(zero_unit *unit, const char *what, bool backward, uint32_t position) {
    zero_engine *e = unit->engine;
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": unit \"%s\" is still in its %s; end it first", what,
                      unit->name, e->unit->name, e->backward ? "backward" : "forward");
    if (e->phase != PHASE_PASS)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": no pass is open; call zero_micro_begin first", what,
                      unit->name);
    if (backward && e->mode == ZERO_EVAL)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": this pass is ZERO_EVAL, which has no backward", what,
                      unit->name);
    if (backward && !unit->forwarded)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": its forward was skipped in this pass", what, unit->name);
    if (position < e->policy.cursor)
        return refuse(ZERO_E_ORDER,
                      "%s of \"%s\": it is past in this pass; units are used in the order in which they "
                      "were added, and backward in reverse",
                      what, unit->name);
    return ZERO_OK;
}

/* One use: `position` of the pass, or, inside the backward, the forward again before the backward at `next`. */
struct begun {
    bool backward, again;
    uint32_t position, next;
};

static zero_status emit_begin(zero_engine *e, const zero_unit *unit, struct begun use) {
    return use.again ? executor_recompute(e->executor, unit->index, use.next)
                     : executor_begin(e->executor, use.position);
}

static zero_status begin(zero_unit *unit, struct begun begun) {
    zero_engine *e = unit->engine;
    const struct use *use = &e->model.use[unit->index];
    bool starts[USE_REGIONS_MAX];
    for (uint8_t i = 0; i < use->count; i++) {
        const struct region *r = &e->regions[use->region[i]];
        starts[i] = begun.backward && !r->frozen && !r->partial;
    }
    zero_status status = engine_drive_room(e);
    if (!status) status = ENGINE_EVENT(e, emit_begin(e, unit, begun));
    if (!status) status = engine_drive(e, computing, (struct point){0});
    if (status) return status;
    for (uint8_t i = 0; i < use->count; i++)
        if (starts[i]) slots_start_gradient(e, unit, use->region[i]);
    slots_set(e, unit, begun.backward);
    e->phase = PHASE_USE;
    unit->forwarded = true;
    e->unit = unit;
    e->backward = begun.backward;
    e->recomputes = begun.again;
    e->compute_began = clock_now_ns();
    progress_wake(e->progress);
    return ZERO_OK;
}

static zero_status end(zero_unit *unit, bool backward, const char *what) {
    zero_engine *e = unit->engine;
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase != PHASE_USE || e->unit != unit || e->backward != backward)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": its begin has not been called, or it has ended", what,
                      unit->name);
    e->compute_s += (double)(clock_now_ns() - e->compute_began) * 1e-9;
    slots_clear(e, unit, backward);
    e->phase = PHASE_PASS;
    status = engine_drive_room(e);
    if (!status)
        status = ENGINE_EVENT(e, e->recomputes ? executor_recomputed(e->executor, unit->index)
                                               : executor_end(e->executor));
    bool moved;
    if (!status) status = ENGINE_EVENT(e, executor_poll(e->executor, &moved));
    progress_wake(e->progress); /* the host may do anything before its next call */
    return status;
}

static uint32_t backward_position(const zero_unit *unit) {
    return 2 * unit->engine->policy.uses - 1 - unit->index;
}

/* ---- forwards inside the backward ---- */

static bool in_backward(const zero_engine *e) {
    return e->phase == PHASE_PASS && e->mode == ZERO_TRAIN && e->policy.cursor > e->policy.uses;
}

/* The next unit from `index` on, or before it, that this pass has used. */
static zero_unit *forwarded_from(const zero_engine *e, uint32_t index, int step) {
    while (!e->model.unit[index]->forwarded) index += (uint32_t)step;
    return e->model.unit[index];
}

/* One segment has both, and no backward of it has begun: of those behind `last` this pass has used none. */
static bool share_segment(const zero_unit *unit, const zero_unit *last) {
    bool share = unit->segment_last == last->segment_last && unit->index <= last->index;
    for (uint32_t i = last->index + 1; i <= last->segment_last; i++)
        share &= !last->engine->model.unit[i]->forwarded;
    return share;
}

/* `last`: whose backward comes next. */
static zero_status check_segment(const zero_unit *unit, const zero_unit *last) {
    const zero_engine *e = unit->engine;
    if (unit != last && !share_segment(unit, last))
        return refuse(
            ZERO_E_ORDER,
            "zero_forward_begin of \"%s\": a forward before the backward of \"%s\" recomputes, but the two "
            "were not declared as one segment: call zero_engine_add_segment before commit",
            unit->name, last->name);
    if (e->recompute_next && e->recompute_next != unit)
        return refuse(ZERO_E_ORDER,
                      "zero_forward_begin of \"%s\": the recomputation goes on with unit \"%s\"", unit->name,
                      e->recompute_next->name);
    return ZERO_OK;
}

/* Stages that gather nothing ask for the same order, so that a trainer that runs at one runs at all. */
static zero_status recompute_begin(zero_unit *unit) {
    zero_engine *e = unit->engine;
    zero_status status = check_begin(unit, "zero_forward_begin", false, backward_position(unit));
    if (status) return status;
    if (!unit->forwarded)
        return refuse(ZERO_E_ORDER, "zero_forward_begin of \"%s\": its forward was skipped in this pass",
                      unit->name);
    const zero_unit *last = forwarded_from(e, 2 * e->policy.uses - 1 - e->policy.cursor, -1);
    status = check_segment(unit, last);
    /* As planned, also where this pass skips the segment's last units. */
    uint32_t next = backward_position(e->model.unit[last->segment_last]);
    if (next < e->policy.cursor) next = backward_position(last);
    if (!status) status = begin(unit, (struct begun){.again = true, .next = next});
    if (!status) e->recompute_next = unit == last ? NULL : forwarded_from(e, unit->index + 1, 1);
    return status;
}

zero_status zero_forward_begin(zero_unit *unit) {
    if (in_backward(unit->engine)) return recompute_begin(unit);
    zero_status status = check_begin(unit, "zero_forward_begin", false, unit->index);
    return status ? status : begin(unit, (struct begun){.position = unit->index});
}

zero_status zero_forward_end(zero_unit *unit) { return end(unit, false, "zero_forward_end"); }

zero_status zero_backward_begin(zero_unit *unit) {
    uint32_t position = backward_position(unit);
    zero_status status = check_begin(unit, "zero_backward_begin", true, position);
    if (status) return status;
    if (unit->engine->recompute_next)
        return refuse(ZERO_E_ORDER,
                      "zero_backward_begin of \"%s\": the recomputation goes on with unit \"%s\"", unit->name,
                      unit->engine->recompute_next->name);
    return begin(unit, (struct begun){.backward = true, .position = position});
}

zero_status zero_backward_end(zero_unit *unit) { return end(unit, true, "zero_backward_end"); }
