/* The steps of one rank, with the measurements, saves and lines between them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tools/text/format.h"
#include "tools/text/output.h"
#include "tools/train/trainer.h"

/* ---- a step ---- */

/* If some targets do not count, the loss is the mean over the targets of the step that count, on all ranks. */
static zero_status agree_divisor(struct trainer *t, uint64_t step) {
    gpt_set_divisor(t->gpt, 0);
    if (!feed_leaves_out(t->job->dataset.train, &t->job->dataset.train_order)) return ZERO_OK;
    double counted = (double)feed_counted(&t->feed, (uint64_t)t->feed.micro_count * t->feed.batch);
    zero_status status = zero_engine_sum(t->engine, &counted, 1);
    if (status != ZERO_OK) return trainer_failed(t, status);
    if (counted == 0 && t->prints)
        fprintf(stderr, "zero train: step %" PRIu64 ": no target of it counts: its gradient is zero\n", step);
    gpt_set_divisor(t->gpt, (counted ? counted : 1) / ((double)t->ranks * t->feed.micro_count));
    return ZERO_OK;
}

static zero_status train_step(struct trainer *t, uint64_t step, double *out_loss, zero_step_info *out_info) {
    double total = 0;
    zero_status status = agree_divisor(t, step);
    if (status != ZERO_OK) return status;
    uint32_t micros = (uint32_t)zero_engine_use_micros(t->engine);
    for (uint32_t micro = 0; micro < t->feed.micro_count; micro += micros) {
        size_t at = (size_t)micro * t->feed.batch * t->feed.context;
        status = gpt_train(t->gpt, t->feed.tokens + at, t->feed.targets + at, t->loss);
        if (status != ZERO_OK) return trainer_failed(t, status);
        for (uint32_t m = 0; m < micros; m++) total += t->loss[m];
    }
    *out_loss = total / t->feed.micro_count;
    status = zero_engine_step(t->engine, out_info);
    return status == ZERO_OK ? ZERO_OK : trainer_failed(t, status);
}

/* The other ranks wait for every collective call. A rank that cannot read therefore continues with the tokens in its
 * buffer, and a rank without samples left evaluates one sequence that does not count. */
static zero_status measure_weights(struct trainer *t, double *out_loss) {
    double sums[2] = {0}; /* of losses and of their weights */
    const struct dataset *data = &t->job->dataset;
    bool some = feed_leaves_out(data->held_out, &data->held_out_order);
    for (uint64_t micro = 0; micro < t->feed.held_out_micros; micro++) {
        double loss;
        uint32_t count;
        feed_read_held_out(&t->feed, micro, &count, t->error);
        double weight = some ? (double)feed_counted(&t->feed, count) : count;
        gpt_set_divisor(t->gpt, some && weight ? weight : 0);
        zero_status status = gpt_evaluate(t->gpt, t->feed.tokens, t->feed.targets, count ? count : 1, &loss);
        if (status != ZERO_OK) return trainer_failed(t, status);
        sums[0] += loss * weight, sums[1] += weight;
    }
    zero_status status = zero_engine_sum(t->engine, sums, 2);
    *out_loss = sums[0] / sums[1]; /* without a target that counts: NaN, which is not written */
    return status == ZERO_OK ? ZERO_OK : trainer_failed(t, status);
}

/* Whatever the measurement returns, the weights come back. */
static zero_status measure_averages(struct trainer *t, double *out_loss) {
    zero_status status = zero_engine_ema_begin(t->engine);
    if (status != ZERO_OK) return trainer_failed(t, status);
    zero_status measured = measure_weights(t, out_loss);
    status = zero_engine_ema_end(t->engine);
    if (measured != ZERO_OK) return measured;
    return status == ZERO_OK ? ZERO_OK : trainer_failed(t, status);
}

static zero_status measure_held_out(struct trainer *t, struct record *record) {
    zero_status status = measure_weights(t, &record->eval_loss);
    if (status == ZERO_OK && t->job->eval_average) status = measure_averages(t, &record->eval_loss_ema);
    return status == ZERO_OK ? trainer_count(t) : status;
}

