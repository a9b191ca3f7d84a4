/* The calls between steps: flush, fill, hash, sum, recover, checkpoints, notes, learning rates, traces. Each checks what
 * the host may do now, ends an open pass, and calls a room. */
#include <inttypes.h>
#include <string.h>

#include "engine/api/engine.h"
#include "engine/api/inside.h"
#include "engine/base/clock.h"
#include "engine/base/system/numa.h"
#include "engine/loop/slots.h"
#include "engine/state/background_save.h"
#include "engine/state/get_put.h"
#include "engine/state/notes.h"
#include "engine/state/saved.h"
#include "engine/state/shadow.h"
#include "engine/state/step_settings.h"

/* As engine_check_between, for calls that need no weights: also while the averages are in their place. */
static zero_status check_between(zero_engine *e, const char *what) {
    zero_status status = engine_check(e, what);
    if (!status) status = pass_check_between(&e->pass, what);
    return status ? status : background_save_finish(&e->state);
}

/* ---- weights and states ---- */

/* Brings everything up to date on its tier, and commits the shadow. While averages are in the place of the weights, it does not
 * commit: a shadow must have the weights. */
static zero_status flush(zero_engine *e) {
    zero_status status = pass_settle(&e->pass);
    if (status || !e->config.nvme_shadow || e->state.averaged) return status;
    return shadow_commit_now(&e->state);
}

zero_status zero_engine_flush(zero_engine *e) {
    TRY(engine_check(e, "zero_engine_flush"));
    if (e->pass.phase == PHASE_DECLARING || e->pass.phase == PHASE_USE)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_flush: call it after commit, and not between a unit's begin and end");
    zero_status status = pass_check_between(&e->pass, "zero_engine_flush");
    if (!status) status = flush(e);
    if (!status && e->state.filled) slots_give_weights(&e->pass);
    return status;
}

static zero_status weights_are_there(zero_engine *e) {
    e->state.unseen = false;
    e->state.filled = true;
    return run_weights_written(&e->run);
}

/* What the start of a run takes on a GPU with host memory beside it. */
static void log_start(const zero_engine *e, double fill_s) {
    const struct device *device = e->run.device;
    struct tier *host = e->run.tier[TIER_CPU];
    const void *memory = e->run.discrete && host ? host->ops->address(host) : NULL;
    uint64_t bytes = plan_extent_bytes(&e->blueprint.plan, TIER_CPU);
    if (!memory || !bytes || !e->ranks.log.write) return;
    log_line(
        &e->ranks.log, ZERO_LOG_INFO,
        "start: %.2f GiB of host memory touched in %.1f s (%.0f %% of it in huge pages) and registered with "
        "the GPU in %.1f s; weights filled in %.1f s",
        (double)bytes / (1 << 30), (double)device->touched_ns * 1e-9,
        100.0 * (double)numa_huge_bytes(memory, bytes) / (double)bytes, (double)device->registered_ns * 1e-9,
        fill_s);
}

zero_status zero_engine_fill(zero_engine *e, zero_fill_fn fill, void *user) {
    zero_status status = engine_check_steps(e, "zero_engine_fill");
    if (status) return status;
    if (!fill) status = fill_check_values(&e->state, "zero_engine_fill", false);
    if (!status) status = shadow_check_overwriting(&e->state, "zero_engine_fill");
    if (!status) status = pass_settle(&e->pass);
    if (!status) status = shadow_forget(&e->state);
    uint64_t began = clock_now_ns();
    if (!status) status = fill_all(&e->state, fill, user);
    if (status) return status;
    log_start(e, (double)(clock_now_ns() - began) * 1e-9);
    training_restart(&e->training);
    shadow_written(&e->state);
    return weights_are_there(e);
}

zero_status zero_engine_recover(zero_engine *e, zero_fill_fn fill, void *user, uint64_t *out_step) {
    zero_status status = engine_check_between(e, "zero_engine_recover");
    if (status) return status;
    if (!e->config.nvme_shadow)
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_recover: it needs a shadow on the drive: set \"nvme\": {\"shadow\": true}");
    if (e->state.filled)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_recover: call it in place of zero_engine_fill, not after it");
    if (!fill) status = fill_check_values(&e->state, "zero_engine_recover", true);
    if (!status) status = shadow_recover(&e->state, fill, user);
    if (status) return status;
    if (out_step) *out_step = e->training.steps;
    return weights_are_there(e);
}

