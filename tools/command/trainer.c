/* Trains on one rank. All ranks make the same collective calls whatever happens to one of them: the sums at the end of a
 * step tell all ranks of a failure or a signal (agreement.h). */
#include "tools/command/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/config/given.h"
#include "engine/config/key.h"
#include "engine/inside.h"
#include "tools/command/agreement.h"
#include "tools/command/alike.h"
#include "tools/command/claim.h"
#include "tools/command/generate.h"
#include "tools/command/interrupt.h"
#include "tools/command/metrics.h"
#include "tools/command/monitor.h"
#include "tools/command/products.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/run_file.h"
#include "tools/command/saves.h"
#include "tools/command/share.h"
#include "tools/command/step_sums.h"

enum {
    TRACED_STEPS = 2, /* if the configuration does not say */
    DIRECTORY_BYTES = 4096,
    TRACE_PATH_BYTES = DIRECTORY_BYTES + sizeof "/trace.json"
};
_Static_assert((int)READER_NO_TARGET == (int)GPT_NO_TARGET &&
                   (int)READER_NEXT_DOCUMENT == (int)GPT_NEXT_DOCUMENT,
               "one number each means no target and a new document");

struct trainer {
    const struct job *job;
    struct zero_error *error; /* the rank's first failure */
    uint32_t rank, ranks;
    bool speaks;  /* rank 0 */
    bool lr_set;  /* a run that goes on has the configuration's learning rate */
    bool stops;   /* the ranks agreed to stop after a whole step: its state can be saved */
    bool stepped; /* this process has made a whole step */
    uint64_t steps;
    struct products products;
    struct claim claim;
    struct position begin;           /* where the interrupted run stopped that this run continues */
    char directory[DIRECTORY_BYTES]; /* of the run: rank 0's directory, on all ranks */
    uint64_t traced;                 /* the last step that is traced */
    struct saves saves;
    uint64_t saving;              /* the step whose save has begun; 0: none */
    struct zero_error save_error; /* of the last save, if it failed */
    zero_engine *engine;
    struct gpt *gpt;
    double *loss; /* of each micro-step of a pass */
    struct feed feed;
    struct metrics metrics;
    struct monitor monitor[MONITORS];
    struct progress progress;
    zero_plan plan;
    zero_counters counters; /* as they were when the step began */
};

/* ---- agreement ---- */

static zero_status engine_failed(struct trainer *t, zero_status status) {
    return agreement_engine_failed(status, t->error);
}

/* Ranks of one process share its signals, so rank 0 reports their phase. */
static void enter(const struct trainer *t, enum interrupt_phase phase, const char *doing) {
    if (!t->job->local || t->rank == 0) interrupt_enter(phase, doing);
}

static zero_status sum(struct trainer *t, double *values, uint32_t count) {
    zero_status status = agreement_sum(t->engine, values, count, t->error);
    t->stops = values[FAILED] > 0 || values[INTERRUPTED] > 0;
    return status;
}

static zero_status agree(struct trainer *t) { return sum(t, (double[AGREED]){0}, AGREED); }

/* ---- opening ---- */

static void print_log(void *user, zero_log_level level, const char *line) {
    const struct trainer *t = user;
    if (level >= ZERO_LOG_WARN)
        fprintf(stderr, "zero train: rank %u: %s\n", t->rank, line);
    else if (level == ZERO_LOG_INFO && t->speaks && !t->job->quiet)
        progress_line("engine    %s", line);
}

static uint64_t one_pass(const struct job *job) {
    uint64_t steps = job->dataset.train_order.samples / job->config.train_batch;
    return steps ? steps : 1;
}

/* An error that the process found before its ranks began: another run in the directory, or missing data. */
static const struct zero_error *found_wrong(const struct job *job) {
    return job->lock_error.code ? &job->lock_error : &job->data_error;
}

