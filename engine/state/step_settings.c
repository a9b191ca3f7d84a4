#include "engine/state/step_settings.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/hash.h"

_Static_assert((int)LR_GROUPS_MAX == (int)GROUP_MAX && (int)ZERO_GROUPS_MAX == (int)GROUP_MAX,
               "groups are numbered alike");

static bool group_has_betas(const struct training *t, uint32_t group) {
    return training_optimizer(t, group)->defaults.beta1 > 0;
}

static bool has_betas(const struct training *t) {
    return t->optimizer->defaults.beta1 > 0 || (t->groups.other && t->groups.other->defaults.beta1 > 0);
}

/* Finds a setting that no optimizer takes before the first step, where the program says how many steps it trains. Of very many steps
 * it looks at all first ones, then at some, and at the last one. Says which steps at the end train nothing. */
static zero_status check_planned(struct training *t, struct zero_error *error) {
    enum { ALL = 1000000 };
    struct lr_setting setting[GROUP_MAX];
    uint64_t planned = t->config->planned_steps, still = 0, stride = 1 + planned / ALL;
    zero_status status = ZERO_OK;
    for (uint64_t step = 0; step < planned && !status; step += step < ALL ? 1 : stride) {
        bool moves = false;
        t->steps = step;
        settings_next(t, setting);
        status = settings_check(t, setting, error);
        for (uint32_t g = 0; g < t->groups.count; g++) moves |= setting[g].lr > 0;
        still = moves ? step + 1 : still;
    }
    t->steps = planned ? planned - 1 : 0;
    settings_next(t, setting);
    if (!status && planned) status = settings_check(t, setting, error);
    t->steps = 0;
    if (!status && !t->rank && planned > still && setting[0].lr == 0 && still + 1 < planned)
        log_line(t->log, ZERO_LOG_WARN,
                 "%s: the learning rate is 0 from step %" PRIu64 " of %" PRIu64
                 " on, and those steps train nothing: make the schedule longer",
                 t->config->schedule_row->name, still + 1, planned);
    return status;
}

zero_status settings_open(struct training *t, struct zero_error *error) {
    const struct lr_schedule *schedule = t->config->schedule_row;
    settings_restart(t);
    if (!schedule) return ZERO_OK;
    const char *length = config_schedule_length(t->config);
    if (length && !t->config->planned_steps)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: \"auto\" is the number of steps that the program trains, "
                         "and it gave none (zero_runtime.total_steps): write a number",
                         length);
    if (schedule->cycles_momentum && t->config->schedule.cycle_momentum && !has_betas(t) && !t->rank)
        log_line(t->log, ZERO_LOG_WARN,
                 "scheduler.params.cycle_momentum: %s has no betas, so there is no momentum to cycle, as in "
                 "DeepSpeed",
                 t->optimizer->title);
    if (!t->rank) log_line(t->log, ZERO_LOG_INFO, "learning rates by %s", schedule->name);
    return check_planned(t, error);
}

static struct lr_setting given(const struct training *t, uint32_t group) {
    const struct optimizer_params *p = &t->groups.params[group];
    return (struct lr_setting){p->lr, p->beta1, p->beta2};
}

struct asked {
    const struct training *training;
    int group;
    zero_setting *setting;
};

static void ask(void *call) {
    const struct asked *a = call;
    a->training->schedule_fn(a->training->schedule_user, a->training->steps, a->group, a->setting);
}

void settings_next(const struct training *t, struct lr_setting out[GROUP_MAX]) {
    for (uint32_t g = 0; g < t->groups.count; g++) {
        out[g] = given(t, g);
        if (!t->schedule_fn) {
            out[g] = lr_schedule_at(t->config->schedule_row, &t->schedule, g, t->steps, out[g]);
            continue;
        }
        zero_setting setting = {sizeof setting, out[g].lr, out[g].beta1, out[g].beta2};
        struct asked asked = {t, (int)g, &setting};
        if (!host_call(t->fault, "zero_engine_set_schedule", ask, &asked)) continue;
        out[g] = (struct lr_setting){setting.lr, setting.beta1, setting.beta2};
    }
}

static bool usable(const struct lr_setting *s, bool betas) {
    bool lr = s->lr >= 0 && !isinf((float)s->lr); /* updates compute in fp32 */
    return lr && (!betas || (s->beta1 >= 0 && s->beta1 < 1 && s->beta2 >= 0 && s->beta2 < 1));
}

zero_status settings_check(const struct training *t, const struct lr_setting *setting,
                           struct zero_error *error) {
    for (uint32_t g = 0; g < t->groups.count; g++) {
        if (usable(&setting[g], group_has_betas(t, g))) continue;
        return error_set(
            error, ZERO_E_ARGUMENT,
            "step %" PRIu64 ": %s gives group %" PRIu32 " lr %g, beta1 %g and beta2 %g: lr must be finite in "
            "fp32 and at least 0, betas at least 0 and below 1",
            t->steps + 1,
            t->schedule_fn || !t->config->schedule_row ? "the schedule" : t->config->schedule_row->name, g,
            setting[g].lr, setting[g].beta1, setting[g].beta2);
    }
    return ZERO_OK;
}

