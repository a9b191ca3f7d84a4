/* Engines as guests of one process: several at once, many one after another, and ranks that do not agree on
 * their configuration. Leaks are the address sanitizer's to find. */
#include <pthread.h>
#include <stdio.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

static void *train(void *argument) {
    struct toy_result *result = argument;
    struct toy_setup s = toy_setup_default();
    s.stage = (uint32_t)result->status;
    toy_train(&s, result);
    return NULL;
}

/* Worlds side by side, at different stages, train to the same weights. */
static void two_worlds(void) {
    static struct toy_result result[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        result[i].status = i ? 3 : 1; /* in: the stage */
        pthread_create(&thread[i], NULL, train, &result[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) CHECK_STRING(result[i].error, "");
    CHECK_STRING(result[0].hash, result[1].hash);
}

static const struct plain_param params[] = {{"a", "a.w", 500, 0, NULL}, {"b", "b.w", 300, 0, NULL}};

/* One thread, two engines, their calls interleaved. */
static void two_engines(void) {
    struct toy_setup s = toy_setup_default();
    char json[2][2048], hash[2][33];
    zero_engine *engine[2];
    struct plain p[2];
    for (int i = 0; i < 2; i++) {
        s.stage = i ? 3 : 0;
        toy_config(&s, json[i], sizeof json[i]);
        engine[i] = zero_engine_init(json[i]);
        if (!CHECK(engine[i])) return;
        CHECK_INT(plain_open(&p[i], engine[i], params, 2, NULL), ZERO_OK);
    }
    for (int i = 0; i < 2; i++) zero_micro_begin(engine[i], ZERO_TRAIN);
    for (uint32_t u = 0; u < 2; u++)
        for (int i = 0; i < 2; i++) CHECK_INT(plain_forward(&p[i], u), ZERO_OK);
    for (uint32_t u = 2; u-- > 0;)
        for (int i = 0; i < 2; i++) CHECK_INT(plain_backward(&p[i], u, 0), ZERO_OK);
    for (int i = 0; i < 2; i++) CHECK_INT(zero_engine_step(engine[i], NULL), ZERO_OK);
    for (int i = 0; i < 2; i++) CHECK_INT(zero_engine_hash(engine[i], hash[i]), ZERO_OK);
    CHECK_STRING(hash[0], hash[1]);
    for (int i = 0; i < 2; i++) zero_engine_destroy(engine[i]);
}

/* How far a life goes before it ends. */
static void live(zero_engine *engine, uint32_t rank, void *user) {
    int until = *(const int *)user;
    struct plain p;
    if (!CHECK(engine) || until == 0) return;
    CHECK_INT(plain_declare(&p, engine, params, 2), ZERO_OK);
    if (until == 1) return;
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    if (until == 2) return;
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
}

static void fifty_lives(void) {
    struct toy_setup s = toy_setup_default();
    for (int i = 0; i < 50; i++) {
        char json[2048];
        int until = i % 5;
        s.stage = (uint32_t)i % 4;
        s.ranks = 1 + (uint32_t)i % 3;
        toy_config(&s, json, sizeof json);
        ranks_run(s.ranks, json, live, &until);
    }
}

static void refused(zero_engine *engine, uint32_t rank, void *user) {
    CHECK(!engine);
    if (!CHECK_CONTAINS(zero_last_error(), user)) fprintf(stderr, "on rank %u\n", rank);
}

static void ranks_disagree(void) {
    static char json[3][2048];
    const char *each[3] = {json[0], json[1], json[2]};
    struct toy_setup s = toy_setup_default();
    for (uint32_t odd = 0; odd < 3; odd++) {
        for (uint32_t r = 0; r < 3; r++) {
            s.stage = r == odd ? 3 : 2;
            toy_config(&s, json[r], sizeof json[r]);
        }
        ranks_run_each(3, each, refused, "another configuration than rank 0; give all ranks the same");
        /* A rank whose configuration cannot be read at all: the others hear why. */
        snprintf(json[odd], sizeof json[odd], "{\"zero_optimization\": {\"stage\": 4}}");
        for (uint32_t r = 0; r < 3; r++)
            if (r != odd) toy_config(&s, json[r], sizeof json[r]);
        ranks_run_each(3, each, refused, "zero_optimization.stage");
    }
}

/* ---- commits that one rank cannot follow ---- */

struct commit {
    int odd_reserves; /* or declares another model */
    zero_status expected_odd, expected;
    const char *says;
};

static void commit_rank(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param other[] = {{"a", "a.w", 500, 0, NULL}, {"b", "b.w", 301, 0, NULL}};
    const struct commit *c = user;
    struct plain p;
    int odd = rank == 1;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_declare(&p, engine, odd && !c->odd_reserves ? other : params, 2), ZERO_OK);
    if (odd && c->odd_reserves) CHECK_INT(zero_engine_reserve(engine, ZERO_CPU, 2000, "cache"), ZERO_OK);
    zero_status expected = odd ? c->expected_odd : c->expected;
    CHECK_INT(zero_engine_commit(engine, NULL), expected);
    CHECK_CONTAINS(zero_last_error(), c->says);
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), expected); /* sticky */
}

static void commits_disagree(void) {
    struct toy_setup s = toy_setup_default();
    char json[2048];
    s.extra = ", \"memory\": {\"cpu\": 1999}";
    s.ranks = 3;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        toy_config(&s, json, sizeof json);
        struct commit budget = {1, ZERO_E_BUDGET, ZERO_E_PEER, "memory.cpu: the plan needs 2000 bytes"};
        ranks_run(3, json, commit_rank, &budget);
        struct commit model = {0, ZERO_E_DIVERGED, ZERO_E_DIVERGED, "rank 1 has another model than rank 0"};
        ranks_run(3, json, commit_rank, &model);
    }
}

int main(void) {
    commits_disagree();
    two_worlds();
    two_engines();
    fifty_lives();
    ranks_disagree();
    return check_end();
}