static zero_status open_engine(struct trainer *t) {
    t->steps = t->job->steps ? t->job->steps : one_pass(t->job);
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = t->job->local,
                            .local_rank = t->rank,
                            .log = print_log,
                            .log_user = t,
                            .model = t->job->model_path,
                            .total_steps = t->steps,
                            .discard_shadow = t->job->discard_shadow && !found_wrong(t->job)->code,
                            .cuda = 1};
    enter(t, INTERRUPT_OPENING, "waiting for the other ranks");
    t->engine = engine_init_obeying(t->job->config_json, &runtime);
    if (!t->engine && found_wrong(t->job)->code) return error_pass(t->error, found_wrong(t->job));
    if (!t->engine) return engine_failed(t, ZERO_E_INTERNAL);
    t->rank = zero_engine_rank(t->engine);
    t->ranks = zero_engine_size(t->engine);
    t->speaks = t->rank == 0;
    if (t->ranks != t->job->ranks)
        return error_set(t->error, ZERO_E_ARGUMENT, "%u ranks were launched, and the engine found %u",
                         t->job->ranks, t->ranks);
    return ZERO_OK;
}

/* By default skips the first step, which spends much of its time on first touches of memory. */
static zero_status ask_for_trace(struct trainer *t) {
    const struct config *c = &t->job->config;
    bool given = c->trace_steps >= 0;
    uint64_t first = given          ? c->trace_first
                     : t->steps > 1 ? 2
                                    : 1,
             steps = given ? (uint64_t)c->trace_steps : TRACED_STEPS;
    t->traced = steps ? first + steps - 1 : 0;
    return zero_engine_trace(t->engine, first, steps);
}

/* A run that begins anew opens its directory before it overwrites anything on the drive. A run that continues opens its
 * directory after it has found its checkpoint or shadow. */
static bool begins_anew(const struct trainer *t) { return t->claim.way == CLAIM_ANEW; }

/* Notes are short if the drive keeps a shadow. A source that cannot be noted costs an export the tokenizer's files. */
static zero_status note_source(void *user, const char *key, const char *value) {
    zero_engine_set_note(user, key, value);
    return ZERO_OK;
}

/* A checkpoint and a shadow have their learning rates. Those that the configuration gives take effect, as its other settings do,
 * unless a schedule sets them. */
static zero_status set_lr(struct trainer *t) {
    const struct config *c = &t->job->config;
    double usual = config_written(c, "optimizer.params.lr") ? c->optimizer.lr : -1;
    zero_status status = ZERO_OK;
    if (begins_anew(t) || c->schedule_row) return ZERO_OK;
    for (uint32_t g = 0; g <= c->groups.count && !status; g++) {
        bool own = g && c->groups.item[g - 1].lr >= 0;
        double lr = own ? c->groups.item[g - 1].lr : usual;
        if (lr >= 0) status = zero_engine_set_lr(t->engine, (int)g, lr), t->lr_set = true;
    }
    return status;
}

static zero_status begin_weights(struct trainer *t, struct gpt_init *init) {
    const struct job *job = t->job;
    struct pretrained_fill from = {&job->pretrained, t->error};
    enum claim_way way = t->claim.way;
    bool reads = job->pretrained.weights && way != CLAIM_RESUME;
    zero_fill_fn fill = reads ? pretrained_fill : gpt_fill;
    void *user = reads ? (void *)&from : init;
    enter(t, INTERRUPT_OPENING,
          way == CLAIM_RESUME ? "loading the checkpoint"
          : reads             ? "reading the weights"
                              : "filling the weights");
    zero_status status = way == CLAIM_RESUME ? saves_resume(t->engine, job->run, job->resume_step, &t->begin)
                         : way == CLAIM_RECOVER ? saves_recover(t->engine, fill, user, &t->begin)
                                                : zero_engine_fill(t->engine, fill, user);
    if (status == ZERO_OK) status = set_lr(t);
    if (reads && status == ZERO_OK) weights_note_source(job->pretrained.weights, note_source, t->engine);
    return status == ZERO_OK ? agree(t) : engine_failed(t, status); /* a rank may have failed to read */
}

