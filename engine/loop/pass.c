#include "engine/loop/pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/loop/slots.h"
#include "engine/state/shadow.h"

zero_status pass_settle(struct pass *pass) {
    zero_status status = run_settle(pass->run);
    if (!status) pass->phase = PHASE_READY;
    pass->settled = !status;
    return status;
}

/* ---- passes ---- */

zero_status pass_begin(struct pass *pass, zero_mode mode) {
    TRY(pass_check(pass, "zero_micro_begin"));
    if (pass->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "zero_micro_begin: unit \"%s\" is still in use; end it first",
                      pass->unit->name);
    if (mode != ZERO_TRAIN && mode != ZERO_EVAL)
        return refuse(ZERO_E_ARGUMENT, "zero_micro_begin: mode %d is neither ZERO_TRAIN nor ZERO_EVAL",
                      (int)mode);
    if (mode == ZERO_EVAL && pass_updates(pass))
        return refuse(ZERO_E_ORDER, PASS_UPDATES, "zero_micro_begin");
    bool interrupts = mode == ZERO_EVAL && pass_awaits_backward(pass);
    TRY(interrupts ? ZERO_OK : pass_check_forward(pass, "zero_micro_begin"));
    if (mode == ZERO_TRAIN && pass->completed)
        return refuse(ZERO_E_ORDER, "zero_micro_begin: the gradients of this step were read, which ends its "
                                    "micro-steps (gradient_accumulation_by_program): call zero_engine_step");
    if (mode == ZERO_TRAIN && policy_last(&pass->blueprint->policy, pass->micro))
        return refuse(
            ZERO_E_ORDER,
            "zero_micro_begin: %" PRIu32
            " micro-steps of this step are done%s (gradient_accumulation_steps); call zero_engine_step",
            pass->blueprint->policy.micro_steps,
            pass->blueprint->policy.vertical
                ? ", all in one pass (zero_optimization.micro_order \"vertical\")"
                : "");
    if (interrupts) pass_suspend(pass);
    slots_clear_held(pass);
    for (uint32_t i = 0; i < pass->model->units; i++) pass->model->unit[i]->forwarded = false;
    pass->recompute_next = NULL;
    pass->recomputed = false;
    pass->made = 0;
    pass->made_before = pass->backwards;
    if (mode == ZERO_TRAIN) pass->micro++, pass->suspended = false;
    pass->mode = mode;
    pass->settled = false;
    zero_status status =
        run_event(pass->run, (struct event){.kind = EVENT_PASS,
                                            .evaluating = mode == ZERO_EVAL,
                                            .last = policy_last(&pass->blueprint->policy, pass->micro),
                                            .update = &pass->run->update});
    if (!status) pass->phase = PHASE_PASS;
    return status;
}

/* ---- uses ---- */

/* clang-format off */
#define TURN_IS_OVER                                                                                         \
    "%s of \"%s\": its turn in this pass is over; units are used in the order in which they were added, and "  \
    "backward in reverse"
/* clang-format on */

/* The units in use, each once, the present one first. Returns their number. */
static uint32_t units_in_use(const struct pass *pass, const struct zero_unit *out[NESTED_USES_MAX + 1]) {
    uint32_t count = 0;
    for (uint32_t i = pass->phase == PHASE_USE ? pass->nested + 1 : 0; i-- > 0;) {
        const struct zero_unit *unit = i == pass->nested ? pass->unit : pass->outer[i].unit;
        bool known = false;
        for (uint32_t k = 0; k < count; k++) known |= out[k] == unit;
        if (!known) out[count++] = unit;
    }
    return count;
}

/* Free order within a bound: refuses a unit for which there is no room. */
static zero_status check_bound(const struct pass *pass, const zero_unit *unit, const char *what) {
    const struct zero_unit *in_use[NESTED_USES_MAX + 1];
    char names[200] = "";
    uint32_t count = units_in_use(pass, in_use), bound = pass->model->bound, named = 0;
    for (uint32_t i = 0; i < count; i++)
        if (in_use[i] == unit) return ZERO_OK;
    if (!bound || count < bound) return ZERO_OK;
    for (size_t at = 0; named < count && at < sizeof names - 1; named++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s\"%s\"", named ? ", " : "",
                               in_use[named]->name);
    return refuse(ZERO_E_ORDER,
                  "%s of \"%s\": %" PRIu32
                  " %s in use, %s%s, and zero_engine_free_order_within allows %" PRIu32
                  " at once: end one first, or allow at least %" PRIu32,
                  what, unit->name, count, count == 1 ? "unit is" : "units are", names,
                  strlen(names) == sizeof names - 1 ? "..." : "", bound, count + 1);
}

