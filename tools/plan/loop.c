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

void loop_prepare(const struct loop *l, struct host_moves *moves) {
    if (l->next == MOVE_PASS) {
        moves->pass.evaluating = l->evaluating;
        moves->pass.last = is_last(l);
    } else if (l->next == MOVE_BEGIN) {
        const struct pass_use *use = loop_use(l);
        moves->use.aside = l->within > 0;
        moves->use.recomputes = use->recomputes;
        moves->use.unit = use->unit;
        moves->use.position =
            moves->use.aside && use->recomputes ? 2 * l->forwards + use->unit : use->position;
    } else if (l->next == MOVE_END) {
        moves->use.aside = goes_on(l);
    }
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