/* Agrees on errors that a process found before its ranks began, then compares the options of all ranks: ranks with
 * different options would wait for each other in different calls. */
static zero_status check_start(struct trainer *t) {
    const struct job *job = t->job;
    const struct zero_error *wrong = found_wrong(job);
    if (wrong->code && (t->speaks || wrong == &job->data_error)) error_pass(t->error, wrong);
    zero_status status = agree(t);
    if (status != ZERO_OK) return status;
    status = alike_check(t->engine, job, t->error);
    return status == ZERO_OK ? agree(t) : engine_failed(t, status);
}

static zero_status share_products(struct trainer *t) {
    zero_status status = products_share(&t->products, t->engine, t->gpt, t->error);
    return status == ZERO_OK ? agree(t) : status;
}

/* Runs before anything on the drive is overwritten. */
static zero_status check_shadow(struct trainer *t) {
    t->claim = (struct claim){
        .job = t->job, .engine = t->engine, .speaks = t->speaks, .products = t->products.setting};
    claim_check(&t->claim, t->error);
    return agree(t);
}

/* A directory that did not exist before is locked now. Another run may have begun and ended there meanwhile. */
static zero_status lock_new_directory(struct trainer *t) {
    const struct job *job = t->job;
    if (job->lock->held) return ZERO_OK;
    zero_status status = run_lock_take(job->lock, t->metrics.directory, t->error);
    return status ? status : claim_directory(job, t->metrics.directory, true, t->error);
}

static void trace_path(const struct trainer *t, char out[TRACE_PATH_BYTES]) {
    snprintf(out, TRACE_PATH_BYTES, "%s/trace.json", t->directory);
}

/* The timeline of an earlier run. A failure to remove it shows when the new one is written. */
static void drop_trace(const struct trainer *t) {
    char path[TRACE_PATH_BYTES];
    trace_path(t, path);
    unlink(path); /* the file is made anew: a link is replaced, not followed */
}

/* Rank 0's. */
static zero_status open_directory(struct trainer *t) {
    const struct job *job = t->job;
    zero_status status = claim_same(&t->claim, t->error);
    if (status == ZERO_OK) status = metrics_make_directory(job->run, job->run_is_new, t->error, &t->metrics);
    if (status == ZERO_OK) status = lock_new_directory(t);
    if (status == ZERO_OK) status = metrics_open(&t->metrics, t->begin.steps, t->error);
    if (status == ZERO_OK)
        status = monitor_open(&job->config, t->metrics.directory, begins_anew(t), job->overwrite, t->error,
                              t->monitor);
    if (status != ZERO_OK) return status;
    strcpy(t->directory, t->metrics.directory);
    if (job->overwrite) drop_trace(t);
    status = claim_begin(&t->claim, t->directory, t->error);
    if (status == ZERO_OK) status = products_keep(&t->products, t->directory, t->error);
    if (status == ZERO_OK && job->chosen)
        status = run_file_write_config(job, t->directory, t->error);
    else if (status == ZERO_OK && begins_anew(t))
        status = run_file_drop_config(job, t->directory, t->error);
    if (status == ZERO_OK) status = run_file_write_model(job, t->directory, t->error);
    return status ? status : run_file_write(job, t->engine, &t->plan, t->steps, t->directory, t->error);
}

/* Without this memory the bits are the same, so the other ranks need not know of a failure. */
static void keep_outputs(struct trainer *t) {
    if (gpt_keep_outputs(t->gpt) != ZERO_OK)
        fprintf(stderr, "zero train: rank %u: %s: the backward computes them again, with the same bits\n",
                t->rank, gpt_last_error());
}