static zero_status check_begin(const struct pass *pass, const zero_unit *unit, const char *what,
                               bool backward, uint32_t position) {
    TRY(pass_check(pass, what));
    if (pass->phase == PHASE_USE && pass->nested == NESTED_USES_MAX)
        return refuse(ZERO_E_ORDER,
                      "%s of \"%s\": %d uses are open around it, the most that are possible: end one first",
                      what, unit->name, NESTED_USES_MAX + 1);
    if (pass->phase == PHASE_USE && !pass->model->free_order)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": unit \"%s\" is still in its %s; end it first", what,
                      unit->name, pass->unit->name, pass->backward ? "backward" : "forward");
    if (unit->held)
        return refuse(
            ZERO_E_ORDER,
            "%s of \"%s\": the unit is held (zero_unit_hold): its slots are valid in the uses of the others",
            what, unit->name);
    if (pass->phase != PHASE_PASS && pass->phase != PHASE_USE)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": no pass is open; call zero_micro_begin first", what,
                      unit->name);
    if (backward && pass->mode == ZERO_EVAL)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": this pass is ZERO_EVAL, which has no backward", what,
                      unit->name);
    if (backward && !unit->forwarded)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": its forward was skipped in this pass", what, unit->name);
    if (!pass->model->free_order && position < pass->blueprint->policy.cursor)
        return refuse(ZERO_E_ORDER, TURN_IS_OVER, what, unit->name);
    return check_bound(pass, unit, what);
}

struct begun { /* a use */
    bool backward, recomputes;
    bool goes_on;      /* another one inside it has ended, or a micro-batch */
    uint32_t position; /* in the pass; of a recomputed forward: the position of the next backward */
};

static zero_status open_use(struct pass *pass, zero_unit *unit, struct begun begun) {
    const struct use *use = &pass->model->use[unit->index];
    bool starts[USE_REGIONS_MAX];
    for (uint8_t i = 0; i < use->count; i++) {
        const struct region *r = &pass->blueprint->regions[use->region[i]];
        starts[i] = begun.backward && !r->frozen && !r->partial;
    }
    const struct event event = {.kind = begun.goes_on      ? EVENT_GO_ON
                                        : begun.recomputes ? EVENT_RECOMPUTE
                                                           : EVENT_BEGIN,
                                .unit = unit->index,
                                .position = begun.position};
    /* The notes of the last step are set by now, and its chunks were stored during the forward. Values that the host wrote are
     * committed, too, because the updates may have to be repeated from them. */
    if (executor_commits_before(pass->run->executor, &event)) TRY(shadow_commit_now(pass->state));
    TRY(run_event(pass->run, event));
    TRY(run_wait(pass->run, executor_computing));
    for (uint8_t i = 0; i < use->count; i++)
        if (starts[i]) slots_start_gradient(pass, unit, use->region[i]);
    slots_set_held(pass, begun.backward);
    slots_set(pass, unit, begun.backward);
    pass->phase = PHASE_USE;
    unit->forwarded = true;
    pass->unit = unit;
    pass->backward = begun.backward;
    pass->recomputes = begun.recomputes;
    pass->compute_began = clock_now_ns();
    progress_wake(pass->run->progress);
    return ZERO_OK;
}

/* `aside`: another use, or the next micro-batch, begins inside this one, which goes on then. */
static zero_status close_use(struct pass *pass, bool aside) {
    pass->compute_s += (double)(clock_now_ns() - pass->compute_began) * 1e-9;
    pass->phase = PHASE_PASS;
    enum event_kind ends = pass->recomputes ? EVENT_RECOMPUTED : EVENT_END;
    return run_event(pass->run,
                     (struct event){.kind = aside ? EVENT_STEP_ASIDE : ends, .unit = pass->unit->index});
}

/* A use begins inside this one. */
static zero_status step_aside(struct pass *pass) {
    pass->outer[pass->nested++] = (struct open_use){pass->unit, pass->backward};
    slots_step_aside(pass, pass->unit, pass->backward);
    return close_use(pass, true);
}

static uint32_t position_of(const struct pass *pass, const zero_unit *unit, bool backward) {
    return backward ? 2 * pass->blueprint->policy.uses - 1 - unit->index : unit->index;
}

