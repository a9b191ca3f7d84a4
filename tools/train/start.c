/* Opens one rank: its engine, its model, the run's directory, the first weights and the data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/api/inside.h"
#include "engine/config/resolve/resolve.h"
#include "tools/text/output.h"
#include "tools/train/trainer.h"

enum { TRACED_STEPS = 2 }; /* if the configuration does not say */
_Static_assert((int)READER_NO_TARGET == (int)GPT_NO_TARGET &&
                   (int)READER_NEXT_DOCUMENT == (int)GPT_NEXT_DOCUMENT,
               "one number each means no target and a new document");

static void print_log(void *user, zero_log_level level, const char *line) {
    const struct trainer *t = user;
    if (level >= ZERO_LOG_WARN)
        fprintf(stderr, "zero train: rank %u: %s\n", t->rank, line);
    else if (level == ZERO_LOG_INFO && t->prints && !t->job->run.quiet)
        line_print("engine    %s", line);
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
                            .model = t->job->run.model_path,
                            .total_steps = t->steps,
                            .discard_shadow = t->job->run.discard_shadow && !found_wrong(t->job)->code,
                            .cuda = 1};
    trainer_enter(t, INTERRUPT_OPENING, "waiting for the other ranks");
    t->engine = engine_init_obeying(t->job->run.config_json, &runtime);
    if (!t->engine && found_wrong(t->job)->code) return error_pass(t->error, found_wrong(t->job));
    if (!t->engine) return trainer_failed(t, ZERO_E_INTERNAL);
    t->rank = zero_engine_rank(t->engine);
    t->ranks = zero_engine_size(t->engine);
    t->prints = t->rank == 0;
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
static bool begins_anew(const struct trainer *t) { return t->directory.way == RUN_ANEW; }

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
    enum run_way way = t->directory.way;
    bool reads = job->pretrained.weights && way != RUN_RESUME;
    zero_fill_fn fill = reads ? pretrained_fill : gpt_fill;
    void *user = reads ? (void *)&from : init;
    trainer_enter(t, INTERRUPT_OPENING,
                  way == RUN_RESUME ? "loading the checkpoint"
                  : reads           ? "reading the weights"
                                    : "filling the weights");
    zero_status status = way == RUN_RESUME
                             ? saves_resume(t->engine, job->run.path, job->run.resume_step, &t->begin)
                         : way == RUN_RECOVER ? saves_recover(t->engine, fill, user, &t->begin)
                                              : zero_engine_fill(t->engine, fill, user);
    if (status == ZERO_OK) status = set_lr(t);
    if (reads && status == ZERO_OK) weights_note_source(job->pretrained.weights, note_source, t->engine);
    return status == ZERO_OK ? trainer_agree(t)
                             : trainer_failed(t, status); /* a rank may have failed to read */
}

/* Agrees on errors that a process found before its ranks began, then compares the options of all ranks: ranks with
 * different options would wait for each other in different calls. */
static zero_status check_start(struct trainer *t) {
    const struct job *job = t->job;
    const struct zero_error *wrong = found_wrong(job);
    if (wrong->code && (t->prints || wrong == &job->data_error)) error_pass(t->error, wrong);
    TRY(trainer_agree(t));
    zero_status status = rank_check(t->engine, job, t->error);
    return status == ZERO_OK ? trainer_agree(t) : trainer_failed(t, status);
}

/* Runs before anything on the drive is overwritten. */
static zero_status check_shadow(struct trainer *t) {
    t->directory = (struct run_directory){.request = &t->job->run, .engine = t->engine, .prints = t->prints};
    run_directory_find(&t->directory, t->error);
    return trainer_agree(t);
}

/* Rank 0's. */
static zero_status open_directory(struct trainer *t) {
    const struct job *job = t->job;
    const char *path = t->directory.path;
    zero_status status = run_directory_make(&t->directory, t->error);
    if (status == ZERO_OK) status = metrics_open(&t->metrics, path, t->begin.steps, t->error);
    if (status == ZERO_OK)
        status = monitor_open(&job->config, path, begins_anew(t), job->run.overwrite, t->error, t->monitor);
    if (status != ZERO_OK) return status;
    saves_open(path, &t->saves);
    if (job->save_every) status = saves_try(&t->saves, t->error);
    if (status != ZERO_OK) return status;
    if (job->run.overwrite) trainer_trace(t, true, (char[RUN_PATH_BYTES]){0});
    expected_find(job, t->engine, t->gpt, &t->expected);
    struct run_facts facts = {.model = &job->model,
                              .plan = &t->plan,
                              .steps = t->steps,
                              .wire_bytes = t->expected.wire_bytes,
                              .peak = t->expected.source};
    return run_directory_write(&t->directory, &facts, t->error);
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
    trainer_enter(t, INTERRUPT_OPENING, "taking memory");
    if (status == ZERO_OK) status = ask_for_trace(t);
    if (status == ZERO_OK) status = zero_engine_commit(t->engine, &t->plan);
    if (status != ZERO_OK) return trainer_failed(t, status);
    keep_outputs(t);
    TRY(check_start(t));
    TRY(check_shadow(t));
    if (begins_anew(t) && t->prints) open_directory(t);
    TRY(trainer_agree(t));
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
    if (t->prints && !begins_anew(t)) open_directory(t);
}

/* "auto" for the schedule's length is the number of steps, so a run that goes on with another number has another
 * schedule. */
static void tell_resumed(struct trainer *t) {
    const struct job *job = t->job;
    uint64_t planned = t->begin.planned;
    const char *length = config_schedule_length(&job->config);
    if (!t->prints || begins_anew(t)) return;
    if (!job->run.quiet)
        line_print("resumed   after step %" PRIu64 ", at sample %" PRIu64 "%s%s", t->begin.steps,
                   t->begin.samples, t->lr_set ? ", with the configured learning rate" : "",
                   t->directory.way == RUN_RECOVER ? ", from the shadow" : "");
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

zero_status trainer_start(struct trainer *t) {
    TRY(open_engine(t));
    TRY(open_model(t));
    open_files(t);
    TRY(trainer_agree(t));
    TRY(run_directory_share(&t->directory, t->error));
    saves_open(t->directory.path, &t->saves);
    TRY(trainer_count(t));
    progress_open(&t->progress, t->job->run.quiet, t->job->live, t->steps, t->job->config.steps_per_print);
    if (t->prints && !t->job->run.quiet)
        report_start(t->job, begins_anew(t), t->engine, t->gpt, &t->expected, t->directory.path, t->steps);
    tell_resumed(t);
    return ZERO_OK;
}