static zero_status open_model(struct trainer *t) {
    const char *problem = gpt_engine_problem(t->engine);
    if (problem) return error_set(t->error, ZERO_E_UNSUPPORTED, "%s", problem);
    struct gpt_init init = {
        .seed = t->job->config.seed, .config = t->job->model, .threads = zero_engine_threads(t->engine)};
    t->plan.struct_size = sizeof t->plan;
    zero_status status = gpt_create(t->engine, &t->job->model, (uint32_t)t->job->config.micro_batch, &t->gpt);
    if (status == ZERO_OK) t->loss = calloc(zero_engine_use_micros(t->engine), sizeof *t->loss);
    if (status == ZERO_OK && !t->loss) status = ZERO_E_MEMORY;
    if (status == ZERO_OK) {
        enter(t, INTERRUPT_OPENING, "timing products");
        status = products_find(&t->products, t->job, t->engine, t->gpt, t->error);
    }
    enter(t, INTERRUPT_OPENING, "taking memory");
    if (status == ZERO_OK) status = ask_for_trace(t);
    if (status == ZERO_OK) status = zero_engine_commit(t->engine, &t->plan);
    if (status != ZERO_OK) return engine_failed(t, status);
    keep_outputs(t);
    status = check_start(t);
    if (status == ZERO_OK) status = share_products(t);
    if (status == ZERO_OK) status = check_shadow(t);
    if (status != ZERO_OK) return status;
    if (begins_anew(t) && t->speaks) open_directory(t);
    status = agree(t);
    if (status != ZERO_OK) return status;
    return begin_weights(t, &init);
}

/* Opens the files of one rank; the caller lets the ranks agree on failures. */
static void open_files(struct trainer *t) {
    const struct job *job = t->job;
    if (feed_open(&job->dataset, &job->config, t->rank, t->ranks, t->error, &t->feed) == ZERO_OK) {
        t->feed.first_step = t->begin.steps;
        t->feed.first_sample = t->begin.samples;
        feed_read_step(&t->feed, t->begin.steps, t->error);
    }
    if (t->speaks && !begins_anew(t)) open_directory(t);
}

static zero_status share_directory(struct trainer *t) {
    zero_status status = share_text(t->engine, t->directory, sizeof t->directory);
    if (status != ZERO_OK) return engine_failed(t, status);
    saves_open(t->directory, &t->saves);
    return ZERO_OK;
}

/* Sets the counters so that no step counts the traffic of opening or measuring. */
static zero_status count_from_here(struct trainer *t) {
    zero_status status = zero_engine_flush(t->engine);
    if (status != ZERO_OK) return engine_failed(t, status);
    t->counters.struct_size = sizeof t->counters;
    zero_engine_counters(t->engine, &t->counters);
    return ZERO_OK;
}

/* "auto" for the schedule's length is the number of steps, so a run that goes on with another number has another
 * schedule. */
static void tell_resumed(struct trainer *t) {
    const struct job *job = t->job;
    uint64_t planned = t->begin.planned;
    const char *length = config_schedule_length(&job->config);
    if (!t->speaks || begins_anew(t)) return;
    if (!job->quiet)
        progress_line("resumed   after step %" PRIu64 ", at sample %" PRIu64 "%s%s", t->begin.steps,
                      t->begin.samples, t->lr_set ? ", with the configured learning rate" : "",
                      t->claim.way == CLAIM_RECOVER ? ", from the shadow" : "");
    if (t->begin.steps >= t->steps)
        fprintf(stderr,
                "zero train: nothing is left to train: the run is at step %" PRIu64 ", and %s %" PRIu64
                "; give --steps above that to go on\n",
                t->begin.steps, job->steps ? "--steps is" : "one pass over the samples ends at step",
                t->steps);
    else if (planned && planned != t->steps && length)
        fprintf(stderr,
                "zero train: the learning rate's schedule moves: the earlier part was for %" PRIu64
                " steps, this one is for %" PRIu64 ", and %s is \"auto\"\n",
                planned, t->steps, length);
}