static zero_status go_on(struct pass *pass) {
    struct open_use use = pass->outer[--pass->nested];
    struct begun begun = {
        .backward = use.backward, .goes_on = true, .position = position_of(pass, use.unit, use.backward)};
    return open_use(pass, use.unit, begun);
}

static zero_status begin(struct pass *pass, zero_unit *unit, struct begun begun) {
    TRY(pass->phase == PHASE_USE ? step_aside(pass) : ZERO_OK);
    TRY(open_use(pass, unit, begun));
    pass->backwards += begun.backward;
    pass->made++;
    pass->use_micro = 0;
    return ZERO_OK;
}

/* Only held units follow, and host programs do not begin those. */
static bool made_last_use(const struct pass *pass) {
    const struct policy *p = &pass->blueprint->policy;
    uint32_t q = p->cursor;
    while (q < p->positions && pass->model->unit[q < p->uses ? q : 2 * p->uses - 1 - q]->held) q++;
    return !p->free_order && q == p->positions;
}

/* An evaluation may have fewer. */
static zero_status check_micros(const struct pass *pass, const zero_unit *unit, const char *what) {
    uint32_t done = pass->use_micro + 1, all = policy_use_micros(&pass->blueprint->policy);
    if (pass->mode == ZERO_EVAL || done == all) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s of \"%s\": %" PRIu32 " of %" PRIu32
                  " micro-steps are done (zero_optimization.micro_order \"vertical\"): call "
                  "zero_unit_next_micro before each of the others, or set the key to \"horizontal\"",
                  what, unit->name, done, all);
}

zero_status pass_end(struct pass *pass, zero_unit *unit, bool backward) {
    const char *what = backward ? "zero_backward_end" : "zero_forward_end";
    TRY(pass_check(pass, what));
    if (pass->phase != PHASE_USE || pass->unit != unit || pass->backward != backward)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": its begin has not been called, or it has ended", what,
                      unit->name);
    TRY(check_micros(pass, unit, what));
    slots_clear(pass, unit, backward);
    zero_status status = close_use(pass, false);
    if (!status && pass->nested) return go_on(pass);
    if (!status && made_last_use(pass)) slots_clear_held(pass);
    bool moved;
    if (!status) status = RUN_EVENT(pass->run, executor_poll(pass->run->executor, &moved));
    progress_wake(pass->run->progress); /* the host may do anything before its next call */
    return status;
}

static zero_status check_next_micro(const struct pass *pass, const zero_unit *unit) {
    static const char what[] = "zero_unit_next_micro";
    TRY(pass_check(pass, what));
    if (pass->phase != PHASE_USE || pass->unit != unit)
        return refuse(ZERO_E_ORDER, "%s of \"%s\": call it between begin and end of the unit", what,
                      unit->name);
    uint32_t all = policy_use_micros(&pass->blueprint->policy);
    if (pass->use_micro + 1 < all) return ZERO_OK;
    if (all == 1)
        return refuse(ZERO_E_ORDER,
                      "%s of \"%s\": a use has one micro-step, and each has a pass of its own: "
                      "zero_engine_use_micros says how many a use has (zero_optimization.micro_order)",
                      what, unit->name);
    return refuse(ZERO_E_ORDER, "%s of \"%s\": all %" PRIu32 " micro-steps are done; end the use", what,
                  unit->name, all);
}

zero_status pass_next_micro(struct pass *pass, zero_unit *unit) {
    TRY(check_next_micro(pass, unit));
    struct begun begun = {.backward = pass->backward, .recomputes = pass->recomputes, .goes_on = true};
    begun.position = begun.recomputes ? 2 * pass->blueprint->policy.uses + unit->index
                                      : position_of(pass, unit, begun.backward);
    slots_clear(pass, unit, pass->backward);
    zero_status status = close_use(pass, true);
    if (!status) status = open_use(pass, unit, begun);
    if (!status) pass->use_micro++;
    return status;
}

static uint32_t backward_position(const struct pass *pass, const zero_unit *unit) {
    return position_of(pass, unit, true);
}

/* ---- forwards inside the backward ---- */

static bool in_backward(const struct pass *pass) {
    return pass->phase == PHASE_PASS && pass->mode == ZERO_TRAIN &&
           pass->blueprint->policy.cursor >= pass->blueprint->policy.uses;
}

/* The next unit from `index` on, or before it, that this pass has used. */
static zero_unit *forwarded_from(const struct pass *pass, uint32_t index, int step) {
    while (!pass->model->unit[index]->forwarded) index += (uint32_t)step;
    return pass->model->unit[index];
}

