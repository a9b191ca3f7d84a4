#include "engine/step/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/ranks/model_ranks.h"
#include "engine/run/progress.h"
#include "engine/state/background_save.h"
#include "engine/state/replica_check.h"
#include "engine/state/shadow.h"
#include "engine/step/overflow.h"
#include "engine/training/step_settings.h"

/* A rank must have emitted and posted the same operations as the first one with its model rank. */
static zero_status check_agreements(struct state *state, const struct agreement *all) {
    for (uint32_t r = 1; r < state->ranks->size; r++) {
        uint32_t first = model_ranks_first(state->ranks, r);
        bool same_use = all[r].trace == all[first].trace;
        if (same_use && all[r].fingerprint == all[first].fingerprint) continue;
        struct zero_error error;
        error_clear(&error);
        error_set(&error, ZERO_E_DIVERGED, "step %" PRIu64 ": rank %" PRIu32 " %s than rank %" PRIu32 "%s",
                  state->training->steps + 1, r,
                  same_use ? "posted other collectives" : "used the units in another order", first,
                  same_use ? "" : "; all ranks must call begin and end alike");
        error.rank = (int32_t)r;
        return ranks_fail(state->ranks, &error);
    }
    return ZERO_OK;
}

/* Adds over the ranks that share one copy: model rank by model rank, and their data ranks in order. */
static double total_norm(const struct state *state, const struct agreement *all) {
    const struct ranks *ranks = state->ranks;
    bool both = state->blueprint->policy.stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t shards = state->blueprint->policy.mesh[AXIS_SHARD], row = ranks->data_rank / shards;
    double sum = 0;
    for (uint32_t m = 0; m < ranks->model_size; m++)
        for (uint32_t d = 0; d < ranks->data_size; d++)
            if (both || d / shards == row) sum += all[model_ranks_at(ranks, m, d)].norm_squared;
    return sqrt(sum);
}

/* The same on all ranks. */
static zero_status update_loss_scale(struct state *state, bool overflow) {
    double before = state->training->loss_scale.value;
    bool lasts = loss_scale_update(&state->training->loss_scale, overflow);
    if (lasts && before != state->training->loss_scale.value)
        log_line(&state->ranks->log, ZERO_LOG_INFO, "the loss scale is %g now, and was %g",
                 state->training->loss_scale.value, before);
    if (lasts) return ZERO_OK;
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_OVERFLOW,
              "step %" PRIu64 ": a gradient is inf or NaN at fp16.min_loss_scale %g, after %" PRIu64
              " skipped step%s in a row: lower the learning rate, or compute in bf16",
              state->training->steps + 1, state->training->loss_scale.min, state->training->skipped_in_a_row,
              state->training->skipped_in_a_row == 1 ? "" : "s");
    return ranks_fail_alike(state->ranks, &error);
}

static void fill_settings(const struct state *state, const struct lr_setting *setting, zero_step_info *info) {
    info->lr = setting[0].lr;
    info->beta1 = setting[0].beta1;
    info->groups = state->training->groups.count;
    for (uint32_t g = 0; g < state->training->groups.count; g++) info->group_lr[g] = setting[g].lr;
}

struct stepping {
    struct state *state;
    zero_step_info *info;
    struct optimizer_scalars scalars[SCALARS_MAX];
};

static bool updates_in_backward(const struct state *state) {
    return state->blueprint->policy.update_in_backward;
}

/* The factor of the summed gradient: the mean, and clipping by the total norm. */
static double gradient_scale(const struct state *state, double mean, double norm) {
    double clip = state->blueprint->o.config->gradient_clipping;
    return clip > 0 && clip / (norm + 1e-6) < 1 ? mean * (clip / (norm + 1e-6)) : mean;
}

/* `scalars` keep those of `setting`. */
static struct update_settings settings_of(const struct state *state, const struct lr_setting *setting,
                                          uint64_t step, float scale, struct optimizer_scalars *scalars) {
    uint64_t seed = state->blueprint->o.config->seed;
    settings_scalars(state->training, setting, step, scalars);
    return (struct update_settings){
        .scale = scale,
        .scalars = scalars,
        .count = 2 * state->training->groups.count,
        .average_share = settings_average_share(state->training, step),
        .rounding_key = hash_bytes(hash_bytes(HASH_START, &seed, sizeof seed), &step, sizeof step)};
}

zero_status step_prepare(struct state *state) {
    struct upcoming *u = &state->training->upcoming;
    struct zero_error error;
    error_clear(&error);
    if (!updates_in_backward(state)) return ZERO_OK;
    settings_next(state->training, u->setting);
    if (settings_check(state->training, u->setting, &error)) return ranks_fail(state->ranks, &error);
    double mean = training_mean(state->training, state->blueprint->terms.gradient_factor);
    state->run->moves.update =
        settings_of(state, u->setting, state->training->steps + 1, (float)mean, u->scalars);
    return ZERO_OK;
}

/* True if the updates of the backward can be repeated or taken back: the shadow has the values from before. */
static bool goes_back(const struct state *state) { return state->blueprint->plan.shadow; }

