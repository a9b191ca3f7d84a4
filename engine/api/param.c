/* One parameter of the model, by its handle: addresses, gradients, and elements of its weights and states. */
#include <inttypes.h>

#include "engine/api/engine.h"
#include "engine/loop/slots.h"
#include "engine/state/get_put.h"
#include "engine/state/shadow.h"

/* ---- handles ---- */

zero_handle *zero_unit_param(const zero_unit *unit, uint32_t index) {
    if (!unit_given(unit, "zero_unit_param")) return NULL;
    if (index < unit->params) return unit->engine->model.param[unit->first_param + index].handle;
    refuse(ZERO_E_ARGUMENT,
           "zero_unit_param: unit \"%s\" has %" PRIu32 " parameters, and no parameter %" PRIu32, unit->name,
           unit->params, index);
    return NULL;
}

zero_handle *zero_engine_param(const zero_engine *e, const char *name) {
    if (!engine_given(e, "zero_engine_param")) return NULL;
    failure_call("zero_engine_param", NULL);
    const struct model_param *p = name ? model_find(&e->model, name) : NULL;
    if (p) return p->handle;
    refuse(ZERO_E_ARGUMENT, "zero_engine_param: there is no parameter \"%s\"", name ? name : "NULL");
    return NULL;
}

/* NULL: the handle is NULL, and the call is refused. A function that is given a handle begins with it. */
static const struct model_param *param_of(const zero_handle *param, const char *what) {
    failure_call(what, NULL);
    if (!param) {
        refuse(ZERO_E_ARGUMENT,
               "%s: the parameter is NULL: give a handle that zero_unit_param or zero_engine_param returned",
               what);
        return NULL;
    }
    const struct model *m = &param->engine->model;
    const struct model_param *p = &m->param[param->index];
    failure_call(what, m->unit[p->unit]->name);
    return p;
}

const char *zero_param_name(const zero_handle *param) {
    const struct model_param *p = param_of(param, "zero_param_name");
    return p ? p->name : NULL;
}

uint64_t zero_param_count(const zero_handle *param) {
    const struct model_param *p = param_of(param, "zero_param_count");
    return p ? p->count : 0;
}

zero_dtype zero_param_dtype(const zero_handle *param) {
    const struct model_param *p = param_of(param, "zero_param_dtype");
    if (p) atomic_store_explicit(&param->engine->typed, true, memory_order_relaxed);
    return !p || p->flags & ZERO_KEEP_FP32 ? ZERO_F32 : (zero_dtype)param->engine->config.compute_dtype;
}

zero_status zero_param_addresses(const zero_handle *param, zero_slot *out) {
    const struct model_param *p = param_of(param, "zero_param_addresses");
    if (!p) return ZERO_E_ARGUMENT;
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_param_addresses of \"%s\": out is NULL", p->name);
    if (param->engine->pass.phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_param_addresses: call it after zero_engine_commit");
    TRY(pass_check(&param->engine->pass, "zero_param_addresses"));
    slots_addresses(&param->engine->pass, p, out);
    return ZERO_OK;
}

/* The parameter, or the one that it is tied to, is in memory of the host program. */
static bool has_spans(const struct model *m, const struct model_param *p) {
    return p->span_count || m->param[p->owner].span_count;
}

/* A comparison of addresses is not enough: two regions may be adjacent at one stage, and apart at another. */
int zero_param_adjoins(const zero_handle *param, const zero_handle *before) {
    const struct model_param *p = param_of(param, "zero_param_adjoins"),
                             *q = param_of(before, "zero_param_adjoins");
    if (!p || !q || param->engine != before->engine) return 0;
    const struct model *m = &param->engine->model;
    if (param->engine->pass.phase == PHASE_DECLARING || has_spans(m, p) || has_spans(m, q)) return 0;
    return p->region == q->region && p->offset == q->offset + q->count;
}

/* ---- gradients from memory of the host's own ---- */

zero_status zero_param_give_grad(zero_handle *param, const void *grad) {
    const struct model_param *p = param_of(param, "zero_param_give_grad");
    return p ? pass_give_gradient(&param->engine->pass, p, grad, "zero_param_give_grad") : ZERO_E_ARGUMENT;
}

zero_status zero_unit_give_grads(zero_unit *unit, const void *const *grads) {
    if (!unit_given(unit, "zero_unit_give_grads")) return ZERO_E_ARGUMENT;
    return pass_give_gradients(&unit->engine->pass, unit, grads, "zero_unit_give_grads");
}

int zero_unit_reads_given(const zero_unit *unit) {
    if (!unit_given(unit, "zero_unit_reads_given") || unit->engine->pass.phase == PHASE_DECLARING) return 0;
    const struct model *m = &unit->engine->model;
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (unit->engine->blueprint.regions[m->param[i].region].grad_given) return 1;
    return 0;
}

