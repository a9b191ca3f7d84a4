/* Passes that do not go from begin to end: a pass that is cancelled, and a training pass that an evaluation interrupts between its
 * forward and its backward. */
#include <inttypes.h>

#include "engine/loop/pass.h"
#include "engine/loop/slots.h"
#include "engine/ranks/model_ranks.h"
#include "engine/ranks/rank_agreement.h"

/* ---- an evaluation between a forward and its backward ---- */

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
    pass->made = 1; /* a forward, at least */
    pass->recompute_next = NULL;
    pass->recomputed = false;
    pass->mode = ZERO_TRAIN;
    pass->phase = PHASE_PASS;
}

zero_status pass_resume(struct pass *pass) {
    TRY(pass_check_outside(pass, "zero_micro_resume"));
    if (!pass->suspended)
        return refuse(ZERO_E_ORDER,
                      "zero_micro_resume: no evaluation has interrupted a training pass; call it after a "
                      "zero_micro_begin(ZERO_EVAL) between a forward and its backward");
    bool last = policy_last(&pass->blueprint->policy, pass->micro);
    zero_status status = run_event(pass->run, (struct event){.kind = EVENT_RESUME, .last = last});
    if (!status) take_up(pass);
    return status;
}

/* ---- cancelling ---- */

/* Ends the use; gradients that the host wrote in it do not count. */
static zero_status abandon_use(struct pass *pass) {
    if (pass->phase != PHASE_USE) return ZERO_OK;
    while (pass->nested) slots_clear(pass, pass->outer[--pass->nested].unit, false);
    slots_clear(pass, pass->unit, false);
    pass->phase = PHASE_PASS;
    enum event_kind ends = pass->recomputes ? EVENT_RECOMPUTED : EVENT_END;
    return run_event(pass->run, (struct event){.kind = ends, .unit = pass->unit->index});
}

/* The position of the pass after the present use. Ranks that have gathered and reduced the same units have the same
 * position. */
static uint64_t place_of(const struct pass *pass) {
    bool moves = pass->phase == PHASE_USE && !pass->recomputes && !pass->model->free_order;
    return (uint64_t)pass->made << 32 | (pass->blueprint->policy.cursor + moves);
}

/* True if a cancel on this rank drops the whole step: micro-steps that are done, or a training pass whose backward has begun. A training
 * pass that an evaluation has interrupted has not begun its backward. */
static bool drops_step(const struct pass *pass) {
    return pass->phase == PHASE_READY ? !pass->suspended
                                      : pass->mode == ZERO_TRAIN && pass->backwards > pass->made_before;
}

enum { KIND_STEP = 8 };

static uint64_t kind_of(const struct pass *pass) {
    uint64_t within = pass->phase == PHASE_USE ? pass->use_micro : 0;
    return within << 36 | (uint64_t)pass->micro << 4 | (drops_step(pass) ? KIND_STEP : 0) |
           (uint64_t)(pass->phase == PHASE_READY) << 2 | (uint64_t)pass->suspended << 1 |
           (pass->mode == ZERO_EVAL);
}

/* Runs before anything moves, so that a refusal changes nothing. *out_step: some rank drops the whole step, and so all ranks must: the
 * stages of a pipeline begin their backwards at different times. */
static zero_status agree_place(struct pass *pass, bool *out_step) {
    const struct rank_report *all;
    const struct zero_error none = {.rank = -1};
    uint64_t word[2] = {place_of(pass), kind_of(pass)};
    zero_status status = ranks_agree(pass->run->ranks, &none, word, "zero_micro_cancel", &all);
    *out_step = false;
    for (uint32_t r = 0; r < pass->run->ranks->size && !status; r++) {
        uint32_t first = model_ranks_first(pass->run->ranks, r);
        *out_step |= (all[r].word[1] & KIND_STEP) != 0;
        if (all[r].word[0] != all[first].word[0] || all[r].word[1] != all[first].word[1])
            status = refuse(ZERO_E_ORDER,
                            "zero_micro_cancel: rank %" PRIu32
                            " is at another place of its pass than rank %" PRIu32 ", and nothing is "
                            "dropped: let all ranks cancel after the same begin or end",
                            r, first);
    }
    return status;
}

/* Resets the state to that before the pass, or (`step`: after a backward) to that before the step. */
static void forget(struct pass *pass, bool step) {
    bool trains = pass->mode == ZERO_TRAIN;
    if (step) pass->micro = 0, pass->backwards = 0, pass->suspended = pass->completed = false;
    if (trains && !step) pass->micro--; /* of an open pass */
    slots_clear_held(pass);
    pass->recompute_next = NULL;
    pass->phase = PHASE_READY;
}

static zero_status check_cancel(const struct pass *pass) {
    TRY(pass_check(pass, "zero_micro_cancel"));
    if (pass->phase == PHASE_DECLARING || (pass->phase == PHASE_READY && !pass->micro && !pass->suspended))
        return refuse(
            ZERO_E_ORDER,
            "zero_micro_cancel: no pass is open and no micro-step is done, so there is nothing to cancel");
    return pass_updates(pass) ? refuse(ZERO_E_ORDER, PASS_UPDATES, "zero_micro_cancel") : ZERO_OK;
}

zero_status pass_cancel(struct pass *pass) {
    zero_status status = check_cancel(pass);
    bool step = false;
    bool alone = pass->blueprint->policy.eager && pass->mode == ZERO_EVAL && pass->phase != PHASE_READY;
    if (!status && !alone) status = agree_place(pass, &step);
    if (!status) status = abandon_use(pass);
    if (status) return status;
    /* If an evaluation that was cancelled before had interrupted a training pass, this call cancels the training pass. */
    if (pass->phase == PHASE_READY && pass->suspended) take_up(pass);
    status = run_event(pass->run, (struct event){.kind = step ? EVENT_CANCEL_STEP : EVENT_CANCEL_PASS});
    if (!status) forget(pass, step);
    return status;
}
