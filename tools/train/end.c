/* Runs one rank from its start to its end. All ranks make the same collective calls whatever happens to one of them: the sums at the
 * end of a step tell all ranks of a failure or a signal (agreement.c). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"
#include "tools/train/trainer.h"

static zero_status tell_lost_lines(struct trainer *t, zero_status status) {
    const struct metrics *m = &t->metrics;
    if (!m->lost) return status;
    struct zero_error error = ERROR_NONE;
    error_set(&error, ZERO_E_IO, "%s lacks %" PRIu64 " lines, which could not be written: %s", m->path,
              m->lost, strerror(m->failure));
    if (status == ZERO_OK) return error_pass(t->error, &error);
    fprintf(stderr, "zero train: %s\n", error.message);
    return status;
}

static void close_all(struct trainer *t) {
    trainer_enter(t, INTERRUPT_CLOSING, "closing");
    metrics_close(&t->metrics);
    feed_close(&t->feed);
    free(t->loss);
    gpt_destroy(t->gpt);
    zero_engine_destroy(t->engine);
}

static zero_status finish(struct trainer *t) {
    zero_status status = trainer_agree(t); /* finds a signal that came after the last step */
    if (status != ZERO_OK) return status;
    trainer_enter(t, INTERRUPT_SAVING, "bringing the last step to the drive");
    status = trainer_count(t);
    if (status != ZERO_OK) return status;
    trainer_enter(t, INTERRUPT_RUNNING, "sampling");
    if (t->job->sample) status = generate(t->engine, t->gpt, t->job, t->error);
    if (status == ZERO_E_INTERRUPTED && t->prints) line_print("interrupted while sampling");
    if (status != ZERO_OK) return status;
    char hash[33];
    trainer_enter(t, INTERRUPT_CLOSING, "computing the weights' hash");
    status = zero_engine_hash(t->engine, hash);
    if (status != ZERO_OK) return trainer_failed(t, status);
    if (t->prints) line_print("weights %s", hash);
    if (t->save_error.code) return error_pass(t->error, &t->save_error);
    run_directory_end(&t->directory);
    return ZERO_OK;
}

/* The first step reads all chunks of the shadow. If one is damaged, the step fails, and so would each later --continue. */
static void tell_way_out(const struct trainer *t, zero_status status) {
    bool failed = status == ZERO_E_IO || status == ZERO_E_PEER;
    if (!failed || !t->prints || t->stepped || !t->job->run.again || t->directory.way != RUN_RECOVER) return;
    fprintf(stderr, "zero train: if the shadow is damaged, --discard-shadow gives it up: the run then goes "
                    "on from its latest checkpoint, or begins anew if it has none\n");
}

zero_status trainer_run_rank(const struct job *job, uint32_t rank, struct zero_error *error) {
    struct trainer t = {.job = job, .error = error, .rank = rank, .prints = rank == 0};
    zero_status status = trainer_start(&t);
    if (status == ZERO_OK) status = trainer_loop(&t);
    if (status == ZERO_OK) status = finish(&t);
    status = tell_lost_lines(&t, status);
    tell_way_out(&t, status);
    close_all(&t);
    return status;
}
