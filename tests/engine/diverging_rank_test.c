/* One rank does something different from the others, at every stage. Each other rank must end with a failure that names
 * it, in time, and stay failed; no rank may hang or touch freed memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

enum { RANKS = 3, ODD = 1, STEPS = 4, TOLD_MS = 60000 };

static const struct plain_param params[] = {{"a", "a.w", 5000, 0, NULL},
                                            {"a", "a.b", 5, 0, NULL},
                                            {"b", "b.w", 7000, 0, NULL},
                                            {"c", "c.w", 300, 0, NULL},
                                            {"d", "d.w", 5000, 0, "a.w"}};
enum { PARAMS = sizeof params / sizeof *params };

/* The action of the odd rank in step 1. When the function returns, the rank's engine is destroyed. */
typedef void (*odd_fn)(struct plain *p);

static void leaves_at_once(struct plain *p) {}

static void leaves_before_its_first_unit(struct plain *p) { zero_micro_begin(p->engine, ZERO_TRAIN); }

static void leaves_after_forward(struct plain *p) {
    zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units; u++) plain_forward(p, u);
}

static void leaves_inside_a_unit(struct plain *p) {
    zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units; u++) plain_forward(p, u);
    plain_backward(p, 3, 0);
    zero_backward_begin(p->unit[2]);
}

static void leaves_instead_of_the_step(struct plain *p) { plain_pass(p, ZERO_TRAIN, 0); }

static char hashes[2][33]; /* of a run in which no rank evaluates; in which one does */
static atomic_uint told;   /* how many other ranks have ended with a failure */

static void is_silent(struct plain *p) {
    zero_micro_begin(p->engine, ZERO_TRAIN);
    for (int ms = 0; ms < TOLD_MS && atomic_load(&told) < RANKS - 1; ms += 10)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK(plain_forward(p, 0) || plain_pass(p, ZERO_TRAIN, 0) || zero_engine_step(p->engine, NULL));
}

static void skips_a_unit(struct plain *p) {
    zero_status status = zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units && !status; u++)
        if (u != 1) status = plain_forward(p, u);
    for (uint32_t u = p->units; u-- > 0 && !status;)
        if (u != 1) status = plain_backward(p, u, 0);
    if (!status) status = zero_engine_step(p->engine, NULL);
    CHECK(status);
}

static void sums_other_values(struct plain *p) {
    double value[2] = {0};
    CHECK_INT(plain_step(p, 1, NULL), ZERO_OK);
    zero_status status = zero_engine_sum(p->engine, value, 2);
    if (!status) status = plain_step(p, 1, NULL);
    CHECK(status);
}

static void hashes_instead(struct plain *p) {
    char hash[33];
    zero_status status = zero_engine_hash(p->engine, hash);
    if (!status) status = plain_step(p, 1, NULL);
    CHECK(status);
}

static void says_why(struct plain *p) {
    CHECK_INT(zero_engine_fail(p->engine, "no batch is left"), ZERO_OK);
    CHECK_INT(zero_engine_flush(p->engine), ZERO_E_INTERRUPTED);
    CHECK_INT(zero_engine_fail(p->engine, "again"), ZERO_E_INTERRUPTED);
    CHECK_STRING(zero_last_error(), "no batch is left");
}

static const struct odd {
    const char *name;
    odd_fn act;
} odds[] = {{"leaves at once", leaves_at_once},
            {"leaves before its first unit", leaves_before_its_first_unit},
            {"leaves after forward", leaves_after_forward},
            {"leaves inside a unit", leaves_inside_a_unit},
            {"leaves instead of the step", leaves_instead_of_the_step},
            {"is silent", is_silent},
            {"skips a unit", skips_a_unit},
            {"sums other values", sums_other_values},
            {"hashes instead", hashes_instead},
            {"says why", says_why}};

struct run {
    const struct odd *odd;
    uint32_t stage;
    pthread_barrier_t *together;
};

