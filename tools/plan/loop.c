#include "tools/plan/loop.h"

struct loop loop_begin(const struct pass *pass, const struct policy *policy) {
    return (struct loop){.pass = pass,
                         .forwards = policy->uses,
                         .micro_steps = policy->micro_steps,
                         .use_micros = policy_use_micros(policy),
                         .skip_unit = -1};
}

const struct pass_use *loop_use(const struct loop *l) { return &l->pass->use[l->use]; }

/* An evaluation has one micro-batch. */
static bool goes_on(const struct loop *l) { return !l->evaluating && l->within + 1 < l->use_micros; }

static bool is_last(const struct loop *l) {
    return l->micro + (l->evaluating ? 0 : l->use_micros) == l->micro_steps;
}

static struct event use_event(const struct loop *l, bool begins) {
    static const enum event_kind kinds[2][2] = {{EVENT_END, EVENT_RECOMPUTED},
                                                {EVENT_BEGIN, EVENT_RECOMPUTE}};
    const struct pass_use *use = loop_use(l);
    bool aside = begins ? l->within > 0 : goes_on(l);
    return (struct event){.kind = !aside   ? kinds[begins][use->recomputes]
                                  : begins ? EVENT_GO_ON
                                           : EVENT_STEP_ASIDE,
                          .unit = use->unit,
                          .position = aside && use->recomputes ? 2 * l->forwards + use->unit : use->position};
}

static struct event event_of(const struct loop *l) {
    if (l->next == MOVE_PASS)
        return (struct event){.kind = EVENT_PASS, .evaluating = l->evaluating, .last = is_last(l)};
    if (l->next == MOVE_BEGIN || l->next == MOVE_END) return use_event(l, l->next == MOVE_BEGIN);
    return (struct event){.kind = l->next == MOVE_AGREE ? EVENT_AGREE : EVENT_APPLY};
}

static const struct {
    bool (*ready)(const struct executor *);
    bool emits;
} moves[] = {
    [MOVE_PASS] = {executor_has_room, true},      [MOVE_BEGIN] = {executor_has_room, true},
    [MOVE_COMPUTE] = {executor_computing, false}, [MOVE_END] = {executor_has_room, true},
    [MOVE_AGREE] = {executor_has_room, true},     [MOVE_AGREED] = {executor_agreed, false},
    [MOVE_APPLY] = {executor_has_room, true},     [MOVE_SETTLE] = {executor_settled, false},
};

void loop_prepare(struct loop *l) {
    if (moves[l->next].emits) l->event = event_of(l);
}

bool loop_commits(const struct loop *l, const struct executor *e) {
    return l->next == MOVE_BEGIN ? executor_commits_before(e, &l->event)
                                 : l->next == MOVE_AGREED && executor_commits(e);
}

bool loop_ready(const struct loop *l, const struct executor *e) {
    bool stores = l->next == MOVE_AGREE ? executor_commits(e) : l->next == MOVE_BEGIN && loop_commits(l, e);
    return moves[l->next].ready(e) && (!stores || executor_stored(e));
}

zero_status loop_emit(const struct loop *l, struct executor *e) {
    return moves[l->next].emits ? executor_emit(e, &l->event) : ZERO_OK;
}

static bool skips(const struct loop *l) {
    return !l->evaluating && l->micro == 0 && (int32_t)loop_use(l)->unit == l->skip_unit;
}

static void end_pass(struct loop *l) {
    bool evaluated = l->evaluating;
    l->micro += evaluated ? 0 : l->use_micros;
    l->evaluating = l->evaluates && !evaluated;
    l->next = l->micro == l->micro_steps && !l->evaluating ? MOVE_AGREE : MOVE_PASS;
}

/* Goes to the first use, from `use` on, that is not skipped. */
static void go_to(struct loop *l, uint32_t use) {
    uint32_t uses = l->evaluating ? l->forwards : l->pass->uses;
    l->use = use;
    while (l->use < uses && skips(l)) l->use++;
    l->next = MOVE_BEGIN;
    if (l->use == uses) end_pass(l);
}

void loop_advance(struct loop *l) {
    switch (l->next) {
    case MOVE_PASS:
        go_to(l, 0);
        return;
    case MOVE_END:
        if (goes_on(l)) {
            l->within++;
            l->next = MOVE_BEGIN;
            return;
        }
        l->within = 0;
        go_to(l, l->use + 1);
        return;
    case MOVE_APPLY:
        l->micro = 0;
        l->step++;
        l->evaluating = l->evaluates;
        l->next = MOVE_SETTLE;
        return;
    case MOVE_SETTLE:
        l->next = MOVE_PASS;
        return;
    default:
        l->next++;
    }
}

bool loop_ended(const struct loop *l, uint32_t steps) {
    return l->step == steps && l->next == MOVE_PASS && !l->evaluating;
}