static zero_status open_all(struct trainer *t) {
    zero_status status = open_engine(t);
    if (status == ZERO_OK) status = open_model(t);
    if (status != ZERO_OK) return status;
    open_files(t);
    status = agree(t);
    if (status == ZERO_OK) status = share_directory(t);
    if (status == ZERO_OK) status = claim_note(&t->claim, t->error);
    if (status == ZERO_OK) status = count_from_here(t);
    if (status != ZERO_OK) return status;
    progress_open(&t->progress, t->job->quiet, t->job->live, t->steps, t->job->config.steps_per_print);
    if (t->speaks && !t->job->quiet)
        report_start(t->job, begins_anew(t), t->engine, t->gpt, t->metrics.directory, t->steps);
    tell_resumed(t);
    return ZERO_OK;
}

static void close_all(struct trainer *t) {
    enter(t, INTERRUPT_CLOSING, "closing");
    metrics_close(&t->metrics);
    feed_close(&t->feed);
    free(t->loss);
    gpt_destroy(t->gpt);
    zero_engine_destroy(t->engine);
}

/* ---- a step ---- */

/* If some targets do not count, the loss is the mean over the targets of the step that count, on all ranks. */
static zero_status agree_divisor(struct trainer *t, uint64_t step) {
    gpt_set_divisor(t->gpt, 0);
    if (!feed_leaves_out(t->job->dataset.train, &t->job->dataset.train_order)) return ZERO_OK;
    double counted = (double)feed_counted(&t->feed, (uint64_t)t->feed.micro_count * t->feed.batch);
    zero_status status = zero_engine_sum(t->engine, &counted, 1);
    if (status != ZERO_OK) return engine_failed(t, status);
    if (counted == 0 && t->speaks)
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
        if (status != ZERO_OK) return engine_failed(t, status);
        for (uint32_t m = 0; m < micros; m++) total += t->loss[m];
    }
    *out_loss = total / t->feed.micro_count;
    status = zero_engine_step(t->engine, out_info);
    return status == ZERO_OK ? ZERO_OK : engine_failed(t, status);
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
        zero_status status =
            gpt_evaluate_some(t->gpt, t->feed.tokens, t->feed.targets, count ? count : 1, &loss);
        if (status != ZERO_OK) return engine_failed(t, status);
        sums[0] += loss * weight, sums[1] += weight;
    }
    zero_status status = zero_engine_sum(t->engine, sums, 2);
    *out_loss = sums[0] / sums[1]; /* without a target that counts: NaN, which is not written */
    return status == ZERO_OK ? ZERO_OK : engine_failed(t, status);
}

/* Whatever the measurement returns, the weights come back. */
static zero_status measure_averages(struct trainer *t, double *out_loss) {
    zero_status status = zero_engine_ema_begin(t->engine);
    if (status != ZERO_OK) return engine_failed(t, status);
    zero_status measured = measure_weights(t, out_loss);
    status = zero_engine_ema_end(t->engine);
    if (measured != ZERO_OK) return measured;
    return status == ZERO_OK ? ZERO_OK : engine_failed(t, status);
}

static zero_status measure_held_out(struct trainer *t, struct record *record) {
    zero_status status = measure_weights(t, &record->eval_loss);
    if (status == ZERO_OK && t->job->eval_average) status = measure_averages(t, &record->eval_loss_ema);
    return status == ZERO_OK ? count_from_here(t) : status;
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
    record->drive_life_days = t->plan.drive_life_steps > 0 ? t->plan.drive_life_steps * seconds / 86400 : NAN;
    report_tiers(t->engine, record->bytes);
}

static zero_status note_position(struct trainer *t, uint64_t step) {
    uint64_t steps = step - t->begin.steps;
    struct position position = {step, t->begin.samples + steps * t->job->config.train_batch, t->steps};
    zero_status status = saves_note(t->engine, position);
    if (status == ZERO_OK) status = identity_note_end(t->engine, step == t->steps);
    return status == ZERO_OK ? ZERO_OK : engine_failed(t, status);
}