/* Bytes allocated per tier. */
static void sum_tiers(const zero_engine *engine, uint64_t bytes[ZERO_TIERS]) {
    zero_memory_row row = {.struct_size = sizeof row};
    for (int tier = 0; tier < ZERO_TIERS; tier++) bytes[tier] = 0;
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) bytes[row.tier] += row.measured;
}

static void fill_record(const struct trainer *t, const double sums[SUMS], const zero_step_info *info,
                        double seconds, struct record *record) {
    step_sums_record(sums, t->ranks, seconds, record);
    record->grad_norm = info->grad_norm;
    record->lr = info->lr;
    record->groups = info->groups;
    memcpy(record->group_lr, info->group_lr, sizeof record->group_lr);
    const struct lr_schedule *schedule = t->job->config.schedule_row;
    record->beta1 = schedule && schedule->cycles_momentum ? info->beta1 : NAN;
    record->skipped = info->skipped != 0;
    record->skipped_total = info->skipped_total;
    record->repeated = info->repeated != 0;
    record->repeated_total = info->repeated_total;
    record->tokens = t->job->config.train_batch * t->feed.context;
    record->tokens_per_s = (double)record->tokens / seconds;
    record->mfu = t->expected.flops / seconds / t->expected.peak_flops;
    record->drive_life_days = t->plan.drive_life_steps > 0 ? t->plan.drive_life_steps * seconds / 86400 : NAN;
    sum_tiers(t->engine, record->bytes);
    record->memory_bytes = record->bytes[ZERO_DEVICE] + record->bytes[ZERO_CPU];
}

static zero_status note_position(struct trainer *t, uint64_t step) {
    uint64_t steps = step - t->begin.steps;
    struct position position = {step, t->begin.samples + steps * t->job->config.train_batch, t->steps};
    zero_status status = saves_note(t->engine, position);
    if (status == ZERO_OK) status = identity_note_end(t->engine, step == t->steps);
    return status == ZERO_OK ? ZERO_OK : trainer_failed(t, status);
}

/* Runs one whole step. Reads the next step's data before the ranks agree, so that a failure to read shows in time. */
static zero_status run_step(struct trainer *t, struct record *record) {
    uint64_t began_ns = clock_now_ns(), held_out_ns = 0;
    double sums[SUMS] = {0};
    zero_step_info info = {.struct_size = sizeof info};
    TRY(train_step(t, record->step, &sums[LOSS], &info));
    zero_status status = note_position(t, record->step);
    if (status != ZERO_OK) return status;
    bool last = record->step == t->steps;
    bool counts_process = !t->job->local || t->prints; /* threads share one process, so rank 0 counts it */
    step_sums_count(t->engine, counts_process, &t->counters, sums);
    record->eval_loss = record->eval_loss_ema = NAN;
    if (t->job->eval_every && (last || record->step % t->job->eval_every == 0)) {
        uint64_t from_ns = clock_now_ns();
        status = measure_held_out(t, record);
        if (status != ZERO_OK) return status;
        held_out_ns = clock_now_ns() - from_ns;
    }
    if (!last) feed_read_step(&t->feed, record->step, t->error);
    status = trainer_sum(t, sums, SUMS);
    if (status != ZERO_OK && !t->stops) return status;
    fill_record(t, sums, &info, (double)(clock_now_ns() - began_ns - held_out_ns) * 1e-9, record);
    return status;
}

/* If a line cannot be written, the run continues. It reports the loss once now, and again at the end. */
static void write_step(struct trainer *t, const struct record *record) {
    uint64_t lost = t->metrics.lost;
    uint64_t steps = record->step - t->begin.steps;
    metrics_write(&t->metrics, record);
    monitor_write(t->monitor, record, t->begin.samples + steps * t->job->config.train_batch);
    progress_step(&t->progress, record);
    if (!lost && t->metrics.lost)
        format_line(stderr,
                    "zero train: step %" PRIu64
                    ": cannot write %s: %s; training goes on, and the lines that are lost are counted",
                    record->step, t->metrics.path, strerror(t->metrics.failure));
}

/* ---- between steps ---- */

/* If a save fails, the run loses only this checkpoint and continues. It reports the failure now, and again at the
 * end. */
