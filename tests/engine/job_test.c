/* Updates, checksums of chunks, and the gathers and reductions of one rank as jobs: the oracle's bits at every stage and on every tier,
 * when each of them is a job; and calls that go on while an update stands still. */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/toy_trainer.h"

#define NVME "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"

#define ALL_NVME NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"

enum { HANGS_AFTER_S = 240 };

static void detach_all(zero_engine *engine) { engine_running(engine)->detached_bytes = 1; }

/* A shadow outlives the run: in a directory of this test alone. */
static const char *shadowed(const char *keys) {
    static char text[1000];
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_job_test";
    snprintf(text, sizeof text, "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}%s",
             directory, keys);
    return text;
}

/* ---- bits ---- */

static struct toy_setup setup(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = 2, s.steps = 4;
    return s;
}

/* Ranks that are threads never copy or sum alone; an engine by itself does. */
static void train(const struct toy_setup *s, struct toy_result *out) {
    char config[4096];
    if (s->ranks > 1) {
        toy_train(s, out);
        return;
    }
    memset(out, 0, sizeof *out);
    CHECK(toy_config(s, config, sizeof config));
    zero_engine *engine = zero_engine_init(config);
    if (CHECK(engine)) toy_train_rank(engine, s, out);
    zero_engine_destroy(engine);
}

/* Returns how many steps were repeated. */
static uint64_t check_equal(struct toy_setup s, const char *name) {
    static struct toy_result expected, got;
    train(&s, &expected);
    s.begin = detach_all;
    train(&s, &got);
    if (!CHECK_STRING(expected.error, "") || !CHECK_STRING(got.error, "") ||
        !CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) ||
        !CHECK_STRING(got.hash, expected.hash))
        fprintf(stderr, "in %s at stage %u\n", name, s.stage);
    return got.repeated;
}

static void bits(void) {
    static const char *const tiers[] = {NULL, NVME};
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (int t = 0; t < 2; t++) {
            struct toy_setup s = setup();
            s.stage = stage, s.tiers = tiers[t], s.evaluate = t, s.ranks = 1 + (stage + (uint32_t)t) % 2;
            s.compute = stage % 2 ? ZERO_BF16 : ZERO_F32;
            check_equal(s, t ? "nvme" : "memory");
        }
    struct toy_setup s = setup();
    s.stage = 2, s.muon = 1;
    check_equal(s, "Muon");
    s.muon = 0, s.lamb = 1;
    check_equal(s, "Lamb");
    for (uint32_t stage = 2; stage <= 3;
         stage++) { /* one rank copies and sums alone, between its micro-steps, too */
        s = setup();
        s.ranks = 1, s.stage = stage, s.vertical = 1, s.micro_steps = 3, s.mode = "every";
        check_equal(s, "one rank, vertical");
        s.updates = 1, s.clip = 0, s.tiers = ALL_NVME;
        if (stage == 3) check_equal(s, "one rank, vertical, all on nvme");
    }
    s = setup();
    s.stage = 3, s.updates = 1, s.clip = 0, s.tiers = NVME;
    check_equal(s, "updates in the backward");
    s.clip = 0.05, s.shadow = 1, s.tiers = shadowed(", \"sub_group_size\": 100"), s.steps = 6;
    CHECK(check_equal(s, "updates in the backward, some of them clipped") > 0);
}

/* ---- an update that stands still ---- */

enum { SMALL = 200 }; /* a region is a little larger than its parameters */

static const struct plain_param model[] = {
    {"a", "a", 100, 0, NULL}, {"b", "b", 5000, 0, NULL}, {"c", "c", 100, 0, NULL}};

static sem_t entered, released;
static atomic_bool stood;

static void prepare(void *user, const zero_optimizer_params *p, uint64_t step, float scalars[16]) {
    scalars[0] = (float)p->lr;
}

static void update(void *user, float *weight, float *mean, float *none, const float *gradient, float scale,
                   const float *scalars, uint64_t count) {
    if (count > SMALL && !atomic_exchange(&stood, true)) sem_post(&entered), sem_wait(&released);
    for (uint64_t i = 0; i < count; i++) weight[i] -= scalars[0] * (gradient[i] * scale);
}

static const zero_optimizer stands_still = {
    .struct_size = sizeof stands_still, .name = "stands_still", .prepare = prepare, .update = update};

/* The updates come in the order of the units. While that of b stands still, all that needs a alone goes on. */
static void calls_go_on(void) {
    zero_engine *engine = NULL;
    zero_counters counters = {.struct_size = sizeof counters};
    struct plain p;
    sem_init(&entered, 0, 0), sem_init(&released, 0, 0);
    engine = zero_engine_init("{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
                              "\"threads\": 1, \"zero_optimization\": {\"stage\": 3, " NVME "}}");
    if (!CHECK(engine)) return;
    detach_all(engine);
    CHECK_INT(zero_engine_set_optimizer(engine, &stands_still), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, model, 3, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    sem_wait(&entered);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    CHECK_INT(zero_forward_end(p.unit[0]), ZERO_OK);
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_OK);
    sem_post(&released);
    for (uint32_t u = 1; u < 3; u++) CHECK_INT(plain_forward(&p, u), ZERO_OK);
    for (uint32_t u = 3; u-- > 0;) CHECK_INT(plain_backward(&p, u, 0), ZERO_OK);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    zero_engine_destroy(engine);
}

int main(void) {
    alarm(HANGS_AFTER_S);
    calls_go_on();
    bits();
    return check_end();
}