/* Runs one whole step. Reads the next step's data before the ranks agree, so that a failure to read shows in time. */
static zero_status run_step(struct trainer *t, struct record *record) {
    uint64_t began_ns = clock_now_ns(), held_out_ns = 0;
    double sums[SUMS] = {0};
    zero_step_info info = {.struct_size = sizeof info};
    zero_status status = train_step(t, record->step, &sums[LOSS], &info);
    if (status != ZERO_OK) return status;
    status = note_position(t, record->step);
    if (status != ZERO_OK) return status;
    bool last = record->step == t->steps;
    bool counts_process = !t->job->local || t->speaks; /* threads share one process, so rank 0 counts it */
    step_sums_count(t->engine, counts_process, &t->counters, sums);
    record->eval_loss = record->eval_loss_ema = NAN;
    if (t->job->eval_every && (last || record->step % t->job->eval_every == 0)) {
        uint64_t from_ns = clock_now_ns();
        status = measure_held_out(t, record);
        if (status != ZERO_OK) return status;
        held_out_ns = clock_now_ns() - from_ns;
    }
    if (!last) feed_read_step(&t->feed, record->step, t->error);
    status = sum(t, sums, SUMS);
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
        fprintf(stderr,
                "zero train: step %" PRIu64
                ": cannot write %s: %s; training goes on, and the lines that are lost are counted\n",
                record->step, t->metrics.path, strerror(t->metrics.failure));
}

static zero_status tell_lost_lines(struct trainer *t, zero_status status) {
    const struct metrics *m = &t->metrics;
    if (!m->lost) return status;
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_IO, "%s lacks %" PRIu64 " lines, which could not be written: %s", m->path,
              m->lost, strerror(m->failure));
    if (status == ZERO_OK) return error_pass(t->error, &error);
    fprintf(stderr, "zero train: %s\n", error.message);
    return status;
}

/* If a save fails, the run loses only this checkpoint and continues. It reports the failure now, and again at the
 * end. */
static void note_save(struct trainer *t, zero_status status, const char *message) {
    error_clear(&t->save_error);
    if (status == ZERO_OK) return;
    error_set(&t->save_error, status, "saving at step %" PRIu64 ": %s", t->saving, message);
    if (t->speaks) fprintf(stderr, "zero train: %s\n", t->save_error.message);
    t->saving = 0;
}

static void end_save(struct trainer *t) {
    enter(t, INTERRUPT_SAVING, "saving a checkpoint");
    if (t->saving) {
        zero_status status = saves_end(t->engine, &t->saves, t->job->keep);
        note_save(t, status, zero_last_error());
        if (status == ZERO_OK && t->speaks && !t->job->quiet)
            progress_line("saved     after step %" PRIu64 ": %s/step_%08" PRIu64, t->saving,
                          t->saves.directory, t->saves.number);
    }
    t->saving = 0;
    enter(t, INTERRUPT_RUNNING, "training");
}

/* Refuses to save into a directory that another run may have replaced. Rank 0 holds the lock and tells all ranks. */
static zero_status begin_save(struct trainer *t, struct zero_error *error) {
    double lost = t->speaks && !run_lock_held(t->job->lock);
    zero_status status = zero_engine_sum(t->engine, &lost, 1);
    if (status == ZERO_OK && lost > 0)
        return error_set(error, ZERO_E_IO,
                         "the run's directory was replaced while it ran: %s/lock is not this run's any more; "
                         "move the directory back, or begin again with another --run DIR",
                         t->directory);
    if (status == ZERO_OK) status = saves_begin(t->engine, &t->saves);
    return status == ZERO_OK ? ZERO_OK : error_set(error, status, "%s", zero_last_error());
}