zero_status zero_engine_hash(zero_engine *e, char out[33]) {
    TRY(engine_check_between(e, "zero_engine_hash"));
    TRY(engine_check_updates(e, "zero_engine_hash"));
    TRY(engine_check_filled(e, "zero_engine_hash"));
    TRY(engine_check_written(e, "zero_engine_hash"));
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_hash: out is NULL");
    zero_status status = pass_settle(&e->pass);
    return status ? status : weights_hash(&e->state, out);
}

zero_status zero_engine_sum(zero_engine *e, double *values, uint32_t count) {
    TRY(engine_check(e, "zero_engine_sum"));
    if (e->pass.phase != PHASE_DECLARING) TRY(pass_check_outside(&e->pass, "zero_engine_sum"));
    if (count > SUM_VALUES_MAX)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_sum: %" PRIu32 " values; at most %d are possible", count,
                      SUM_VALUES_MAX);
    if (count && !values) return refuse(ZERO_E_ARGUMENT, "zero_engine_sum: values is NULL");
    return ranks_sum(&e->ranks, values, count, "a sum of the host's");
}

static zero_status broadcast(zero_engine *e, const char *what, uint32_t root, void *data, uint64_t bytes) {
    TRY(engine_check_between(e, what));
    if (bytes && !data) return refuse(ZERO_E_ARGUMENT, "%s: data is NULL", what);
    if (root >= e->ranks.size)
        return refuse(ZERO_E_ARGUMENT, "%s: there is no rank %" PRIu32 "; there are %" PRIu32 ", from 0",
                      what, root, e->ranks.size);
    return state_broadcast(&e->state, root, data, bytes);
}

zero_status zero_engine_broadcast(zero_engine *e, void *data, uint64_t bytes) {
    return broadcast(e, "zero_engine_broadcast", 0, data, bytes);
}

zero_status zero_engine_broadcast_from(zero_engine *e, uint32_t root, void *data, uint64_t bytes) {
    return broadcast(e, "zero_engine_broadcast_from", root, data, bytes);
}

/* ---- averages in the place of weights ---- */

zero_status zero_engine_ema_begin(zero_engine *e) {
    TRY(engine_check_steps(e, "zero_engine_ema_begin"));
    TRY(engine_check_filled(e, "zero_engine_ema_begin"));
    TRY(engine_check_written(e, "zero_engine_ema_begin"));
    if (!e->blueprint.terms.precision.average)
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_ema_begin: there are no averaged weights: set ema.decay in the configuration");
    zero_status status = pass_settle(&e->pass);
    return status ? status : state_exchange_averages(&e->state, true);
}

zero_status zero_engine_ema_end(zero_engine *e) {
    TRY(check_between(e, "zero_engine_ema_end"));
    if (!e->state.averaged)
        return refuse(
            ZERO_E_ORDER,
            "zero_engine_ema_end: the weights are in their place; call zero_engine_ema_begin first");
    zero_status status = pass_settle(&e->pass);
    if (!status) status = state_exchange_averages(&e->state, false);
    if (!status) shadow_written(&e->state);
    return status;
}

/* ---- the device for something else ---- */

zero_status zero_engine_park(zero_engine *e, zero_tier tier) {
    zero_status status = engine_check_steps(e, "zero_engine_park");
    if (!status) status = engine_check_written(e, "zero_engine_park");
    if (!status) status = park_check(&e->park, tier);
    if (!status) status = flush(e);
    if (!status) status = park_out(&e->park, (enum tier_kind)tier);
    if (!status) e->pass.phase = PHASE_PARKED;
    return status;
}

zero_status zero_engine_unpark(zero_engine *e) {
    failure_call("zero_engine_unpark", NULL);
    TRY(engine_given(e, "zero_engine_unpark") ? ranks_check(&e->ranks) : ZERO_E_ARGUMENT);
    if (e->pass.phase != PHASE_PARKED)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_unpark: the engine is not parked; call zero_engine_park first");
    zero_status status = park_in(&e->park);
    if (!status) e->pass.phase = PHASE_READY;
    return status;
}