void settings_scalars(const struct training *t, const struct lr_setting *setting, uint64_t step,
                      struct optimizer_scalars out[SCALARS_MAX]) {
    for (uint32_t g = 0; g < t->groups.count; g++) {
        struct optimizer_params p = t->groups.params[g];
        p.lr = setting[g].lr, p.beta1 = setting[g].beta1, p.beta2 = setting[g].beta2;
        optimizer_prepare(training_optimizer(t, g), &p, step, &out[model_scalars(g, false)]);
        p.weight_decay = 0;
        optimizer_prepare(training_optimizer(t, g), &p, step, &out[model_scalars(g, true)]);
    }
}

/* Division and subtraction in double: the same on every processor. */
float settings_average_share(const struct training *t, uint64_t step) {
    const struct config_ema *ema = &t->config->ema;
    double decay = ema->decay;
    if (decay == 0) return 0;
    if (step <= ema->begin) return 1;
    if (step % ema->every) return 0;
    double moves = (double)((step - ema->begin - 1) / ema->every), first = (1 + moves) / (10 + moves);
    if (ema->warmup && first < decay) decay = first;
    return (float)(1 - decay);
}

int64_t settings_iteration(const struct training *t) {
    return t->schedule.last_batch_iteration + (int64_t)t->steps;
}

void settings_resume(struct training *t, int64_t iteration) {
    t->schedule.last_batch_iteration = iteration - (int64_t)t->steps;
}

void settings_restart(struct training *t) {
    t->schedule = t->config->schedule;
    t->schedule.cycle_momentum &= has_betas(t);
    if (!t->config->schedule_row) t->schedule.last_batch_iteration = -1;
}

static zero_status check_settable(const struct training *t, const char *call, int group,
                                  struct zero_error *error) {
    if (group < 0 || (uint32_t)group >= t->groups.count)
        return error_set(error, ZERO_E_ARGUMENT, "%s: there is no group %d; there are %" PRIu32 ", from 0",
                         call, group, t->groups.count);
    if (t->schedule_fn || t->config->schedule_row)
        return error_set(error, ZERO_E_ORDER, "%s: %s sets it: %s", call,
                         t->schedule_fn ? "the function of zero_engine_set_schedule"
                                        : t->config->schedule_row->name,
                         t->schedule_fn ? "let it give the lr" : "remove the scheduler block");
    return ZERO_OK;
}

zero_status settings_set_lr(struct training *t, int group, double lr, struct zero_error *error) {
    if (!(lr >= 0) || isinf(lr))
        return error_set(error, ZERO_E_ARGUMENT, "zero_engine_set_lr: lr %g is not a finite number >= 0", lr);
    zero_status status = check_settable(t, "zero_engine_set_lr", group, error);
    if (!status) t->groups.params[group].lr = lr;
    return status;
}

zero_status settings_set_betas(struct training *t, int group, double beta1, double beta2,
                               struct zero_error *error) {
    if (!usable(&(struct lr_setting){0, beta1, beta2}, true))
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_set_betas: betas %g and %g must be at least 0 and below 1", beta1,
                         beta2);
    zero_status status = check_settable(t, "zero_engine_set_betas", group, error);
    if (!status) t->groups.params[group].beta1 = beta1, t->groups.params[group].beta2 = beta2;
    return status;
}

zero_status settings_set_params(struct training *t, int group, const zero_optimizer_params *params,
                                struct zero_error *error) {
    static const char call[] = "zero_engine_set_params";
    const double number[] = {params->eps, params->weight_decay, params->momentum, params->dampening};
    static const char *const name[] = {"eps", "weight_decay", "momentum", "dampening"};
    if (group < 0 || (uint32_t)group >= t->groups.count)
        return error_set(error, ZERO_E_ARGUMENT, "%s: there is no group %d; there are %" PRIu32 ", from 0",
                         call, group, t->groups.count);
    for (uint32_t i = 0; i < sizeof number / sizeof *number; i++)
        if (!(number[i] >= 0) || isinf((float)number[i]))
            return error_set(error, ZERO_E_ARGUMENT, "%s: %s %g is not a finite number >= 0", call, name[i],
                             number[i]);
    struct optimizer_params p = t->groups.params[group];
    p.eps = params->eps, p.weight_decay = params->weight_decay;
    p.momentum = params->momentum, p.dampening = params->dampening;
    const struct optimizer *row = training_optimizer(t, (uint32_t)group);
    if (optimizer_states_used(row, &p) > t->state_count)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "%s: momentum %g needs a state that the plan lacks, which began without momentum: begin "
            "with one above 0",
            call, p.momentum);
    if (!t->schedule_fn && !t->config->schedule_row) {
        const struct lr_setting setting = {params->lr, params->beta1, params->beta2};
        bool betas = group_has_betas(t, (uint32_t)group);
        if (!usable(&setting, betas))
            return error_set(
                error, ZERO_E_ARGUMENT,
                "%s: lr %g, beta1 %g and beta2 %g: lr must be finite in fp32 and at least 0, betas "
                "at least 0 and below 1",
                call, setting.lr, setting.beta1, setting.beta2);
        p.lr = setting.lr;
        if (betas) p.beta1 = setting.beta1, p.beta2 = setting.beta2;
    }
    t->groups.params[group] = p;
    return ZERO_OK;
}

uint64_t settings_hash(const struct training *t) {
    uint64_t h = HASH_START;
    for (uint32_t g = 0; g < t->groups.count; g++) {
        const struct optimizer_params *p = &t->groups.params[g];
        const double own[] = {p->eps, p->weight_decay, p->momentum, p->dampening};
        h = hash_bytes(h, own, sizeof own);
    }
    return h;
}
