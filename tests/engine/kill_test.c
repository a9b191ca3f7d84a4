/* kill -9 at every call that a run's saves make to the file system: the run that resumes ends in the same weights
 * and moments as one that was never killed. And calls that fail instead: the save says so, the training goes on as
 * if nothing had been saved, and the checkpoint before is whole. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

static const struct plain_param params[] = {{"a", "long", 3001, 0, NULL},
                                            {"a", "tiny", 5, ZERO_NO_DECAY, NULL},
                                            {"b", "fixed", 40, ZERO_FROZEN, NULL}};
enum { PARAMS = sizeof params / sizeof *params, RANKS = 2, STEPS = 6, SAVE_EVERY = 2, KEEP = 2 };

/* ---- the real file system, until call number `at` ---- */

struct mortal {
    struct storage head;
    atomic_int calls;
    int at;      /* this call kills the process, or fails; 0: none does */
    int failure; /* 0: kills; else what it returns */
};

static int strike(struct storage *s) {
    struct mortal *m = (struct mortal *)s;
    if (atomic_fetch_add(&m->calls, 1) + 1 != m->at) return 0;
    if (!m->failure) raise(SIGKILL);
    return m->failure;
}

#define REAL storage_posix()->ops
#define MORTAL(type, name, parameters, ...)                                                                  \
    static type mortal_##name parameters {                                                                   \
        int struck = strike(s);                                                                              \
        return struck ? struck : REAL->name(__VA_ARGS__);                                                    \
    }
MORTAL(int, make_directory, (struct storage * s, const char *path), s, path)
MORTAL(int, remove_directory, (struct storage * s, const char *path), s, path)
MORTAL(int, list, (struct storage * s, const char *path, storage_name_fn fn, void *user), s, path, fn, user)
MORTAL(int, sync_directory, (struct storage * s, const char *path), s, path)
MORTAL(int, rename, (struct storage * s, const char *from, const char *to), s, from, to)
MORTAL(int, exchange, (struct storage * s, const char *a, const char *b), s, a, b)
MORTAL(int, remove, (struct storage * s, const char *path), s, path)
MORTAL(int, list_owned, (struct storage * s, const char *path, storage_name_fn fn, void *user), s, path, fn,
       user)
MORTAL(int, check_owned, (struct storage * s, const char *directory, const char *name), s, directory, name)
MORTAL(int, remove_owned, (struct storage * s, const char *directory, const char *name), s, directory, name)
MORTAL(int64_t, free_bytes, (struct storage * s, const char *path), s, path)
MORTAL(storage_handle, create,
       (struct storage * s, const char *path, uint64_t n, const struct storage_staging *staging), s, path, n,
       staging)
MORTAL(storage_handle, open, (struct storage * s, const char *path), s, path)
MORTAL(int64_t, size, (struct storage * s, storage_handle h), s, h)
MORTAL(int64_t, read, (struct storage * s, storage_handle h, void *to, size_t n, uint64_t at), s, h, to, n,
       at)
MORTAL(int64_t, write, (struct storage * s, storage_handle h, const void *from, size_t n, uint64_t at), s, h,
       from, n, at)
MORTAL(int, sync, (struct storage * s, storage_handle h), s, h)
static void mortal_close(struct storage *s, storage_handle handle) { REAL->close(s, handle); }

static const struct storage_ops mortal_ops = {
    .make_directory = mortal_make_directory,
    .remove_directory = mortal_remove_directory,
    .list = mortal_list,
    .sync_directory = mortal_sync_directory,
    .rename = mortal_rename,
    .exchange = mortal_exchange,
    .remove = mortal_remove,
    .list_owned = mortal_list_owned,
    .check_owned = mortal_check_owned,
    .remove_owned = mortal_remove_owned,
    .free_bytes = mortal_free_bytes,
    .create = mortal_create,
    .open = mortal_open,
    .size = mortal_size,
    .read = mortal_read,
    .write = mortal_write,
    .sync = mortal_sync,
    .close = mortal_close,
};

/* ---- a run ---- */

struct run {
    struct mortal storage;
    const char *dir;
    int resume; /* from the latest, if there is one */
    int saves_failed;
    char hash[33], moments[33], sentence[512];
};