/* ---- elements of weights and states: collective ---- */

/* Gradients exist before zero_engine_step, everything else always. */
static zero_status check_moment(const zero_engine *e, const char *what, const struct model_param *p,
                                zero_kind kind) {
    if (kind != ZERO_GRAD) return engine_check_updates(e, what);
    if (e->blueprint.policy.update_in_backward && !e->blueprint.policy.repeats)
        return refuse(ZERO_E_ORDER,
                      "%s: the gradient of \"%s\" is used up in its backward "
                      "(zero_optimization.update_in_backward): remove that key to read gradients, or set "
                      "gradient_clipping and nvme.shadow, with which they stay until zero_engine_step",
                      what, p->name);
    if (policy_suffices(&e->blueprint.policy, e->pass.micro) && e->pass.backwards) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: the gradient of \"%s\" is complete only between the last backward of a step "
                  "and zero_engine_step",
                  what, p->name);
}

static zero_status refuse_saving(const char *what) {
    return refuse(ZERO_E_ORDER,
                  "%s: a save in the background is under way: all ranks call zero_engine_save_wait first",
                  what);
}

/* All ranks end a save together, but this call may be made by the ranks of one model rank alone. */
static zero_status check_saving(const zero_engine *e, const char *what) {
    return e->ranks.model_size > 1 && e->state.saving ? refuse_saving(what) : ZERO_OK;
}

static zero_status check_range(zero_engine *e, const char *what, const struct model_param *p, zero_kind kind,
                               const float *memory, uint64_t first, uint64_t count, struct range *out) {
    zero_status status = check_saving(e, what);
    if (!status) status = engine_check_between(e, what);
    if (!status) status = engine_check_filled(e, what);
    if (!status) status = engine_check_written(e, what);
    if (!status) status = range_check(&e->state, what, p, kind, memory, first, count, out);
    return status ? status : check_moment(e, what, p, kind);
}

static zero_status get(zero_engine *e, const char *what, const struct model_param *p, zero_kind kind,
                       float *out, uint64_t first, uint64_t count) {
    struct range range = {0};
    bool gradient = kind == ZERO_GRAD;
    zero_status status = check_range(e, what, p, kind, out, first, count, &range);
    if (!status) status = pass_settle(&e->pass);
    if (!status && gradient) {
        status = run_event(&e->run, (struct event){.kind = EVENT_COMPLETE});
        e->pass.completed = e->blueprint.policy.by_program;
    }
    if (!status) status = run_wait(&e->run, executor_idle);
    if (!status) status = range_get(&e->state, &range, out);
    if (status || !gradient) return status;
    float mean = (float)training_mean(&e->training, e->blueprint.terms.gradient_factor);
    for (uint64_t i = 0; i < count; i++) out[i] *= mean;
    return ZERO_OK;
}

static zero_status check_put(const char *what, zero_kind kind) {
    if (kind != ZERO_GRAD) return ZERO_OK;
    return refuse(ZERO_E_ARGUMENT,
                  "%s: a gradient cannot be put: write it between zero_backward_begin and _end", what);
}

static zero_status put(zero_engine *e, const char *what, const struct model_param *p, zero_kind kind,
                       const float *in, uint64_t first, uint64_t count) {
    struct range range = {0};
    zero_status status = check_put(what, kind);
    if (!status) status = check_range(e, what, p, kind, in, first, count, &range);
    if (!status) status = pass_settle(&e->pass);
    if (!status) status = range_put(&e->state, &range, in);
    if (!status) shadow_written(&e->state);
    return kind == ZERO_PARAM && !status ? run_weights_written(&e->run) : status;
}

static const struct model_param *named(zero_engine *e, const char *what, const char *name) {
    const struct model_param *p = name ? model_find(&e->model, name) : NULL;
    if (!p) refuse(ZERO_E_ARGUMENT, "%s: there is no parameter \"%s\"", what, name ? name : "NULL");
    return p;
}

zero_status zero_engine_get(zero_engine *e, const char *param, zero_kind kind, float *out, uint64_t first,
                            uint64_t count) {
    zero_status status = engine_check(e, "zero_engine_get");
    const struct model_param *p = status ? NULL : named(e, "zero_engine_get", param);
    if (!p) return status ? status : ZERO_E_ARGUMENT;
    return get(e, "zero_engine_get", p, kind, out, first, count);
}

zero_status zero_engine_put(zero_engine *e, const char *param, zero_kind kind, const float *in,
                            uint64_t first, uint64_t count) {
    zero_status status = engine_check(e, "zero_engine_put");
    const struct model_param *p = status ? NULL : named(e, "zero_engine_put", param);
    if (!p) return status ? status : ZERO_E_ARGUMENT;
    return put(e, "zero_engine_put", p, kind, in, first, count);
}