/* True if both units are in one segment, and no backward of the segment has begun: this pass has not used any unit of
 * the segment after `last`. */
static bool share_segment(const struct pass *pass, const zero_unit *unit, const zero_unit *last) {
    bool share = unit->segment_last == last->segment_last && unit->index <= last->index;
    for (uint32_t i = last->index + 1; i <= last->segment_last; i++)
        share &= !pass->model->unit[i]->forwarded;
    return share;
}

/* `last`: the unit whose backward comes next. */
static zero_status check_segment(const struct pass *pass, const zero_unit *unit, const zero_unit *last) {
    if (unit != last && !share_segment(pass, unit, last))
        return refuse(ZERO_E_ORDER,
                      "zero_forward_begin of \"%s\": a forward before the backward of \"%s\" recomputes, but "
                      "the two were not declared as one segment: call zero_engine_add_segment before commit",
                      unit->name, last->name);
    if (pass->recomputed && unit != last)
        return refuse(ZERO_E_ORDER,
                      "zero_forward_begin of \"%s\": unit \"%s\" has been recomputed and stays gathered for "
                      "its backward, which comes next: recompute a segment once, its last unit last",
                      unit->name, last->name);
    if (pass->recompute_next && pass->recompute_next != unit)
        return refuse(ZERO_E_ORDER,
                      "zero_forward_begin of \"%s\": the recomputation expects unit \"%s\" next", unit->name,
                      pass->recompute_next->name);
    return ZERO_OK;
}

/* Stages that gather nothing also require this order, so that a program that runs at one stage runs at all. */
static zero_status recompute_begin(struct pass *pass, zero_unit *unit) {
    TRY(check_begin(pass, unit, "zero_forward_begin", false, backward_position(pass, unit)));
    if (!unit->forwarded && pass->backwards == pass->made_before)
        return refuse(ZERO_E_ORDER, TURN_IS_OVER, "zero_forward_begin", unit->name);
    if (!unit->forwarded)
        return refuse(ZERO_E_ORDER, "zero_forward_begin of \"%s\": its forward was skipped in this pass",
                      unit->name);
    const zero_unit *last =
        forwarded_from(pass, 2 * pass->blueprint->policy.uses - 1 - pass->blueprint->policy.cursor, -1);
    zero_status status = check_segment(pass, unit, last);
    /* As planned, also where this pass skips the segment's last units. */
    uint32_t next = backward_position(pass, pass->model->unit[last->segment_last]);
    if (next < pass->blueprint->policy.cursor) next = backward_position(pass, last);
    if (!status) status = begin(pass, unit, (struct begun){.recomputes = true, .position = next});
    if (status) return status;
    pass->recomputed = unit == last;
    pass->recompute_next = pass->recomputed ? NULL : forwarded_from(pass, unit->index + 1, 1);
    return ZERO_OK;
}

zero_status pass_forward_begin(struct pass *pass, zero_unit *unit) {
    if (in_backward(pass)) return recompute_begin(pass, unit);
    zero_status status = check_begin(pass, unit, "zero_forward_begin", false, unit->index);
    return status ? status : begin(pass, unit, (struct begun){.position = unit->index});
}

/* The parameter of `unit` whose spans the host overwrites, and which are those of a parameter of `other`, too. */
static const struct model_param *overwritten(const struct model *m, const zero_unit *unit,
                                             const zero_unit *other) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        const struct model_param *p = &m->param[i];
        if (!p->spans || p->flags & (ZERO_ADDS_GRAD | ZERO_FROZEN)) continue;
        for (uint32_t k = other->first_param; k < other->first_param + other->params; k++) {
            const struct model_param *q = &m->param[k];
            if (q->owner == p->owner && q->spans && q->spans->grad == p->spans->grad) return p;
        }
    }
    return NULL;
}

/* The gradient that an open backward has written would be lost, and the engine cannot know whether it has written
 * yet. */
static zero_status check_overwriting(const struct pass *pass, const zero_unit *unit) {
    for (uint32_t i = pass->phase == PHASE_USE ? pass->nested + 1 : 0; i-- > 0;) {
        struct open_use use =
            i == pass->nested ? (struct open_use){pass->unit, pass->backward} : pass->outer[i];
        const struct model_param *p = use.backward ? overwritten(pass->model, unit, use.unit) : NULL;
        if (p)
            return refuse(
                ZERO_E_ORDER,
                "zero_backward_begin of \"%s\": the backward of \"%s\" is open, and this one would overwrite "
                "its gradient in the spans of \"%s\": add to them (ZERO_ADDS_GRAD), or use slots",
                unit->name, use.unit->name, p->name);
    }
    return ZERO_OK;
}