static void hash_moments(zero_engine *engine, char out[33]) {
    static _Thread_local float value[3001];
    uint64_t hash = 0xcbf29ce484222325u;
    for (int k = ZERO_STATE0; k <= ZERO_STATE1; k++) {
        zero_engine_get(engine, "long", (zero_kind)k, value, 0, 3001);
        for (size_t i = 0; i < sizeof value; i++) hash = (hash ^ ((uint8_t *)value)[i]) * 0x100000001b3u;
    }
    snprintf(out, 33, "%016" PRIx64, hash);
}

static int has_latest(const char *dir) {
    char path[1024];
    snprintf(path, sizeof path, "%s/latest", dir);
    return access(path, F_OK) == 0;
}

static void save(zero_engine *engine, struct run *run, uint32_t rank) {
    zero_status status = engine_save(engine, &run->storage.head, run->dir);
    if (!status) status = engine_prune(engine, &run->storage.head, run->dir, KEEP);
    if (!status || rank) return;
    run->saves_failed++;
    snprintf(run->sentence, sizeof run->sentence, "%s", zero_last_error());
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char hash[33], moments[33];
    plain_declare(&p, engine, params, PARAMS);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    zero_status status = run->resume ? engine_load(engine, &run->storage.head, run->dir, 0)
                                     : zero_engine_fill(engine, toy_fill, NULL);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    for (uint64_t step = zero_engine_steps(engine) + 1; step <= STEPS; step++) {
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
        if (step % SAVE_EVERY == 0) save(engine, run, rank);
    }
    zero_engine_hash(engine, hash);
    hash_moments(engine, moments);
    if (rank) return;
    strcpy(run->hash, hash);
    strcpy(run->moments, moments);
}

static void start(struct run *run) {
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    setup.ranks = RANKS, setup.stage = 3;
    toy_config(&setup, json, sizeof json);
    run->storage.head.ops = &mortal_ops;
    ranks_run(RANKS, json, train, run);
}

/* ---- the tests ---- */

static const char *place(char out[600], const char *what, int number) {
    snprintf(out, 600, "%s/%s_%d", getenv("TEST_TMPDIR"), what, number);
    return out;
}

static struct run reference(int *out_calls) {
    char dir[600];
    struct run run = {.dir = place(dir, "whole", 0)};
    start(&run);
    CHECK_INT(run.saves_failed, 0);
    *out_calls = atomic_load(&run.storage.calls);
    return run;
}

static void killed(const struct run *whole, int at) {
    char dir[600];
    struct run first = {.dir = place(dir, "killed", at), .storage.at = at}, second = {.dir = dir};
    pid_t child = fork();
    if (!child) {
        start(&first);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    second.resume = has_latest(dir);
    start(&second);
    CHECK_INT(second.saves_failed, 0);
    int same = CHECK_STRING(second.hash, whole->hash) && CHECK_STRING(second.moments, whole->moments);
    if (!same) fprintf(stderr, "killed at call %d\n", at);
}

static void failing(const struct run *whole, int at) {
    char dir[600];
    struct run run = {.dir = place(dir, "failing", at),
                      .storage = {.at = at, .failure = at % 2 ? -EIO : -ENOSPC}};
    start(&run);
    int same = CHECK_STRING(run.hash, whole->hash);
    if (run.saves_failed) same &= CHECK(*run.sentence);
    run.storage.failure = run.storage.at = 0;
    run.resume = has_latest(dir);
    start(&run); /* whatever is the latest now goes on to the same end */
    same &= CHECK_STRING(run.hash, whole->hash) && CHECK_STRING(run.moments, whole->moments);
    if (!same) fprintf(stderr, "failing at call %d: %s\n", at, run.sentence);
}

int main(void) {
    int calls;
    struct run whole = reference(&calls);
    CHECK(calls > 60);
    int each = (int)seeds_divisor();
    for (int at = 1; at <= calls; at += each) killed(&whole, at);
    for (int at = 1; at <= calls; at += each) failing(&whole, at);
    printf("killed, and failed, at one of %d of %d calls\n", each, calls);
    return check_end();
}
