#include "engine/loop/step.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/utf8.h"
#include "engine/executor/stream/decision.h"
#include "engine/ranks/failure.h"
#include "engine/ranks/model_ranks.h"
#include "engine/run/run.h"
#include "engine/state/background_save.h"
#include "engine/state/shadow.h"
#include "engine/state/step_settings.h"

/* A rank must have emitted and posted the same operations as the first one with its model rank. */
static zero_status check_agreements(struct step *step, const struct agreement *all) {
    for (uint32_t r = 1; r < step->run->ranks->size; r++) {
        uint32_t first = model_ranks_first(step->run->ranks, r);
        bool same_use = all[r].trace == all[first].trace;
        if (same_use && all[r].fingerprint == all[first].fingerprint) continue;
        struct zero_error error = ERROR_NONE;
        error_set(&error, ZERO_E_DIVERGED, "step %" PRIu64 ": rank %" PRIu32 " %s than rank %" PRIu32 "%s",
                  step->training->steps + 1, r,
                  same_use ? "posted other collectives" : "used the units in another order", first,
                  same_use ? "" : "; all ranks must call begin and end alike");
        error.rank = (int32_t)r;
        return ranks_fail(step->run->ranks, &error);
    }
    return ZERO_OK;
}

/* The same on all ranks. */
static zero_status update_loss_scale(struct step *step, bool overflow) {
    double before = step->training->loss_scale.value;
    bool lasts = loss_scale_update(&step->training->loss_scale, overflow);
    if (lasts && before != step->training->loss_scale.value)
        log_line(&step->run->ranks->log, ZERO_LOG_INFO, "the loss scale is %g now, and was %g",
                 step->training->loss_scale.value, before);
    if (lasts) return ZERO_OK;
    struct zero_error error = ERROR_NONE;
    error_set(&error, ZERO_E_OVERFLOW,
              "step %" PRIu64 ": a gradient is inf or NaN at fp16.min_loss_scale %g, after %" PRIu64
              " skipped step%s in a row: lower the learning rate, or compute in bf16",
              step->training->steps + 1, step->training->loss_scale.min, step->training->skipped_in_a_row,
              step->training->skipped_in_a_row == 1 ? "" : "s");
    return ranks_fail_alike(step->run->ranks, &error);
}

static void fill_settings(struct step *step, const struct lr_setting *setting) {
    zero_step_info *info = &step->info;
    info->lr = setting[0].lr;
    info->beta1 = setting[0].beta1;
    info->groups = step->training->groups.count;
    for (uint32_t g = 0; g < step->training->groups.count; g++) info->group_lr[g] = setting[g].lr;
}

static bool updates_in_backward(const struct step *step) {
    return step->blueprint->policy.update_in_backward;
}

static struct update_settings settings_of(struct step *step, const struct lr_setting *setting,
                                          uint64_t number, float scale) {
    uint64_t seed = step->blueprint->o.config->seed;
    settings_scalars(step->training, setting, number, step->scalars);
    return (struct update_settings){
        .scale = scale,
        .scalars = step->scalars,
        .count = 2 * step->training->groups.count,
        .average_share = settings_average_share(step->training, number),
        .rounding_key = hash_bytes(hash_bytes(HASH_START, &seed, sizeof seed), &number, sizeof number)};
}

/* The host's schedule may have called functions of the interface: failures from here on are again those of `call`. */
static void ask_schedule(struct step *step, struct lr_setting *out, const char *call) {
    settings_next(step->training, out);
    failure_call(call, NULL);
}

static double mean_of(const struct step *step) {
    return training_mean(step->training, step->blueprint->terms.gradient_factor);
}

zero_status step_prepare(struct step *step) {
    struct zero_error error = ERROR_NONE;
    if (!updates_in_backward(step)) return ZERO_OK;
    ask_schedule(step, step->upcoming, "zero_micro_begin");
    if (settings_check(step->training, step->upcoming, &error)) return ranks_fail(step->run->ranks, &error);
    step->run->update = settings_of(step, step->upcoming, step->training->steps + 1, (float)mean_of(step));
    return ZERO_OK;
}

/* The updates have begun, so the step cannot be skipped any more. */
static zero_status check_updated(struct step *step, const struct agreement *all) {
    struct overflow overflow;
    struct zero_error error = ERROR_NONE;
    char where[200] = "the norm of the gradients is inf";
    overflow_report(step, all, &overflow);
    if (overflow.unit)
        snprintf(where, sizeof where, "on rank %" PRIu32 ", gradients of unit \"%.*s\" are inf or NaN",
                 overflow.rank, utf8_fit(overflow.unit, 120), overflow.unit);
    error_set(&error, ZERO_E_OVERFLOW,
              "step %" PRIu64
              ": %s, and zero_optimization.update_in_backward has updated weights with them: go on from the "
              "last checkpoint, and remove that key or set nvme.shadow, and such steps are skipped",
              step->training->steps + 1, where);
    return ranks_fail_alike(step->run->ranks, &error);
}