static void check_sticky(struct plain *p, zero_status status) {
    char sentence[512], hash[33];
    float element;
    double value = 0;
    snprintf(sentence, sizeof sentence, "%s", zero_last_error());
    CHECK_INT(zero_micro_begin(p->engine, ZERO_TRAIN), status);
    CHECK_INT(zero_forward_begin(p->unit[0]), status);
    CHECK_INT(zero_engine_step(p->engine, NULL), status);
    CHECK_INT(zero_engine_hash(p->engine, hash), status);
    CHECK_INT(zero_engine_sum(p->engine, &value, 1), status);
    CHECK_INT(zero_engine_flush(p->engine), status);
    CHECK_INT(zero_engine_get(p->engine, "a.w", ZERO_PARAM, &element, 0, 1), status);
    CHECK_STRING(zero_last_error(), sentence);
}

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct plain p;
    double sum = 1;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    pthread_barrier_wait(run->together);
    if (rank == ODD) {
        run->odd->act(&p);
        return;
    }
    uint64_t began = clock_now_ns();
    zero_status status = ZERO_OK;
    for (int step = 1; step < STEPS && !status; step++) {
        status = plain_step(&p, 1, NULL);
        if (!status) status = zero_engine_sum(engine, &sum, 1);
    }
    atomic_fetch_add(&told, 1);
    int good = CHECK(status == ZERO_E_PEER || status == ZERO_E_DIVERGED);
    good &= CHECK((clock_now_ns() - began) / 1000000 < TOLD_MS);
    good &= CHECK_CONTAINS(zero_last_error(), "rank 1");
    if (run->odd->act == says_why)
        good &= CHECK_CONTAINS(zero_last_error(), "rank 1 failed: no batch is left");
    if (!good)
        fprintf(stderr, "in %s, stage %u, rank %u: %s\n", run->odd->name, run->stage, rank,
                zero_last_error());
    if (rank == 0) printf("stage %u, %s: %s\n", run->stage, run->odd->name, zero_last_error());
    if (status) check_sticky(&p, status);
}

/* In the first of two micro-steps nothing is reduced: a unit that one rank skips there changes no collective, and only
 * the step's agreement can tell. */
static void skips_where_nothing_is_posted(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    zero_status status = zero_micro_begin(engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p.units && !status; u++)
        if (u != 1 || rank != ODD) status = plain_forward(&p, u);
    for (uint32_t u = p.units; u-- > 0 && !status;)
        if (u != 1 || rank != ODD) status = plain_backward(&p, u, 0);
    CHECK_INT(status, ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 1), ZERO_OK);
    status = zero_engine_step(engine, NULL);
    CHECK(status == ZERO_E_DIVERGED || status == ZERO_E_PEER); /* PEER: another rank said so first */
    CHECK_CONTAINS(zero_last_error(), "rank 1 used the units in another order");
}

static void only_the_agreement_tells(struct toy_setup s) {
    char json[2048];
    s.micro_steps = 2;
    s.mode = "last";
    for (s.stage = 0; s.stage <= 2; s.stage++) {
        toy_config(&s, json, sizeof json);
        ranks_run(RANKS, json, skips_where_nothing_is_posted, NULL);
    }
}

/* Below stage 3 one rank may evaluate by itself: between steps, between micro-steps, before a backward, and in part. */
static void evaluates(struct plain *p, uint32_t rank, int times) {
    for (int i = 0; i < times && rank == ODD; i++) CHECK_INT(plain_pass(p, ZERO_EVAL, 0), ZERO_OK);
}

static void evaluates_alone(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    int alone = *(int *)user;
    if (!CHECK(engine)) fprintf(stderr, "%s\n", zero_last_error());
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (uint32_t micro = 0; micro < 4; micro++) {
        evaluates(&p, alone ? rank : 0, 1 + (int)micro % 2);
        CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
        for (uint32_t u = 0; u < p.units; u++) CHECK_INT(plain_forward(&p, u), ZERO_OK);
        if (alone && rank == ODD) {
            evaluates(&p, rank, 1);
            CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
            CHECK_INT(plain_forward(&p, 0), ZERO_OK);
            CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
            CHECK_INT(zero_micro_resume(engine), ZERO_OK);
        }
        for (uint32_t u = p.units; u-- > 0;) CHECK_INT(plain_backward(&p, u, micro), ZERO_OK);
        if (micro % 2 && !CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK))
            fprintf(stderr, "rank %u: %s\n", rank, zero_last_error());
    }
    evaluates(&p, alone ? rank : 0, 1);
    char hash[33];
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (rank == ODD) strcpy(hashes[alone], hash);
}

