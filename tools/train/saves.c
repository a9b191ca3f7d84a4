#include "tools/train/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/steps.h"

#define FOLDER "checkpoints"

void saves_open(const char *run, struct saves *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->directory, sizeof out->directory, "%s/" FOLDER, run);
}

zero_status saves_try(const struct saves *saves, struct zero_error *error) {
    return steps_try(storage_posix(), saves->directory, error);
}

/* ---- the trainer's notes ---- */

static zero_status set_note(zero_engine *engine, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return zero_engine_set_note(engine, key, text);
}

static uint64_t note(const zero_engine *engine, const char *key) {
    const char *text = zero_engine_note(engine, key);
    return text ? strtoull(text, NULL, 10) : 0;
}

static struct position noted(const zero_engine *engine) {
    return (struct position){.steps = note(engine, "steps"),
                             .samples = note(engine, "samples"),
                             .planned = note(engine, "planned_steps")};
}

zero_status saves_note(zero_engine *engine, struct position position) {
    zero_status status = set_note(engine, "steps", position.steps);
    if (status == ZERO_OK) status = set_note(engine, "samples", position.samples);
    return status == ZERO_OK ? set_note(engine, "planned_steps", position.planned) : status;
}

zero_status saves_begin(zero_engine *engine, struct saves *saves) {
    saves->number = zero_engine_steps(engine);
    return zero_engine_save(engine, saves->directory);
}

static void prune(zero_engine *engine, struct saves *saves, uint64_t keep) {
    if (zero_engine_prune(engine, saves->directory, keep) == ZERO_OK || saves->told) return;
    saves->told = true;
    if (zero_engine_rank(engine) == 0)
        fprintf(stderr, "zero train: an old checkpoint stays: %s; new ones are saved all the same\n",
                zero_last_error());
}

zero_status saves_end(zero_engine *engine, struct saves *saves, uint64_t keep) {
    zero_status status = zero_engine_save_wait(engine);
    if (status == ZERO_OK && keep) prune(engine, saves, keep);
    return status;
}

zero_status saves_resume(zero_engine *engine, const char *run, uint64_t step, struct position *out) {
    char path[4096 + 64];
    int length = step ? snprintf(path, sizeof path, "%s/" FOLDER "/step_%08" PRIu64, run, step)
                      : snprintf(path, sizeof path, "%s/" FOLDER, run);
    if (length >= (int)sizeof path) path[0] = 0; /* the engine refuses an empty path */
    zero_status status = zero_engine_load(engine, path);
    *out = noted(engine);
    return status;
}

zero_status saves_recover(zero_engine *engine, zero_fill_fn fill, void *user, struct position *out) {
    zero_status status = zero_engine_recover(engine, fill, user, NULL);
    *out = noted(engine);
    return status;
}
