/* gradient_accumulation_by_program: a step has as many micro-steps as the program does; and reading, hashing, putting and saving
 * between them, which changes no bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

enum { WIDE = 300, STEPS = 3 };
static const struct plain_param params[] = {{"a", "wide", WIDE, 0, NULL},
                                            {"a", "tiny", 5, ZERO_NO_DECAY, NULL},
                                            {"b", "fixed", 40, ZERO_FROZEN, NULL},
                                            {"b", "other", 33, 0, NULL},
                                            {"c", "tied", WIDE, 0, "wide"}};
enum { PARAMS = sizeof params / sizeof *params };

struct run {
    const uint32_t *micros; /* of each step */
    int looks;              /* between the micro-steps */
    char hash[33];          /* rank 0's */
    float gradient;         /* of the last step */
};

/* What may come between two micro-steps. */
static void look(zero_engine *e) {
    float values[WIDE], again[WIDE];
    char before[33], after[33], dir[512];
    snprintf(dir, sizeof dir, "%s/by_program", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK_INT(zero_engine_hash(e, before), ZERO_OK);
    CHECK_INT(zero_engine_get(e, "wide", ZERO_PARAM, values, 0, WIDE), ZERO_OK);
    CHECK_INT(zero_engine_put(e, "wide", ZERO_PARAM, values, 0, WIDE), ZERO_OK);
    CHECK_INT(zero_engine_get(e, "wide", ZERO_STATE0, again, 0, WIDE), ZERO_OK);
    CHECK_INT(zero_engine_save(e, dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(e, after), ZERO_OK);
    CHECK_STRING(after, before);
    CHECK_INT(zero_engine_load(e, dir), ZERO_E_ORDER);
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char hash[33];
    float one, got[WIDE];
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t m = 0; m < run->micros[step]; m++) {
            if (m && run->looks) look(engine);
            CHECK_INT(plain_pass(&p, ZERO_TRAIN, m), ZERO_OK);
        }
        if (step == STEPS - 1 && run->looks) {
            CHECK_INT(zero_engine_get(engine, "wide", ZERO_GRAD, got, 0, WIDE), ZERO_OK);
            if (!rank) run->gradient = got[7];
            CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_E_ORDER);
            CHECK_CONTAINS(zero_last_error(), "call zero_engine_step");
        }
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    }
    if (run->looks) {
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_E_ORDER);
        CHECK_INT(zero_engine_get(engine, "wide", ZERO_GRAD, &one, 0, 1), ZERO_E_ORDER);
    }
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (!rank) memcpy(run->hash, hash, sizeof hash);
}

static struct run run_with(const struct toy_setup *s, const uint32_t *micros, int looks) {
    struct run run = {.micros = micros, .looks = looks};
    char json[2048];
    toy_config(s, json, sizeof json);
    ranks_run(s->ranks, json, train, &run);
    return run;
}

/* As many as the configuration says: the bits of a configuration that fixes the number. */
static void same_as_counted(struct toy_setup s) {
    static const uint32_t two[STEPS] = {2, 2, 2};
    s.extra = "";
    struct run counted = run_with(&s, two, 0);
    s.extra = ", \"gradient_accumulation_by_program\": true";
    struct run free = run_with(&s, two, 0), looked = run_with(&s, two, 1);
    CHECK_STRING(free.hash, counted.hash);
    CHECK_STRING(looked.hash, counted.hash);
}

/* Another number each step: the same bits at all stages, whatever comes between. The sum is divided by the configuration's number. */
static void any_number(struct toy_setup s, uint64_t divisor, char hash[33], float *gradient) {
    static const uint32_t micros[STEPS] = {3, 1, 4};
    s.micro_steps = (uint32_t)divisor;
    s.extra = ", \"gradient_accumulation_by_program\": true";
    struct run plain = run_with(&s, micros, 0), looked = run_with(&s, micros, 1);
    CHECK_STRING(looked.hash, plain.hash);
    if (!*hash) memcpy(hash, plain.hash, sizeof plain.hash), *gradient = looked.gradient;
    CHECK_STRING(plain.hash, hash);
    CHECK_DOUBLE(looked.gradient, *gradient, 0);
}

int main(void) {
    static const char *const tiers[] = {
        NULL, "\"offload_optimizer\": {\"device\": \"cpu\"}",
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, "
        "\"offload_gradients\": {\"device\": \"nvme\"}"};
    struct toy_setup s = toy_setup_default();
    s.micro_steps = 2;
    for (int every = 0; every < 2; every++)
        for (s.ranks = 1; s.ranks <= 2; s.ranks++) {
            char of_one[33] = "", of_two[33] = "";
            float first = 0, second = 0;
            s.mode = every ? "every" : "last";
            for (s.stage = 0; s.stage <= 3; s.stage++)
                for (int t = 0; t < 3; t++) {
                    int failures = atomic_load(&check_failures);
                    if (t && s.stage != 1 + (uint32_t)t)
                        continue; /* stage 2 in host memory, stage 3 on a drive */
                    s.tiers = tiers[t];
                    same_as_counted(s);
                    any_number(s, 1, of_one, &first);
                    any_number(s, 2, of_two, &second);
                    CHECK_DOUBLE(first, 2 * second, 1e-5 * (first < 0 ? -first : first) + 1e-3);
                    if (atomic_load(&check_failures) != failures)
                        fprintf(stderr, "at stage %u, %u ranks, mode %s, tiers %d\n", s.stage, s.ranks,
                                s.mode, t);
                }
        }
    return check_end();
}