/* The updates have begun, so the step cannot be skipped any more. */
static zero_status check_updated(struct state *state, const struct agreement *all) {
    struct overflow overflow;
    struct zero_error error;
    char where[200] = "the norm of the gradients is inf";
    error_clear(&error);
    overflow_report(state, all, &overflow);
    if (overflow.unit)
        snprintf(where, sizeof where, "on rank %" PRIu32 ", gradients of unit \"%.120s\" are inf or NaN",
                 overflow.rank, overflow.unit);
    error_set(&error, ZERO_E_OVERFLOW,
              "step %" PRIu64
              ": %s, and zero_optimization.update_in_backward has updated weights with them: go on from the "
              "last checkpoint, and remove that key or set nvme.shadow, and such steps are skipped",
              state->training->steps + 1, where);
    return ranks_fail_alike(state->ranks, &error);
}

/* Decides from the agreements what the update does. */
static zero_status prepare_update(struct stepping *s, const struct agreement *all, struct host_moves *moves) {
    struct state *state = s->state;
    zero_step_info *info = s->info;
    double mean = training_mean(state->training, state->blueprint->terms.gradient_factor);
    info->grad_norm = total_norm(state, all) * mean;
    fill_settings(state, all[0].setting, info);
    info->skipped = !isfinite(info->grad_norm);
    if (info->skipped && updates_in_backward(state) && !goes_back(state)) return check_updated(state, all);
    /* The updates of the backward used the mean without clipping. */
    float scale = (float)gradient_scale(state, mean, info->grad_norm);
    info->repeated = updates_in_backward(state) && !info->skipped && scale != (float)mean;
    struct overflow overflow;
    if (info->skipped) {
        state->training->skipped++;
        state->training->skipped_in_a_row++;
        overflow_report(state, all, &overflow);
        info->overflow_unit = overflow.unit;
    } else {
        state->training->steps++;
        state->training->skipped_in_a_row = 0;
    }
    info->loss_scale = state->training->loss_scale.value;
    zero_status status = update_loss_scale(state, info->skipped);
    if (!status && info->skipped) status = overflow_check_limit(state, &overflow);
    if (status) return status;
    state->run->weights_version++;
    info->step = state->training->steps;
    info->skipped_total = state->training->skipped;
    info->repeated_total = state->training->repeated += (uint64_t)info->repeated;
    moves->outcome = info->skipped ? OUTCOME_SKIPPED : info->repeated ? OUTCOME_REPEATED : OUTCOME_UPDATED;
    moves->update = settings_of(state, all[0].setting, state->training->steps, scale, s->scalars);
    return ZERO_OK;
}

static bool compare_is_due(const struct state *state, const zero_step_info *info) {
    uint64_t every = state->blueprint->o.config->compare_every;
    return every && state->ranks->size > 1 && !info->skipped && state->training->steps % every == 0;
}

static bool same_settings(const struct state *state, const struct agreement *a, const struct agreement *b) {
    bool same = true;
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        same &= a->setting[g].lr == b->setting[g].lr && a->setting[g].beta1 == b->setting[g].beta1 &&
                a->setting[g].beta2 == b->setting[g].beta2;
    return same;
}

/* Rank 0's settings, which all ranks use. Updates in the backward have used each rank's own. */
static zero_status check_settings(struct state *state, const struct agreement *all) {
    const struct lr_setting *setting = all[0].setting;
    struct zero_error error;
    error_clear(&error);
    for (uint32_t r = 1; r < state->ranks->size && updates_in_backward(state); r++) {
        if (same_settings(state, &all[r], &all[0])) continue;
        error_set(&error, ZERO_E_DIVERGED,
                  "step %" PRIu64 ": rank %" PRIu32
                  " updated with other learning rates or betas than rank 0: with "
                  "zero_optimization.update_in_backward all ranks must set the same before the last "
                  "micro-step of a step begins",
                  state->training->steps + 1, r);
        return ranks_fail_alike(state->ranks, &error);
    }
    if (!settings_check(state->training, setting, &error)) return ZERO_OK;
    return ranks_fail_alike(state->ranks, &error);
}

static zero_status read_agreements(struct stepping *s, struct host_moves *moves) {
    struct state *state = s->state;
    const struct agreement *all = executor_agreements(state->run->executor);
    zero_status status = check_agreements(state, all);
    if (!status) status = check_settings(state, all);
    if (!status) status = shadow_commit(state);
    if (!status) status = background_save_hear(state, all);
    return status ? status : prepare_update(s, all, moves);
}

static zero_status work(void *user, struct host_moves *moves, enum host_move move) {
    struct stepping *s = user;
    if (move == MOVE_AGREE) return shadow_sync(s->state);
    return move == MOVE_AGREED ? read_agreements(s, moves) : ZERO_OK;
}

zero_status step_run(struct state *state, zero_step_info *out) {
    struct running *run = state->run;
    struct agreement mine = {0};
    zero_step_info info = {.struct_size = out->struct_size};
    struct stepping stepping = {.state = state, .info = &info};
    background_save_report(state, &mine.save);
    if (updates_in_backward(state))
        memcpy(mine.setting, state->training->upcoming.setting, sizeof mine.setting);
    else
        settings_next(state->training, mine.setting);
    run->moves.mine = &mine;
    run->moves.settles = plan_settles(&state->blueprint->plan);
    zero_status status = run_moves(run, MOVE_AGREE, MOVE_SETTLE, work, &stepping);
    progress_wake(run->progress);
    *out = info;
    return status;
}

/* Compares the copies on several ranks, if the comparison is due in this step. */
zero_status step_check_replicas(struct state *state, const zero_step_info *info) {
    return compare_is_due(state, info) ? replica_check(state) : ZERO_OK;
}
