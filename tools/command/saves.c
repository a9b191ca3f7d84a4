#include "tools/command/saves.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "checkpoints"

/* Rank 0's text on all ranks: the only thing that all ranks can say to each other is a sum. */
static zero_status share(zero_engine *engine, char *text, size_t capacity) {
    enum { AT_ONCE = 64 };
    bool first = zero_engine_rank(engine) == 0;
    for (size_t at = 0; at < capacity; at += AT_ONCE) {
        double values[AT_ONCE] = {0};
        size_t count = capacity - at < AT_ONCE ? capacity - at : AT_ONCE;
        for (size_t i = 0; first && i < count; i++) values[i] = (unsigned char)text[at + i];
        zero_status status = zero_engine_sum(engine, values, (uint32_t)count);
        if (status != ZERO_OK) return status;
        for (size_t i = 0; i < count; i++) text[at + i] = (char)(unsigned char)values[i];
        if (memchr(text + at, 0, count)) break;
    }
    return ZERO_OK;
}

zero_status saves_open(zero_engine *engine, const char *run, struct saves *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->directory, sizeof out->directory, "%s/" FOLDER, run);
    return share(engine, out->directory, sizeof out->directory);
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

zero_status saves_begin(zero_engine *engine, const struct saves *saves, struct position position) {
    zero_status status = set_note(engine, "steps", position.steps);
    if (status == ZERO_OK) status = set_note(engine, "samples", position.samples);
    return status == ZERO_OK ? zero_engine_save(engine, saves->directory) : status;
}

zero_status saves_end(zero_engine *engine, const struct saves *saves, uint64_t keep) {
    zero_status status = zero_engine_save_wait(engine);
    return status == ZERO_OK && keep ? zero_engine_prune(engine, saves->directory, keep) : status;
}

zero_status saves_resume(zero_engine *engine, const char *run, uint64_t step, struct position *out) {
    char path[4096 + 64];
    int length = step ? snprintf(path, sizeof path, "%s/" FOLDER "/step_%08" PRIu64, run, step)
                      : snprintf(path, sizeof path, "%s/" FOLDER, run);
    if (length >= (int)sizeof path) path[0] = 0; /* which the engine refuses */
    zero_status status = zero_engine_load(engine, path);
    *out = (struct position){.steps = note(engine, "steps"), .samples = note(engine, "samples")};
    return status;
}
