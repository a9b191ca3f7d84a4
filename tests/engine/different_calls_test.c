/* Ranks that wait for each other in different calls learn it, and a sentence names both calls. A rank that is only slow is never
 * accused: one that is in no call, in a function of the host, in a long or a background save, or stopped. All cases run at once;
 * slow_save_test has saves that take long. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/tcp_ranks.h"

enum { RANKS = 3, ODD = 1, SLOW_S = 3 };

static const struct plain_param params[] = {{"a", "a.w", 5000, 0, NULL}, {"b", "b.w", 700, 0, NULL}};

static void rest(void) {
    struct timespec left = {SLOW_S, 0};
    while (nanosleep(&left, &left)) {
    }
}

static void sleeping_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    if (user) rest();
    for (uint64_t i = 0; i < count; i++) out[i] = 1;
}

/* Rank ODD's own call, in step 1. */
static zero_status saves(struct plain *p, const char *dir) { return zero_engine_save(p->engine, dir); }
static zero_status hashes(struct plain *p, const char *dir) {
    char hash[33];
    return zero_engine_hash(p->engine, hash);
}
static zero_status sums(struct plain *p, const char *dir) {
    double value = 1;
    return zero_engine_sum(p->engine, &value, 1);
}
static zero_status loads_data(struct plain *p, const char *dir) { return rest(), ZERO_OK; }
static zero_status computes(struct plain *p, const char *dir) {
    zero_status status = zero_micro_begin(p->engine, ZERO_EVAL);
    if (!status) status = zero_forward_begin(p->unit[0]);
    rest();
    return status ? status : zero_forward_end(p->unit[0]);
}
static zero_status is_stopped(struct plain *p, const char *dir) { return raise(SIGSTOP), ZERO_OK; }

static const struct odd {
    const char *name; /* also the call in the sentence */
    zero_status (*act)(struct plain *p, const char *dir);
    uint32_t stage;
    bool innocent, fills, processes; /* fills: its fill sleeps */
} odds[] = {
    {"is stopped", is_stopped, 3, true, false, true},     {"zero_engine_save", saves, 3, false, false, false},
    {"zero_engine_hash", hashes, 3, false, false, false}, {"zero_engine_save", saves, 1, false, false, false},
    {"zero_engine_sum", sums, 3, false, false, true},     {"zero_engine_save", saves, 0, false, false, true},
    {"loads data", loads_data, 3, true, false, false},    {"loads data", loads_data, 1, true, false, true},
    {"computes", computes, 0, true, false, false},        {"is in its fill", NULL, 3, true, true, false}};
enum { ODDS = sizeof odds / sizeof *odds };

static void train(const struct odd *odd, const zero_runtime *runtime, uint32_t rank) {
    char json[512], dir[512];
    struct plain p;
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %u, "
             "\"stage3_param_persistence_threshold\": 0}, \"comm\": {\"timeout_s\": 30}}",
             odd->stage);
    snprintf(dir, sizeof dir, "%s/%td", getenv("TEST_TMPDIR"), odd - odds);
    zero_engine *engine = zero_engine_init_with(json, runtime);
    if (!CHECK(engine) || !CHECK_INT(plain_declare(&p, engine, params, 2), ZERO_OK)) return;
    zero_status status = zero_engine_commit(engine, NULL);
    bool slow = odd->fills && rank == ODD;
    if (!status) status = zero_engine_fill(engine, sleeping_fill, slow ? &slow : NULL);
    if (!status) status = plain_step(&p, 1, NULL);
    if (!status && rank == ODD && odd->act) status = odd->act(&p, dir);
    if (!status) status = plain_step(&p, 1, NULL);
    if (odd->innocent) {
        CHECK_INT(status, ZERO_OK);
    } else {
        CHECK_INT(status, ZERO_E_DIVERGED);
        CHECK_CONTAINS(zero_last_error(), "rank 1");
        CHECK_CONTAINS(zero_last_error(), odd->name);
        CHECK_CONTAINS(zero_last_error(), odd->stage == 3 ? "zero_forward_begin" : "zero_engine_step");
    }
    if (odd->innocent ? status : status != ZERO_E_DIVERGED)
        fprintf(stderr, "%s, stage %u, rank %u: %s\n", odd->name, odd->stage, rank, zero_last_error());
    zero_engine_destroy(engine);
}

/* ---- ranks that are threads, and ranks that are processes ---- */

struct place {
    const struct odd *odd;
    zero_local *local;
    uint32_t rank;
};

static void *run(void *argument) {
    const struct place *place = argument;
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = place->local, .local_rank = place->rank};
    train(place->odd, &runtime, place->rank);
    return NULL;
}

static void start_processes(const struct odd *odd, pid_t out[RANKS]) {
    uint32_t port = tcp_free_port();
    for (uint32_t r = 0; r < RANKS; r++) {
        out[r] = fork();
        if (out[r]) continue;
        zero_runtime runtime = tcp_runtime(r, RANKS, port);
        train(odd, &runtime, r);
        _exit(check_end());
    }
}

/* A stopped rank goes on after SLOW_S. */
static void end_processes(const pid_t process[RANKS]) {
    int status;
    for (uint32_t i = 0, r = ODD; i < RANKS; i++, r = (r + 1) % RANKS) {
        waitpid(process[r], &status, WUNTRACED);
        if (WIFSTOPPED(status)) rest(), kill(process[r], SIGCONT), waitpid(process[r], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void) {
    pid_t process[ODDS][RANKS];
    pthread_t thread[ODDS][RANKS];
    zero_local *local[ODDS];
    struct place place[ODDS][RANKS];
    for (int i = 0; i < ODDS; i++)
        if (odds[i].processes) start_processes(&odds[i], process[i]);
    for (int i = 0; i < ODDS; i++) {
        if (odds[i].processes) continue;
        local[i] = zero_local_create(RANKS);
        for (uint32_t r = 0; r < RANKS; r++) {
            place[i][r] = (struct place){&odds[i], local[i], r};
            pthread_create(&thread[i][r], NULL, run, &place[i][r]);
        }
    }
    for (int i = 0; i < ODDS; i++) {
        if (odds[i].processes) end_processes(process[i]);
        for (uint32_t r = 0; r < RANKS && !odds[i].processes; r++) pthread_join(thread[i][r], NULL);
        if (!odds[i].processes) zero_local_destroy(local[i]);
    }
    return check_end();
}
