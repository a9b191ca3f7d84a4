#include "engine/settings.h"

#include <inttypes.h>
#include <math.h>

_Static_assert((int)LR_GROUPS_MAX == (int)GROUP_MAX && (int)ZERO_GROUPS_MAX == (int)GROUP_MAX,
               "groups are numbered alike");

static bool has_betas(const zero_engine *e) { return e->optimizer->defaults.beta1 > 0; }

zero_status settings_open(zero_engine *e, struct zero_error *error) {
    enum lr_schedule_kind kind = e->config.schedule_kind;
    settings_restart(e);
    if (kind == LR_NONE) return ZERO_OK;
    if ((kind == LR_WARMUP_DECAY || kind == LR_WARMUP_COSINE) && !e->schedule.total_num_steps)
        return error_set(
            error, ZERO_E_CONFIG,
            "scheduler.params.total_num_steps: \"auto\" is the number of steps that the program trains, "
            "and it gave none (zero_runtime.total_steps): write a number");
    if (kind == LR_ONE_CYCLE && e->config.schedule.cycle_momentum && !has_betas(e) && !e->rank)
        log_line(&e->log, ZERO_LOG_WARN,
                 "scheduler.params.cycle_momentum: %s has no betas, so there is no momentum to cycle, as in "
                 "DeepSpeed",
                 e->optimizer->title);
    if (!e->rank) log_line(&e->log, ZERO_LOG_INFO, "learning rates by %s", lr_schedules[kind]->name);
    return ZERO_OK;
}

static struct lr_setting given(const zero_engine *e, uint32_t group) {
    const struct optimizer_params *p = &e->params[group];
    return (struct lr_setting){p->lr, p->beta1, p->beta2};
}

void settings_next(const zero_engine *e, struct lr_setting out[GROUP_MAX]) {
    for (uint32_t g = 0; g < e->groups; g++) {
        out[g] = given(e, g);
        if (!e->schedule_fn) {
            out[g] = lr_schedule_at(e->config.schedule_kind, &e->schedule, g, e->steps, out[g]);
            continue;
        }
        zero_setting setting = {out[g].lr, out[g].beta1, out[g].beta2};
        e->schedule_fn(e->schedule_user, e->steps, (int)g, &setting);
        out[g] = (struct lr_setting){setting.lr, setting.beta1, setting.beta2};
    }
}

static bool usable(const struct lr_setting *s, bool betas) {
    bool lr = s->lr >= 0 && !isinf(s->lr);
    return lr && (!betas || (s->beta1 >= 0 && s->beta1 < 1 && s->beta2 >= 0 && s->beta2 < 1));
}

zero_status settings_check(zero_engine *e, const struct lr_setting *setting) {
    for (uint32_t g = 0; g < e->groups; g++) {
        if (usable(&setting[g], has_betas(e))) continue;
        error_set(&e->error, ZERO_E_ARGUMENT,
                  "step %" PRIu64 ": the schedule gives group %" PRIu32
                  " lr %g and betas %g, %g: lr must be finite and at least 0, betas at least 0 and below 1",
                  e->steps + 1, g, setting[g].lr, setting[g].beta1, setting[g].beta2);
        return engine_check(e); /* all ranks come to this by themselves: nobody need be told */
    }
    return ZERO_OK;
}

void settings_scalars(const zero_engine *e, const struct lr_setting *setting,
                      struct optimizer_scalars out[SCALARS_MAX]) {
    for (uint32_t g = 0; g < e->groups; g++) {
        struct optimizer_params p = e->params[g];
        p.lr = setting[g].lr, p.beta1 = setting[g].beta1, p.beta2 = setting[g].beta2;
        optimizer_prepare(e->optimizer, &p, e->steps, &out[model_scalars(g, false)]);
        p.weight_decay = 0;
        optimizer_prepare(e->optimizer, &p, e->steps, &out[model_scalars(g, true)]);
    }
}

int64_t settings_iteration(const zero_engine *e) {
    return e->schedule.last_batch_iteration + (int64_t)e->steps;
}

void settings_resume(zero_engine *e, int64_t iteration) {
    e->schedule.last_batch_iteration = iteration - (int64_t)e->steps;
}

void settings_restart(zero_engine *e) {
    e->schedule = e->config.schedule;
    e->schedule.cycle_momentum &= has_betas(e);
    if (e->config.schedule_kind == LR_NONE) e->schedule.last_batch_iteration = -1;
}

zero_status zero_engine_set_lr(zero_engine *e, int group, double lr) {
    if (!(lr >= 0) || isinf(lr))
        return refuse(ZERO_E_ARGUMENT, "zero_engine_set_lr: lr %g is not a finite number >= 0", lr);
    if (group < 0 || (uint32_t)group >= e->groups)
        return refuse(ZERO_E_ARGUMENT,
                      "zero_engine_set_lr: there is no group %d; there are %" PRIu32 ", from 0", group,
                      e->groups);
    if (e->schedule_fn || e->config.schedule_kind != LR_NONE)
        return refuse(ZERO_E_ORDER, "zero_engine_set_lr: %s sets it: %s",
                      e->schedule_fn ? "the function of zero_engine_set_schedule"
                                     : lr_schedules[e->config.schedule_kind]->name,
                      e->schedule_fn ? "let it give the lr" : "remove the scheduler block");
    e->params[group].lr = lr;
    return ZERO_OK;
}

zero_status zero_engine_set_schedule(zero_engine *e, zero_schedule_fn schedule, void *user) {
    e->schedule_fn = schedule;
    e->schedule_user = user;
    return ZERO_OK;
}
