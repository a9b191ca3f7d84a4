#include "tools/plan/loop.h"

struct loop loop_begin(const struct pass *pass, uint32_t forwards, uint32_t micro_steps) {
    return (struct loop){.pass = pass, .forwards = forwards, .micro_steps = micro_steps, .skip_unit = -1};
}

const struct pass_use *loop_use(const struct loop *l) { return &l->pass->use[l->use]; }

void loop_prepare(const struct loop *l, struct host_moves *moves) {
    if (l->next == MOVE_PASS) {
        moves->pass.evaluating = l->evaluating;
        moves->pass.last = l->micro + !l->evaluating == l->micro_steps;
    } else if (l->next == MOVE_BEGIN) {
        moves->use.recomputes = loop_use(l)->recomputes;
        moves->use.unit = loop_use(l)->unit;
        moves->use.position = loop_use(l)->position;
    }
}

static bool skips(const struct loop *l) {
    return !l->evaluating && l->micro == 0 && (int32_t)loop_use(l)->unit == l->skip_unit;
}

static void end_pass(struct loop *l) {
    bool evaluated = l->evaluating;
    l->micro += !evaluated;
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