/* Decides from the agreements what the update does. */
static zero_status prepare_update(struct step *step, const struct agreement *all, enum outcome *out_outcome) {
    const struct ranks *ranks = step->run->ranks;
    const struct blueprint *b = step->blueprint;
    zero_step_info *info = &step->info;
    double squared = host_norm_squared(&b->policy, ranks->data_rank, all, ranks->at, ranks->model_size);
    struct host_decision decision =
        host_decide(&b->policy, squared, mean_of(step), b->o.config->gradient_clipping);
    info->grad_norm = decision.norm;
    fill_settings(step, all[0].setting);
    info->skipped = decision.outcome == OUTCOME_SKIPPED;
    info->repeated = decision.outcome == OUTCOME_REPEATED;
    /* Without a shadow, which has the values from before, the updates of the backward cannot be taken back. */
    if (info->skipped && updates_in_backward(step) && !b->plan.terms->shadow) return check_updated(step, all);
    struct overflow overflow;
    if (info->skipped) {
        step->training->skipped++;
        step->training->skipped_in_a_row++;
        overflow_report(step, all, &overflow);
        info->overflow_unit = overflow.unit;
    } else {
        step->training->steps++;
        step->training->skipped_in_a_row = 0;
    }
    info->loss_scale = step->training->loss_scale.value;
    TRY(update_loss_scale(step, info->skipped));
    if (info->skipped) TRY(overflow_check_limit(step, &overflow));
    step->run->weights_version++;
    info->step = step->training->steps;
    info->skipped_total = step->training->skipped;
    info->repeated_total = step->training->repeated += (uint64_t)info->repeated;
    *out_outcome = decision.outcome;
    step->run->update = settings_of(step, all[0].setting, step->training->steps, decision.scale);
    return ZERO_OK;
}

static bool same_settings(const struct step *step, const struct agreement *a, const struct agreement *b) {
    bool same = true;
    for (uint32_t g = 0; g < step->training->groups.count; g++)
        same &= a->setting[g].lr == b->setting[g].lr && a->setting[g].beta1 == b->setting[g].beta1 &&
                a->setting[g].beta2 == b->setting[g].beta2;
    return same;
}

/* Rank 0's settings, which all ranks use. Updates in the backward have used each rank's own. */
static zero_status check_settings(struct step *step, const struct agreement *all) {
    const struct lr_setting *setting = all[0].setting;
    struct zero_error error = ERROR_NONE;
    for (uint32_t r = 1; r < step->run->ranks->size; r++) {
        if (all[r].settings == all[0].settings) continue;
        error_set(&error, ZERO_E_DIVERGED,
                  "step %" PRIu64 ": rank %" PRIu32
                  " has another eps, weight_decay, momentum or dampening than rank 0: set the same on all "
                  "ranks (zero_engine_set_params)",
                  step->training->steps + 1, r);
        return ranks_fail_alike(step->run->ranks, &error);
    }
    for (uint32_t r = 1; r < step->run->ranks->size && updates_in_backward(step); r++) {
        if (same_settings(step, &all[r], &all[0])) continue;
        error_set(&error, ZERO_E_DIVERGED,
                  "step %" PRIu64 ": rank %" PRIu32
                  " updated with other learning rates or betas than rank 0: with "
                  "zero_optimization.update_in_backward all ranks must set the same before the last "
                  "micro-step of a step begins",
                  step->training->steps + 1, r);
        return ranks_fail_alike(step->run->ranks, &error);
    }
    if (!settings_check(step->training, setting, &error)) return ZERO_OK;
    return ranks_fail_alike(step->run->ranks, &error);
}

static zero_status read_agreements(struct step *step, enum outcome *out_outcome) {
    const struct agreement *all = executor_agreements(step->run->executor);
    zero_status status = check_agreements(step, all);
    if (!status) status = check_settings(step, all);
    if (!status) status = shadow_commit(step->state);
    if (!status) status = background_save_hear(step->state, all);
    return status ? status : prepare_update(step, all, out_outcome);
}

zero_status step_run(struct step *step) {
    struct running *run = step->run;
    struct agreement mine = {0};
    struct event apply = {.kind = EVENT_APPLY, .update = &run->update};
    step->info = (zero_step_info){.struct_size = sizeof step->info};
    background_save_report(step->state, &mine.save);
    mine.settings = settings_hash(step->training);
    if (updates_in_backward(step))
        memcpy(mine.setting, step->upcoming, sizeof mine.setting);
    else
        ask_schedule(step, mine.setting, "zero_engine_step");
    zero_status status = shadow_sync(step->state);
    if (!status) status = run_event(run, (struct event){.kind = EVENT_AGREE, .mine = &mine});
    if (!status) status = run_wait(run, executor_agreed);
    if (!status) status = read_agreements(step, &apply.outcome);
    if (!status) status = run_event(run, apply);
    if (!status) status = run_wait(run, executor_settled);
    progress_wake(run->progress);
    return status;
}

/* Compares the copies on several ranks, if the comparison is due in this step. */
zero_status step_check_replicas(const struct step *step) {
    uint64_t every = step->blueprint->o.config->compare_every;
    bool due =
        every && step->run->ranks->size > 1 && !step->info.skipped && step->training->steps % every == 0;
    return due ? replica_check(step->state) : ZERO_OK;
}
