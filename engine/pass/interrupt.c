/* Passes that do not go from begin to end: a pass that is cancelled, and a training pass that an evaluation interrupts between its
 * forward and its backward. */
#include <inttypes.h>

#include "engine/pass/pass.h"
#include "engine/pass/slots.h"
#include "engine/ranks/rank_agreement.h"

/* ---- an evaluation between a forward and its backward ---- */

bool pass_awaits_backward(const struct pass *pass) {
    const struct policy *policy = &pass->blueprint->policy;
    bool forward_begun = pass->phase == PHASE_PASS && pass->mode == ZERO_TRAIN && policy->cursor > 0;
    return pass->suspended || (forward_begun && policy->cursor <= policy->uses);
}

void pass_suspend(struct pass *pass) {
    for (uint32_t i = 0; i < pass->model->units && !pass->suspended; i++)
        pass->model->unit[i]->trained = pass->model->unit[i]->forwarded;
    pass->suspended = true;
}

/* The training pass is again where its forward ended. */
static void take_up(struct pass *pass) {
    for (uint32_t i = 0; i < pass->model->units; i++)
        pass->model->unit[i]->forwarded = pass->model->unit[i]->trained;
    pass->suspended = false;
    pass->recompute_next = NULL;
    pass->mode = ZERO_TRAIN;
    pass->phase = PHASE_PASS;
}

zero_status pass_resume(struct pass *pass) {
    zero_status status = pass_check_outside(pass, "zero_micro_resume");
    if (status) return status;
    if (!pass->suspended)
        return refuse(ZERO_E_ORDER,
                      "zero_micro_resume: no evaluation has interrupted a training pass; call it after a "
                      "zero_micro_begin(ZERO_EVAL) between a forward and its backward");
    pass->run->moves.pass.event = PASS_RESUMES;
    pass->run->moves.pass.evaluating = false;
    pass->run->moves.pass.last = pass->micro == pass->blueprint->policy.micro_steps;
    status = run_moves(pass->run, MOVE_PASS, MOVE_PASS, NULL, NULL);
    if (!status) take_up(pass);
    return status;
}

/* ---- cancelling ---- */

/* The host's time with the unit is over; what it wrote does not count. */
static zero_status abandon_use(struct pass *pass) {
    if (pass->phase != PHASE_USE) return ZERO_OK;
    while (pass->nested) slots_clear(pass, pass->outer[--pass->nested].unit, false);
    slots_clear(pass, pass->unit, false);
    pass->phase = PHASE_PASS;
    return run_moves(pass->run, MOVE_END, MOVE_END, NULL, NULL);
}

/* All but the position must be equal on all ranks. */
static uint64_t kind_of(const struct pass *pass) {
    return (uint64_t)pass->micro << 2 | (uint64_t)pass->suspended << 1 | (pass->mode == ZERO_EVAL);
}

static zero_status diverged(struct pass *pass, uint32_t rank, const char *how) {
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_DIVERGED,
              "zero_micro_cancel: rank %" PRIu32 " is in another %s than rank %" PRIu32
              ", so the pass cannot be dropped on all ranks alike: let all ranks cancel in the same pass",
              rank, how, pass->run->ranks->rank);
    return ranks_fail(pass->run->ranks, &error);
}

/* In free order a rank cannot know which uses it lacks. */
static uint64_t place_of(const struct pass *pass) {
    return pass->model->free_order ? pass->made : pass->blueprint->policy.cursor;
}

/* How far the foremost rank has come. */
static zero_status agree_position(struct pass *pass, uint32_t *out) {
    const struct rank_report *all;
    const struct zero_error none = {.rank = -1};
    uint64_t word[2] = {place_of(pass), kind_of(pass)};
    bool must_be_equal = pass->recomputed || pass->model->free_order;
    *out = (uint32_t)word[0];
    zero_status status = ranks_agree(pass->run->ranks, &none, word, "zero_micro_cancel", &all);
    for (uint32_t r = 0; r < pass->run->ranks->size && !status; r++) {
        if (all[r].word[1] != word[1]) return diverged(pass, r, "pass");
        if (all[r].word[0] != word[0] && must_be_equal) return diverged(pass, r, "place of its pass");
        if (all[r].word[0] > *out) *out = (uint32_t)all[r].word[0];
    }
    return status;
}

/* No host begins a held unit. */
static bool is_skipped(const struct pass *pass, uint32_t position) {
    uint32_t uses = pass->blueprint->policy.uses;
    return pass->model->unit[position < uses ? position : 2 * uses - 1 - position]->held;
}

/* This rank gathers and reduces what the others have: the uses up to `position`, without the host. */
static zero_status catch_up(struct pass *pass, uint32_t position) {
    zero_status status = ZERO_OK;
    if (pass->model->free_order) return ZERO_OK;
    pass->run->moves.use.recomputes = false;
    for (uint32_t q = pass->blueprint->policy.cursor; q < position && !status; q++) {
        if (is_skipped(pass, q)) continue;
        pass->run->moves.use.position = q;
        status = run_moves(pass->run, MOVE_BEGIN, MOVE_END, NULL, NULL);
    }
    return status;
}

/* What is left is a pass that has not begun; after a backward: a step that has not. */
static void forget(struct pass *pass, bool step) {
    bool trains = pass->mode == ZERO_TRAIN;
    if (step) pass->micro = 0, pass->backwards = 0;
    if (trains && !step) pass->micro--;
    slots_clear_held(pass);
    pass->recompute_next = NULL;
    pass->phase = PHASE_READY;
}

static zero_status check_cancel(const struct pass *pass) {
    zero_status status = ranks_check(pass->run->ranks);
    if (status) return status;
    if (pass->phase == PHASE_USE || pass->phase == PHASE_PASS || pass->suspended) return ZERO_OK;
    return refuse(ZERO_E_ORDER, "zero_micro_cancel: no pass is open, so there is nothing to cancel");
}

zero_status pass_cancel(struct pass *pass) {
    uint32_t position = 0;
    zero_status status = check_cancel(pass);
    /* The evaluation was cancelled before: now it is the training pass. */
    if (!status && pass->phase == PHASE_READY) take_up(pass);
    if (!status) status = abandon_use(pass);
    if (!status) status = agree_position(pass, &position);
    if (!status) status = catch_up(pass, position);
    if (status) return status;
    bool backward = pass->model->free_order ? pass->backwards > pass->made_before
                                            : position > pass->blueprint->policy.uses;
    bool step = pass->mode == ZERO_TRAIN && backward;
    pass->run->moves.pass.event = step ? PASS_STEP_CANCELLED : PASS_CANCELLED;
    status = run_moves(pass->run, MOVE_PASS, MOVE_PASS, NULL, NULL);
    if (!status) forget(pass, step);
    return status;
}