static void note_save(struct trainer *t, zero_status status, const char *message) {
    error_clear(&t->save_error);
    if (status == ZERO_OK) return;
    error_set(&t->save_error, status, "saving at step %" PRIu64 ": %s", t->saving, message);
    if (t->prints) fprintf(stderr, "zero train: %s\n", t->save_error.message);
    t->saving = 0;
}

static void end_save(struct trainer *t) {
    trainer_enter(t, INTERRUPT_SAVING, "saving a checkpoint");
    if (t->saving) {
        zero_status status = saves_end(t->engine, &t->saves, t->job->keep);
        note_save(t, status, zero_last_error());
        if (status == ZERO_OK && t->prints && !t->job->run.quiet)
            line_print("saved     after step %" PRIu64 ": %s/step_%08" PRIu64, t->saving, t->saves.directory,
                       t->saves.number);
    }
    t->saving = 0;
    trainer_enter(t, INTERRUPT_RUNNING, "training");
}

/* Refuses to save into a directory that another run may have replaced. Rank 0 holds the lock and tells all ranks. */
static zero_status begin_save(struct trainer *t, struct zero_error *error) {
    double lost = t->prints && !run_lock_held(t->job->run.lock);
    zero_status status = zero_engine_sum(t->engine, &lost, 1);
    if (status == ZERO_OK && lost > 0)
        return error_set(error, ZERO_E_IO,
                         "the run's directory was replaced while it ran: %s/lock is not this run's any more; "
                         "move the directory back, or begin again with another --run DIR",
                         t->directory.path);
    if (status == ZERO_OK) status = saves_begin(t->engine, &t->saves);
    return status == ZERO_OK ? ZERO_OK : error_set(error, status, "%s", zero_last_error());
}

/* Saves in the background, until the next save begins or the run ends; or saves now. */
static zero_status save(struct trainer *t, uint64_t step) {
    struct zero_error error = ERROR_NONE;
    end_save(t);
    t->saving = step;
    trainer_enter(t, INTERRUPT_SAVING, "saving a checkpoint");
    note_save(t, begin_save(t, &error), error.message);
    trainer_enter(t, INTERRUPT_RUNNING, "training");
    if (!t->job->config.checkpoint_async) end_save(t);
    return trainer_count(t);
}

static bool save_is_due(const struct trainer *t, uint64_t step) {
    uint64_t every = t->job->save_every;
    return every && (step % every == 0 || step == t->steps || t->stops);
}

static zero_status save_if_due(struct trainer *t, uint64_t step, zero_status status) {
    if ((status != ZERO_OK && !t->stops) || !save_is_due(t, step)) return status;
    zero_status saved = save(t, step);
    return status == ZERO_OK ? saved : status;
}

/* If the timeline cannot be written, the run loses nothing else. */
static void write_trace(struct trainer *t) {
    char path[RUN_PATH_BYTES];
    t->traced = 0;
    trainer_trace(t, t->prints, path);
    if (zero_engine_write_trace(t->engine, path) != ZERO_OK && t->prints)
        fprintf(stderr, "zero train: %s\n", zero_last_error());
}

zero_status trainer_loop(struct trainer *t) {
    struct record record = {0};
    zero_status status = ZERO_OK;
    bool interrupted = false;
    trainer_enter(t, INTERRUPT_RUNNING, "training");
    for (record.step = t->begin.steps + 1; status == ZERO_OK && record.step <= t->steps; record.step++) {
        status = run_step(t, &record);
        interrupted = status == ZERO_E_INTERRUPTED;
        bool whole = status == ZERO_OK || t->stops;
        t->stepped |= whole;
        if (t->prints && whole) write_step(t, &record);
        status = save_if_due(t, record.step, status);
        if (status == ZERO_OK && t->traced && record.step - t->begin.steps == t->traced) write_trace(t);
    }
    record.step--;
    bool whole = status == ZERO_OK || t->stops;
    if (whole) end_save(t);
    if (t->traced && whole) write_trace(t);
    if (t->prints) progress_close(&t->progress);
    if (interrupted && t->prints) line_print("interrupted after step %" PRIu64, record.step);
    if (!interrupted || !t->save_error.code) return status;
    error_clear(t->error); /* the failed save matters more than the interruption */
    return error_pass(t->error, &t->save_error);
}
