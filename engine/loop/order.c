/* Which calls of the host are allowed in which phase. */
#include "engine/loop/pass.h"

bool pass_awaits_backward(const struct pass *pass) {
    const struct policy *policy = &pass->blueprint->policy;
    bool trains = pass->phase == PHASE_PASS && pass->mode == ZERO_TRAIN;
    bool between = policy->free_order ? pass->made && pass->backwards == pass->made_before
                                      : policy->cursor > 0 && policy->cursor <= policy->uses;
    return pass->suspended || (trains && between);
}

/* If no parameter is trained, nothing is lost. */
zero_status pass_check_forward(const struct pass *pass, const char *what) {
    if (!pass_awaits_backward(pass) || !pass->blueprint->policy.refreshes) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: a training pass is between its forward and its backward; do the backward first%s, or "
                  "drop the pass with zero_micro_cancel",
                  what, pass->suspended ? " (zero_micro_resume, then the backward)" : "");
}

bool pass_updates(const struct pass *pass) {
    const struct policy *policy = &pass->blueprint->policy;
    return policy->update_in_backward && pass->mode == ZERO_TRAIN && policy_last(policy, pass->micro) &&
           (policy->turned || pass->backwards > pass->made_before);
}

zero_status pass_check(const struct pass *pass, const char *what) {
    zero_status status = ranks_check(pass->run->ranks);
    if (status || pass->phase != PHASE_PARKED) return status;
    return refuse(ZERO_E_ORDER,
                  "%s: the engine is parked, and its memory is given back: call zero_engine_unpark first",
                  what);
}

zero_status pass_check_outside(const struct pass *pass, const char *what) {
    TRY(pass_check(pass, what));
    if (pass->phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "%s: call zero_engine_commit first", what);
    if (pass->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "%s: unit \"%s\" is still in use; end it first", what, pass->unit->name);
    return ZERO_OK;
}

zero_status pass_check_between(const struct pass *pass, const char *what) {
    zero_status status = pass_check_outside(pass, what);
    return status ? status : pass_check_forward(pass, what);
}