static void one_evaluates(struct toy_setup s) {
    char json[2048];
    s.micro_steps = 2;
    for (int i = 0; i < 2 * 3 * 2; i++) {
        s.stage = (uint32_t)i % 3, s.offload = i / 3 % 2 ? "cpu" : "none", s.mode = i / 6 ? "every" : "last";
        toy_config(&s, json, sizeof json);
        for (int alone = 0; alone < 2; alone++) ranks_run(RANKS, json, evaluates_alone, &alone);
        CHECK_STRING(hashes[1], hashes[0]);
    }
}

/* ---- a rank whose thread ends, and another thread continues ---- */

struct succession {
    zero_local *local;
    uint32_t rank;
    const char *json;
    struct plain plain;
    pthread_barrier_t *begun;
};

static void *opens(void *argument) {
    struct succession *s = argument;
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = s->local, .local_rank = s->rank};
    zero_engine *engine = zero_engine_init_with(s->json, &runtime);
    if (CHECK(engine)) CHECK_INT(plain_open(&s->plain, engine, params, PARAMS, NULL), ZERO_OK);
    return NULL;
}

/* At stage 0 a pass posts nothing before its first backward. Other ranks wait for the odd rank for longer than timeout_s, which is
 * too long for a rank whose thread has ended. */
static void *continues(void *argument) {
    struct succession *s = argument;
    double sum = 1;
    if (s->rank == ODD) CHECK_INT(zero_micro_begin(s->plain.engine, ZERO_EVAL), ZERO_OK);
    pthread_barrier_wait(s->begun);
    if (s->rank == ODD) nanosleep(&(struct timespec){3, 0}, NULL);
    if (!CHECK_INT(zero_engine_sum(s->plain.engine, &sum, 1), ZERO_OK))
        fprintf(stderr, "rank %u: %s\n", s->rank, zero_last_error());
    zero_engine_destroy(s->plain.engine);
    return NULL;
}

static void another_thread_continues(struct toy_setup s) {
    char json[2048];
    static struct succession rank[RANKS];
    static void *(*const parts[])(void *) = {opens, continues};
    pthread_barrier_t begun;
    pthread_barrier_init(&begun, NULL, RANKS);
    s.stage = 0;
    s.timeout_s = 2;
    toy_config(&s, json, sizeof json);
    zero_local *local = zero_local_create(RANKS);
    for (int part = 0; part < 2; part++) {
        pthread_t thread[RANKS];
        for (uint32_t r = 0; r < RANKS; r++) {
            rank[r].local = local, rank[r].rank = r, rank[r].json = json, rank[r].begun = &begun;
            pthread_create(&thread[r], NULL, parts[part], &rank[r]);
        }
        for (uint32_t r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    }
    zero_local_destroy(local);
    pthread_barrier_destroy(&begun);
}

int main(void) {
    struct toy_setup s = toy_setup_default();
    s.timeout_s = 30;
    s.ranks = RANKS;
    only_the_agreement_tells(s);
    one_evaluates(s);
    another_thread_continues(s);
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            if (odds[i].act == is_silent && s.stage % 3) continue; /* it takes its time */
            char json[2048];
            /* The others find these two after ten times timeout_s. */
            s.timeout_s = odds[i].act == is_silent || odds[i].act == hashes_instead ? 0.5 : 30;
            toy_config(&s, json, sizeof json);
            atomic_store(&told, 0);
            pthread_barrier_t together;
            pthread_barrier_init(&together, NULL, RANKS);
            ranks_run(RANKS, json, run_rank, &(struct run){&odds[i], s.stage, &together});
            pthread_barrier_destroy(&together);
        }
    return check_end();
}