/* Saves in the background, until the next save begins or the run ends; or saves now. */
static zero_status save(struct trainer *t, uint64_t step) {
    struct zero_error error;
    error_clear(&error);
    end_save(t);
    t->saving = step;
    enter(t, INTERRUPT_SAVING, "saving a checkpoint");
    note_save(t, begin_save(t, &error), error.message);
    enter(t, INTERRUPT_RUNNING, "training");
    if (!t->job->config.checkpoint_async) end_save(t);
    return count_from_here(t);
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
    char path[TRACE_PATH_BYTES];
    t->traced = 0;
    trace_path(t, path);
    if (t->speaks) drop_trace(t);
    if (zero_engine_write_trace(t->engine, path) != ZERO_OK && t->speaks)
        fprintf(stderr, "zero train: %s\n", zero_last_error());
}

static zero_status run_steps(struct trainer *t) {
    struct record record = {0};
    zero_status status = ZERO_OK;
    bool interrupted = false;
    enter(t, INTERRUPT_RUNNING, "training");
    for (record.step = t->begin.steps + 1; status == ZERO_OK && record.step <= t->steps; record.step++) {
        status = run_step(t, &record);
        interrupted = status == ZERO_E_INTERRUPTED;
        bool whole = status == ZERO_OK || t->stops;
        t->stepped |= whole;
        if (t->speaks && whole) write_step(t, &record);
        status = save_if_due(t, record.step, status);
        if (status == ZERO_OK && t->traced && record.step - t->begin.steps == t->traced) write_trace(t);
    }
    record.step--;
    bool whole = status == ZERO_OK || t->stops;
    if (whole) end_save(t);
    if (t->traced && whole) write_trace(t);
    if (t->speaks) progress_close(&t->progress);
    if (interrupted && t->speaks) progress_line("interrupted after step %" PRIu64, record.step);
    if (!interrupted || !t->save_error.code) return status;
    error_clear(t->error); /* the failed save matters more than the interruption */
    return error_pass(t->error, &t->save_error);
}

static zero_status finish(struct trainer *t) {
    zero_status status = agree(t); /* finds a signal that came after the last step */
    if (status != ZERO_OK) return status;
    enter(t, INTERRUPT_SAVING, "bringing the last step to the drive");
    status = count_from_here(t);
    if (status != ZERO_OK) return status;
    enter(t, INTERRUPT_RUNNING, "sampling");
    if (t->job->sample) status = generate(t->engine, t->gpt, t->job, t->error);
    if (status == ZERO_E_INTERRUPTED && t->speaks) progress_line("interrupted while sampling");
    if (status != ZERO_OK) return status;
    char hash[33];
    enter(t, INTERRUPT_CLOSING, "computing the weights' hash");
    status = zero_engine_hash(t->engine, hash);
    if (status != ZERO_OK) return engine_failed(t, status);
    if (t->speaks) progress_line("weights %s", hash);
    if (t->save_error.code) return error_pass(t->error, &t->save_error);
    claim_end(&t->claim, t->directory);
    return ZERO_OK;
}

/* The first step reads all chunks of the shadow. If one is damaged, the step fails, and so would each later --continue. */
static void tell_way_out(const struct trainer *t, zero_status status) {
    bool failed = status == ZERO_E_IO || status == ZERO_E_PEER;
    if (!failed || !t->speaks || t->stepped || !t->job->again || t->claim.way != CLAIM_RECOVER) return;
    fprintf(stderr, "zero train: if the shadow is damaged, --discard-shadow gives it up: the run then goes "
                    "on from its latest checkpoint, or begins anew if it has none\n");
}

zero_status trainer_run(const struct job *job, uint32_t rank, struct zero_error *error) {
    struct trainer t = {.job = job, .error = error, .rank = rank, .speaks = rank == 0};
    zero_status status = open_all(&t);
    if (status == ZERO_OK) status = run_steps(&t);
    if (status == ZERO_OK) status = finish(&t);
    status = tell_lost_lines(&t, status);
    tell_way_out(&t, status);
    close_all(&t);
    return status;
}
