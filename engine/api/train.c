/* The calls of the training loop: passes, uses and the step. */
#include <inttypes.h>

#include "engine/api/engine.h"
#include "engine/open/device_memory.h"

/* A host that reads its slots as floats would compute with two weights in each. */
static zero_status check_types(const zero_engine *e) {
    const char *type = e->config.compute_dtype == DTYPE_BF16 ? "bf16" : "fp16";
    bool narrow = false;
    if (e->config.compute_dtype == DTYPE_F32 || e->typed) return ZERO_OK;
    for (uint32_t i = 0; i < e->model.params; i++) narrow |= !(e->model.param[i].flags & ZERO_KEEP_FP32);
    if (!narrow) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "zero_micro_begin: %s.enabled makes slots and spans %s, and this program has not asked for "
                  "their type: call zero_engine_dtype or zero_param_dtype and compute in the type that it "
                  "returns, or remove %s from the configuration",
                  type, type, type);
}

zero_status zero_micro_begin(zero_engine *e, zero_mode mode) {
    TRY(engine_check(e, "zero_micro_begin"));
    if (e->pass.phase == PHASE_DECLARING || !e->state.filled)
        return refuse(ZERO_E_ORDER, "zero_micro_begin: first zero_engine_commit, then zero_engine_fill");
    zero_status status = check_types(e);
    if (!status) status = engine_check_written(e, "zero_micro_begin");
    if (!status && mode == ZERO_TRAIN) status = engine_check_own_weights(e, "zero_micro_begin");
    bool last = mode == ZERO_TRAIN && policy_last(&e->blueprint.policy, e->pass.micro + 1);
    if (!status && last) status = step_prepare(&e->step);
    return status ? status : pass_begin(&e->pass, mode);
}

zero_status zero_micro_resume(zero_engine *e) {
    zero_status status = engine_check(e, "zero_micro_resume");
    return status ? status : pass_resume(&e->pass);
}

zero_status zero_micro_cancel(zero_engine *e) {
    zero_status status = engine_check(e, "zero_micro_cancel");
    return status ? status : pass_cancel(&e->pass);
}

zero_status zero_forward_begin(zero_unit *unit) {
    return unit_given(unit, "zero_forward_begin") ? pass_forward_begin(&unit->engine->pass, unit)
                                                  : ZERO_E_ARGUMENT;
}
zero_status zero_forward_end(zero_unit *unit) {
    return unit_given(unit, "zero_forward_end") ? pass_end(&unit->engine->pass, unit, false)
                                                : ZERO_E_ARGUMENT;
}
zero_status zero_backward_begin(zero_unit *unit) {
    return unit_given(unit, "zero_backward_begin") ? pass_backward_begin(&unit->engine->pass, unit)
                                                   : ZERO_E_ARGUMENT;
}
zero_status zero_backward_end(zero_unit *unit) {
    return unit_given(unit, "zero_backward_end") ? pass_end(&unit->engine->pass, unit, true)
                                                 : ZERO_E_ARGUMENT;
}

zero_status zero_unit_next_micro(zero_unit *unit) {
    return unit_given(unit, "zero_unit_next_micro") ? pass_next_micro(&unit->engine->pass, unit)
                                                    : ZERO_E_ARGUMENT;
}

static zero_status check_step(zero_engine *e, const zero_step_info *out) {
    TRY(engine_check(e, "zero_engine_step"));
    if (out) TRY(sized_check(out->struct_size, "zero_step_info"));
    TRY(pass_check_outside(&e->pass, "zero_engine_step"));
    const struct pass *pass = &e->pass;
    const struct policy *policy = &e->blueprint.policy;
    if (policy->by_program && !pass->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_step: no micro-step is done: do one at least");
    if (!policy_suffices(policy, pass->micro))
        return refuse(ZERO_E_ORDER,
                      "zero_engine_step: %" PRIu32 " of %" PRIu32
                      " micro-steps are done (gradient_accumulation_steps); do the others first",
                      pass->micro * policy_use_micros(policy), policy->micro_steps);
    if (!policy->refreshes) return ZERO_OK; /* a backward may be left out */
    if (pass->suspended)
        return refuse(ZERO_E_ORDER, "zero_engine_step: an evaluation has interrupted the last training pass: "
                                    "call zero_micro_resume, and do its backward");
    bool lacks_gradient = pass_awaits_backward(pass) || !pass->backwards;
    bool lacks_updates = policy->update_in_backward && pass->backwards == pass->made_before;
    if (lacks_gradient || lacks_updates)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_step: no backward has run in the last micro-step, %s: call "
                      "zero_backward_begin and _end of the units, or zero_micro_cancel",
                      policy->update_in_backward
                          ? "and the backward updates the weights (zero_optimization.update_in_backward)"
                          : "so it has no gradient");
    return ZERO_OK;
}

/* The progress thread uses the device, too. */
static void report_device_memory(zero_engine *e) {
    fair_lock_take(&e->ranks.lock);
    device_memory_report(&e->host.device, e->run.device, e->blueprint.plan.tier_bytes[TIER_DEVICE],
                         &e->ranks.log);
    fair_lock_give(&e->ranks.lock);
}

zero_status zero_engine_step(zero_engine *e, zero_step_info *out) {
    TRY(check_step(e, out));
    TRY(step_run(&e->step));
    e->pass.micro = 0;
    e->pass.backwards = 0;
    e->pass.suspended = e->pass.completed = false;
    e->pass.phase = PHASE_READY;
    e->pass.settled = false;
    if (!e->stepped) report_device_memory(e);
    e->stepped = true;
    zero_status status = step_check_replicas(&e->step);
    if (!status) status = trace_step(e->trace);
    if (!status && out) sized_fill(out, out->struct_size, &e->step.info, sizeof e->step.info);
    return status;
}