/* ---- checkpoints ---- */

zero_status engine_save(zero_engine *e, struct storage *storage, const char *dir) {
    TRY(engine_check_between(e, "zero_engine_save"));
    TRY(engine_check_filled(e, "zero_engine_save"));
    TRY(engine_check_updates(e, "zero_engine_save"));
    if (!dir || !*dir) return refuse(ZERO_E_ARGUMENT, "zero_engine_save: dir is %s", dir ? "empty" : "NULL");
    if (strlen(dir) >= STORAGE_PATH_BYTES)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_save: dir is longer than %d bytes; use a shorter path",
                      STORAGE_PATH_BYTES - 1);
    TRY(engine_check_written(e, "zero_engine_save"));
    TRY(pass_settle(&e->pass));
    return e->config.checkpoint_async ? background_save_begin(&e->state, storage, dir)
                                      : state_save(&e->state, storage, dir);
}

zero_status zero_engine_save(zero_engine *e, const char *dir) { return engine_save(e, storage_posix(), dir); }

zero_status zero_engine_save_wait(zero_engine *e) {
    TRY(engine_check(e, "zero_engine_save_wait"));
    TRY(pass_check_outside(&e->pass, "zero_engine_save_wait"));
    TRY(background_save_finish(&e->state));
    const struct zero_error *saved = &e->state.saved;
    return saved->code ? refuse_error(saved) : ZERO_OK;
}

zero_status engine_load(zero_engine *e, struct storage *storage, const char *dir, int what) {
    static const char *const calls[] = {[LOAD_ALL] = "zero_engine_load",
                                        [LOAD_WEIGHTS] = "zero_engine_load_weights",
                                        [LOAD_AVERAGE] = "zero_engine_load_ema"};
    TRY(engine_check_steps(e, calls[what]));
    if (!dir || !*dir) return refuse(ZERO_E_ARGUMENT, "%s: dir is %s", calls[what], dir ? "empty" : "NULL");
    TRY(shadow_check_overwriting(&e->state, calls[what]));
    TRY(pass_settle(&e->pass));
    TRY(state_load(&e->state, storage, dir, (enum load_what)what));
    e->state.unseen = false;
    shadow_written(&e->state);
    return ZERO_OK;
}

zero_status zero_engine_load(zero_engine *e, const char *dir) {
    return engine_load(e, storage_posix(), dir, LOAD_ALL);
}

zero_status zero_engine_load_weights(zero_engine *e, const char *dir) {
    return engine_load(e, storage_posix(), dir, LOAD_WEIGHTS);
}

zero_status zero_engine_load_ema(zero_engine *e, const char *dir) {
    return engine_load(e, storage_posix(), dir, LOAD_AVERAGE);
}

zero_status engine_prune(zero_engine *e, struct storage *storage, const char *dir, uint64_t keep) {
    TRY(check_between(e, "zero_engine_prune"));
    if (!dir || !keep) return refuse(ZERO_E_ARGUMENT, "zero_engine_prune: dir is NULL, or keep is 0");
    return state_prune(&e->state, storage, dir, keep);
}

zero_status zero_engine_prune(zero_engine *e, const char *dir, uint64_t keep) {
    return engine_prune(e, storage_posix(), dir, keep);
}

/* ---- notes, and an earlier run's shadow ---- */

zero_status zero_engine_set_note(zero_engine *e, const char *key, const char *value) {
    struct zero_error error = ERROR_NONE;
    TRY(engine_check(e, "zero_engine_set_note"));
    zero_status status = notes_set(&e->state.notes, key, value, e->config.nvme_shadow, &error);
    return status ? refuse_error(&error) : ZERO_OK;
}

static zero_status set_file(zero_engine *e, const char *call, int of_rank, struct program program) {
    zero_status status = engine_check(e, call);
    if (!status) e->state.program[of_rank] = program;
    return status;
}

zero_status zero_engine_set_file(zero_engine *e, const void *data, uint64_t bytes) {
    return set_file(e, "zero_engine_set_file", 0, (struct program){data, data ? bytes : 0});
}

zero_status zero_engine_set_rank_file(zero_engine *e, const void *data, uint64_t bytes) {
    return set_file(e, "zero_engine_set_rank_file", 1, (struct program){data, data ? bytes : 0});
}