zero_status zero_param_get(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                           uint64_t count) {
    const struct model_param *p = param_of(param, "zero_param_get");
    return p ? get(param->engine, "zero_param_get", p, kind, out, first, count) : ZERO_E_ARGUMENT;
}

zero_status zero_param_put(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                           uint64_t count) {
    const struct model_param *p = param_of(param, "zero_param_put");
    return p ? put(param->engine, "zero_param_put", p, kind, in, first, count) : ZERO_E_ARGUMENT;
}

/* ---- what this rank stores: local ---- */

zero_status zero_param_owned(const zero_handle *param, zero_kind kind, uint64_t *out_first,
                             uint64_t *out_count) {
    const struct model_param *p = param_of(param, "zero_param_owned");
    struct range whole = {0};
    if (!p) return ZERO_E_ARGUMENT;
    if (!out_first || !out_count)
        return refuse(ZERO_E_ARGUMENT, "zero_param_owned of \"%s\": out_first or out_count is NULL", p->name);
    if (param->engine->pass.phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_param_owned: call it after zero_engine_commit");
    TRY(range_check(&param->engine->state, "zero_param_owned", p, kind, NULL, 0, 0, &whole));
    struct range own = range_own(&param->engine->state, p, kind);
    *out_first = own.first - p->offset;
    *out_count = own.count;
    return ZERO_OK;
}

/* Refuses while a save or a step is under way: one rank cannot end it alone. */
static zero_status check_owned(zero_engine *e, const char *what, const struct model_param *p, zero_kind kind,
                               const float *memory, uint64_t first, uint64_t count, struct range *out) {
    if (kind == ZERO_GRAD)
        return refuse(ZERO_E_ARGUMENT, "%s: a gradient cannot be read by one rank alone: call zero_param_get",
                      what);
    TRY(engine_check(e, what));
    TRY(pass_check_between(&e->pass, what));
    TRY(engine_check_own_weights(e, what));
    TRY(engine_check_filled(e, what));
    TRY(range_check(&e->state, what, p, kind, memory, first, count, out));
    TRY(engine_check_updates(e, what));
    if (e->state.saving) return refuse_saving(what);
    if (!e->pass.settled)
        return refuse(ZERO_E_ORDER,
                      "%s: the last step may still be under way: all ranks call zero_engine_flush first",
                      what);
    struct range own = range_own(&e->state, p, kind);
    bool inside = out->first >= own.first && out->first + count <= own.first + own.count;
    if (inside || !count) return ZERO_OK;
    return refuse(ZERO_E_ARGUMENT,
                  "%s: this rank has elements %" PRIu64 " to %" PRIu64 " of \"%s\", not %" PRIu64
                  " to %" PRIu64 ": ask zero_param_owned",
                  what, own.first - p->offset, own.first - p->offset + own.count, p->name, first,
                  first + count);
}

zero_status zero_param_get_owned(const zero_handle *param, zero_kind kind, float *out, uint64_t first,
                                 uint64_t count) {
    const struct model_param *p = param_of(param, "zero_param_get_owned");
    struct range range = {0};
    if (!p) return ZERO_E_ARGUMENT;
    zero_engine *e = param->engine;
    zero_status status = check_owned(e, "zero_param_get_owned", p, kind, out, first, count, &range);
    return status || !count ? status : state_read(&e->state, p->region, kind, range.first, count, out);
}

zero_status zero_param_put_owned(zero_handle *param, zero_kind kind, const float *in, uint64_t first,
                                 uint64_t count) {
    const struct model_param *p = param_of(param, "zero_param_put_owned");
    struct range range = {0};
    if (!p) return ZERO_E_ARGUMENT;
    zero_engine *e = param->engine;
    TRY(check_put("zero_param_put_owned", kind));
    TRY(check_owned(e, "zero_param_put_owned", p, kind, in, first, count, &range));
    e->state.unseen = true;
    return count ? state_write(&e->state, p->region, kind, range.first, count, in) : ZERO_OK;
}

zero_status zero_engine_written(zero_engine *e) {
    TRY(engine_check_steps(e, "zero_engine_written"));
    TRY(engine_check_filled(e, "zero_engine_written"));
    TRY(pass_settle(&e->pass));
    e->state.unseen = false;
    shadow_written(&e->state);
    /* Ranks that wrote nothing drop their prefetched chunks too, because all ranks must emit the same operations. */
    fair_lock_take(&e->ranks.lock);
    executor_refetch(e->run.executor);
    fair_lock_give(&e->ranks.lock);
    return run_weights_written(&e->run);
}
