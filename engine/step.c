/* The step: norm and skip are agreed among all ranks, then the refresh starts. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/engine_internal.h"
#include "engine/saver.h"
#include "engine/compare.h"
#include "engine/overflow.h"
#include "engine/settings.h"
#include "engine/shadow.h"
#include "engine/trace.h"

/* What a rank emitted and posted must be what rank 0 did. */
static zero_status check_agreements(zero_engine *e, const struct agreement *all) {
    for (uint32_t r = 1; r < e->size; r++) {
        bool same_use = all[r].trace == all[0].trace;
        if (same_use && all[r].fingerprint == all[0].fingerprint) continue;
        struct zero_error error;
        error_clear(&error);
        error_set(&error, ZERO_E_DIVERGED, "step %" PRIu64 ": rank %" PRIu32 " %s than rank 0%s",
                  e->steps + 1, r, same_use ? "posted other collectives" : "used the units in another order",
                  same_use ? "" : "; all ranks must call begin and end alike");
        error.rank = (int32_t)r;
        return engine_fail(e, &error);
    }
    return ZERO_OK;
}

/* Over the ranks that cut one copy between them, in rank order. */
static double total_norm(const zero_engine *e, const struct agreement *all) {
    bool both = e->policy.stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t row = e->rank / e->policy.mesh[AXIS_SHARD];
    double sum = 0;
    for (uint32_t r = 0; r < e->size; r++)
        if (both || r / e->policy.mesh[AXIS_SHARD] == row) sum += all[r].norm_squared;
    return sqrt(sum);
}

/* The same on all ranks. */
static zero_status update_loss_scale(zero_engine *e, bool overflow) {
    double before = e->loss_scale.value;
    bool lasts = loss_scale_update(&e->loss_scale, overflow);
    if (lasts && before != e->loss_scale.value)
        log_line(&e->log, ZERO_LOG_INFO, "loss scale %g, was %g", e->loss_scale.value, before);
    if (lasts) return ZERO_OK;
    /* All ranks come to this by themselves: nobody need be told. */
    error_set(&e->error, ZERO_E_OVERFLOW,
              "step %" PRIu64 ": a gradient is inf or NaN at fp16.min_loss_scale %g, %" PRIu64
              " steps were skipped: lower the learning rate, or compute in bf16",
              e->steps + 1, e->loss_scale.min, e->skipped);
    return engine_check(e);
}

static void fill_settings(const zero_engine *e, const struct lr_setting *setting, zero_step_info *info) {
    info->lr = setting[0].lr;
    info->beta1 = setting[0].beta1;
    info->groups = e->groups;
    for (uint32_t g = 0; g < e->groups; g++) info->group_lr[g] = setting[g].lr;
}

static zero_status apply(zero_engine *e, const struct agreement *all, zero_step_info *info) {
    double mean = engine_mean(e), scale = mean;
    double clip = e->config.gradient_clipping;
    info->grad_norm = total_norm(e, all) * mean;
    fill_settings(e, all[0].setting, info);
    info->skipped = !isfinite(info->grad_norm);
    if (clip > 0 && clip / (info->grad_norm + 1e-6) < 1) scale *= clip / (info->grad_norm + 1e-6);
    if (info->skipped) {
        e->skipped++;
        info->overflow_unit = overflow_report(e, all);
    } else {
        e->steps++;
    }
    info->loss_scale = e->loss_scale.value;
    zero_status status = update_loss_scale(e, info->skipped);
    if (status) return status;
    e->version++;
    info->step = e->steps;
    info->skipped_total = e->skipped;
    struct optimizer_scalars scalars[SCALARS_MAX];
    settings_scalars(e, all[0].setting, scalars);
    status = engine_drive_room(e);
    if (status) return status;
    uint64_t key = hash_bytes(hash_bytes(HASH_START, &e->config.seed, sizeof e->config.seed), &e->steps,
                              sizeof e->steps);
    return ENGINE_EVENT(
        e, executor_apply(e->executor, info->skipped, (float)scale, scalars, 2 * e->groups, key));
}

static bool compare_is_due(const zero_engine *e, const zero_step_info *info) {
    uint64_t every = e->config.compare_every;
    return every && e->size > 1 && !info->skipped && e->steps % every == 0;
}

zero_status zero_engine_step(zero_engine *e, zero_step_info *out) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "zero_engine_step: unit \"%s\" is still in use; end it first",
                      e->unit->name);
    if (e->phase == PHASE_DECLARING || e->micro != e->policy.micro_steps)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_step: %" PRIu32 " of %" PRIu32
                      " micro-steps are done (gradient_accumulation_steps); do the others first",
                      e->micro, e->policy.micro_steps);
    struct agreement mine = {0};
    saver_say(e, &mine.save);
    settings_next(e, mine.setting);
    struct point agreed = {0};
    zero_step_info info = {.struct_size = sizeof info};
    if (!status) status = engine_drive_room(e);
    if (!status) status = shadow_sync(e);
    if (!status) status = ENGINE_EVENT(e, executor_agree(e->executor, &mine, &agreed));
    if (!status) status = engine_drive(e, executor_reached, agreed);
    if (!status) status = check_agreements(e, executor_agreements(e->executor));
    if (!status) status = settings_check(e, executor_agreements(e->executor)->setting);
    if (!status) status = shadow_commit(e);
    if (!status) status = saver_hear(e, executor_agreements(e->executor));
    if (!status) status = apply(e, executor_agreements(e->executor), &info);
    e->uncommitted |= !info.skipped;
    if (!status && plan_settles(&e->plan)) status = engine_drive_idle(e);
    progress_wake(e->progress);
    if (status) return status;
    e->micro = 0;
    e->phase = PHASE_READY;
    if (compare_is_due(e, &info)) status = compare_ranks(e);
    if (!status) status = trace_step(e);
    if (status) return status;
    if (out) {
        info.struct_size = out->struct_size;
        memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
    }
    return ZERO_OK;
}

float zero_engine_loss_scale(const zero_engine *e) { return (float)e->loss_scale.value; }

/* The scale that the gradients were made with: it changes in apply, after this. */
double engine_mean(const zero_engine *e) {
    double sent = engine_gradient_factor(e),
           ranks = e->config.gradient_op == CONFIG_GRADIENT_SUM ? 1 : e->size;
    return 1.0 / (ranks * e->policy.micro_steps * e->loss_scale.value * (sent != 0 ? sent : 1));
}

float engine_gradient_factor(const zero_engine *e) {
    return e->config.gradient_factor == 1 ? 0 : (float)e->config.gradient_factor;
}