const char *zero_engine_note(const zero_engine *e, const char *key) {
    if (!engine_given(e, "zero_engine_note")) return NULL;
    return notes_find(&e->state.notes, key);
}

zero_shadow zero_engine_shadow(const zero_engine *e, uint64_t *out_step) {
    if (!engine_given(e, "zero_engine_shadow")) return ZERO_SHADOW_NONE;
    if (out_step) *out_step = e->state.shadow.steps;
    return e->state.shadow.kind;
}

const char *zero_engine_shadow_text(const zero_engine *e) {
    return engine_given(e, "zero_engine_shadow_text") ? e->state.shadow.text : "";
}

zero_status zero_engine_discard_shadow(zero_engine *e) {
    TRY(engine_check(e, "zero_engine_discard_shadow"));
    if (e->pass.phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_engine_discard_shadow: call it after zero_engine_commit, which "
                                    "finds the shadow, or set zero_runtime.discard_shadow");
    e->state.shadow.discarded = true;
    return ZERO_OK;
}

const char *zero_engine_shadow_note(const zero_engine *e, const char *key) {
    if (!engine_given(e, "zero_engine_shadow_note")) return NULL;
    return notes_find(&e->state.shadow.notes, key);
}

/* ---- learning rates ---- */

zero_status zero_engine_set_lr(zero_engine *e, int group, double lr) {
    struct zero_error error = ERROR_NONE;
    TRY(engine_check(e, "zero_engine_set_lr"));
    return settings_set_lr(&e->training, group, lr, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_set_betas(zero_engine *e, int group, double beta1, double beta2) {
    struct zero_error error = ERROR_NONE;
    TRY(engine_check(e, "zero_engine_set_betas"));
    return settings_set_betas(&e->training, group, beta1, beta2, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_set_params(zero_engine *e, int group, const zero_optimizer_params *params) {
    zero_optimizer_params known = {0};
    struct zero_error error = ERROR_NONE;
    TRY(engine_check(e, "zero_engine_set_params"));
    if (!params) return refuse(ZERO_E_ARGUMENT, "zero_engine_set_params: params is NULL");
    TRY(sized_take(&known, sizeof known, params, params->struct_size, "zero_optimizer_params"));
    return settings_set_params(&e->training, group, &known, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_params(const zero_engine *e, int group, zero_optimizer_params *out) {
    static const char call[] = "zero_engine_params";
    if (!engine_given(e, call)) return ZERO_E_ARGUMENT;
    if (!out) return refuse(ZERO_E_ARGUMENT, "%s: out is NULL", call);
    TRY(sized_check(out->struct_size, "zero_optimizer_params"));
    if (group < 0 || (uint32_t)group >= e->training.groups.count)
        return refuse(ZERO_E_ARGUMENT, "%s: there is no group %d", call, group);
    const struct optimizer_params *p = &e->training.groups.params[group];
    const zero_optimizer_params now = {sizeof now, p->lr,           p->beta1,    p->beta2,
                                       p->eps,     p->weight_decay, p->momentum, p->dampening};
    sized_fill(out, out->struct_size, &now, sizeof now);
    return ZERO_OK;
}

double zero_engine_lr(const zero_engine *e, int group) {
    if (!engine_given(e, "zero_engine_lr") || group < 0 || (uint32_t)group >= e->training.groups.count)
        return -1;
    return e->training.groups.params[group].lr;
}

zero_status zero_engine_set_schedule(zero_engine *e, zero_schedule_fn schedule, void *user) {
    TRY(engine_check(e, "zero_engine_set_schedule"));
    e->training.schedule_fn = schedule;
    e->training.schedule_user = user;
    return ZERO_OK;
}

/* ---- the trace ---- */

zero_status zero_engine_write_trace(zero_engine *e, const char *path) {
    TRY(check_between(e, "zero_engine_write_trace"));
    if (!e->trace || !path)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_write_trace: %s",
                      path ? "nothing is traced: call zero_engine_trace before commit, or give trace.steps"
                           : "the path is NULL");
    zero_status status = pass_settle(&e->pass);
    return status ? status : trace_write(e->trace, path);
}