zero_status pass_backward_begin(struct pass *pass, zero_unit *unit) {
    uint32_t position = backward_position(pass, unit);
    TRY(check_begin(pass, unit, "zero_backward_begin", true, position));
    TRY(check_overwriting(pass, unit));
    if (pass->recompute_next)
        return refuse(ZERO_E_ORDER,
                      "zero_backward_begin of \"%s\": the recomputation expects unit \"%s\" next", unit->name,
                      pass->recompute_next->name);
    zero_status status = begin(pass, unit, (struct begun){.backward = true, .position = position});
    if (!status) pass->recomputed = false;
    return status;
}

/* ---- gradients from memory of the host's own ---- */

struct given {
    const struct pass *pass;
    const struct model_param *param; /* the first */
    const void *const *gradients;
};

/* A frozen parameter takes nothing, and neither does one whose gradient is in spans. */
static struct gradient_take_argument given_gradient(const void *user, uint32_t i) {
    const struct given *g = user;
    const struct model_param *p = &g->param[i];
    const struct region *r = &g->pass->blueprint->regions[p->region];
    bool none = r->frozen || p->spans || r->grad_given;
    return (struct gradient_take_argument){
        .sum = none ? NULL : slots_gradient(g->pass, p),
        .gradient = g->gradients[i],
        .count = none ? 0 : p->count,
        .dtype = slots_dtype(g->pass, p),
        .add = g->pass->model->param[p->owner].written,
    };
}

/* Allowed in a backward of the parameter's unit; if that unit is held, in the backward of any unit. */
static zero_status check_giving(const struct pass *pass, const struct zero_unit *unit, const char *what) {
    TRY(pass_check(pass, what));
    if (pass->phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "%s: call zero_engine_commit first", what);
    if (pass->phase == PHASE_USE && (pass->unit == unit || unit->held) && pass->backward) return ZERO_OK;
    return refuse(ZERO_E_ORDER, "%s: call it between zero_backward_begin and _end of %s%s%s", what,
                  unit->held ? "a unit: \"" : "\"", unit->name, unit->held ? "\" is held" : "\"");
}

/* The reduction of a region may read it where it is. */
static void note_given(const struct pass *pass, const struct model_param *p, const void *gradient) {
    if (pass->blueprint->regions[p->region].grad_given)
        lent_give(&pass->model->region[p->region], p->offset, gradient);
}

static zero_status check_span(const struct model_param *p, const void *gradient, const char *what) {
    if (!p->spans || !gradient || p->flags & ZERO_FROZEN) return ZERO_OK;
    return refuse(ZERO_E_ARGUMENT,
                  "%s: parameter \"%s\" has spans, and its gradient is taken from there: write it there",
                  what, p->name);
}

zero_status pass_give_gradient(struct pass *pass, const struct model_param *p, const void *gradient,
                               const char *what) {
    TRY(check_giving(pass, pass->model->unit[p->unit], what));
    TRY(check_span(p, gradient, what));
    if (pass->blueprint->regions[p->region].frozen || !gradient)
        return refuse(ZERO_E_ARGUMENT, "%s: parameter \"%s\" is frozen, or grad is NULL", what, p->name);
    note_given(pass, p, gradient);
    struct given given = {pass, p, &gradient};
    host_stream_take_gradients(pass->run, given_gradient, &given, 1, pass->threads);
    return ZERO_OK;
}

zero_status pass_give_gradients(struct pass *pass, const struct zero_unit *unit, const void *const *gradients,
                                const char *what) {
    if (!gradients)
        return refuse(ZERO_E_ARGUMENT,
                      "%s: grads is NULL: give one address for each of the %" PRIu32 " parameters of \"%s\"",
                      what, unit->params, unit->name);
    const struct model_param *first = &pass->model->param[unit->first_param];
    TRY(check_giving(pass, unit, what));
    for (uint32_t i = 0; i < unit->params; i++) TRY(check_span(&first[i], gradients[i], what));
    for (uint32_t i = 0; i < unit->params; i++) note_given(pass, &first[i], gradients[i]);
    struct given given = {pass, first, gradients};
    host_stream_take_gradients(pass->run, given_gradient, &given, unit->params, pass->threads);
    return ZERO_OK;
}
