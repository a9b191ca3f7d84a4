/* Saves, loads and deletions that take rank 0 far longer than any limit of a call: the others wait, for rank 0 is alive. A rank
 * that does not come to a save is still noticed. Time passes as rank 1 looks at the clock while rank 0's drive is slow. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/api/inside.h"
#include "engine/state/saved.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tcp_ranks.h"

/* A look at the clock takes a tenth of timeout_s: the limits, of 10 and of 12 x timeout_s, are 100 and 120 looks. The second one
 * counts at most 100 ms between two tests of a call, which look several times: rarely more than 10 times. */
enum { RANKS = 2, LOOKS = 2400, LOCAL_S = 1, TCP_S = 600, GIVE_UP_S = 30 };

static const struct plain_param params[] = {{"a", "a.w", 90000, 0, NULL}};

/* ---- the clock: the linker wraps it, and a wait that ends at a time of it ---- */

static atomic_bool passing;
static atomic_ullong ahead_ns;
static uint64_t look_ns;
static _Thread_local bool waits; /* the thread of rank 1 */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    int result = __real_clock_gettime(clock, out);
    if (result || clock != CLOCK_MONOTONIC) return result;
    if (waits && atomic_load(&passing)) atomic_fetch_add(&ahead_ns, look_ns);
    uint64_t ns = (uint64_t)out->tv_nsec + atomic_load(&ahead_ns);
    out->tv_sec += (time_t)(ns / 1000000000), out->tv_nsec = (long)(ns % 1000000000);
    return 0;
}

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until) {
    uint64_t ns = (uint64_t)until->tv_sec * 1000000000 + (uint64_t)until->tv_nsec - atomic_load(&ahead_ns);
    struct timespec real = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return __real_pthread_cond_timedwait(cond, mutex, &real);
}

static double real_s(void) {
    struct timespec t;
    __real_clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int slow; /* so many of the next operations of rank 0's drive are */

/* A wait that ended too early looks no more. */
static void pass_time(void) {
    uint64_t end_ns = atomic_load(&ahead_ns) + LOOKS * look_ns;
    double give_up_s = real_s() + GIVE_UP_S;
    atomic_store(&passing, true);
    while (atomic_load(&ahead_ns) < end_ns && real_s() < give_up_s)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    atomic_store(&passing, false);
    if (!CHECK(atomic_load(&ahead_ns) >= end_ns)) slow = 0;
}

/* ---- rank 0's drive ---- */

enum { SMALL_BYTES = 65536 };

static void be_slow(void) {
    if (slow > 0) slow--, pass_time();
}

static int slow_sync(struct storage *s, storage_handle handle) {
    be_slow();
    return storage_posix()->ops->sync(storage_posix(), handle);
}

static storage_handle slow_open(struct storage *s, const char *path) {
    be_slow();
    return storage_posix()->ops->open(storage_posix(), path);
}

static int64_t slow_read(struct storage *s, storage_handle handle, void *to, size_t bytes, uint64_t offset) {
    if (bytes > SMALL_BYTES) be_slow();
    return storage_posix()->ops->read(storage_posix(), handle, to, bytes, offset);
}

static int slow_remove(struct storage *s, const char *directory, const char *name) {
    be_slow();
    return storage_posix()->ops->remove_owned(storage_posix(), directory, name);
}

static struct storage *storage_of(uint32_t rank, int operations) {
    static struct storage_ops ops;
    static struct storage storage = {&ops};
    if (rank) return storage_posix();
    ops = *storage_posix()->ops;
    ops.sync = slow_sync, ops.open = slow_open, ops.read = slow_read, ops.remove_owned = slow_remove;
    slow = operations;
    return &storage;
}

/* ---- what the ranks do ---- */

static void saves_and_loads(zero_engine *e, uint32_t rank, void *user) {
    const char *dir = user;
    struct plain p;
    waits = rank == 1;
    CHECK_INT(plain_open(&p, e, params, 1, NULL), ZERO_OK);
    for (int step = 0; step < 2; step++) {
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
        /* the token, the shard, the token again, the manifest */
        CHECK_INT(engine_save(e, storage_of(rank, step ? 0 : 4), dir), ZERO_OK);
        if (!CHECK_INT(zero_engine_save_wait(e), ZERO_OK))
            fprintf(stderr, "rank %u: %s\n", rank, zero_last_error());
    }
    if (!CHECK_INT(engine_load(e, storage_of(rank, 1), dir, LOAD_ALL), ZERO_OK)) /* latest */
        fprintf(stderr, "rank %u: %s\n", rank, zero_last_error());
    if (!CHECK_INT(engine_prune(e, storage_of(rank, 1), dir, 1), ZERO_OK))
        fprintf(stderr, "rank %u: %s\n", rank, zero_last_error());
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_steps(e), 3);
}

static atomic_bool ended;

static void one_does_not_come(zero_engine *e, uint32_t rank, void *user) {
    struct plain p;
    waits = rank == 1;
    CHECK_INT(plain_open(&p, e, params, 1, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_flush(e), ZERO_OK);
    if (rank) {
        CHECK_INT(zero_engine_save(e, user), ZERO_E_PEER);
        CHECK_CONTAINS(zero_last_error(),
                       "rank 0 is alive but did not take its part in barrier of a checkpoint");
        atomic_store(&ended, true);
    } else {
        atomic_store(&passing, true);
        while (!atomic_load(&ended)) nanosleep(&(struct timespec){0, 1000000}, NULL);
        atomic_store(&passing, false);
    }
}

/* ---- over threads, and over TCP ---- */

/* Lines about a wait that has no limit. */
static atomic_int warnings;

static void hear(void *user, zero_log_level level, const char *line) {
    if (strstr(line, "goes on waiting")) atomic_fetch_add(&warnings, 1);
}

struct rank {
    pthread_t thread;
    zero_runtime runtime;
    const char *json;
    uint32_t rank;
    void *user;
};

static void *run_rank(void *argument) {
    struct rank *r = argument;
    zero_engine *e = zero_engine_init_with(r->json, &r->runtime);
    if (CHECK(e)) saves_and_loads(e, r->rank, r->user);
    zero_engine_destroy(e);
    return NULL;
}

static void run_ranks(bool tcp, const char *json, void *user) {
    struct rank ranks[RANKS];
    zero_local *local = zero_local_create(RANKS);
    uint32_t port = tcp_free_port();
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.json = json, .rank = r, .user = user};
        ranks[r].runtime =
            tcp ? tcp_runtime(r, RANKS, port)
                : (zero_runtime){.struct_size = sizeof(zero_runtime), .local = local, .local_rank = r};
        ranks[r].runtime.log = hear;
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    zero_local_destroy(local);
}

static void run(bool tcp, bool async) {
    char json[300], dir[600];
    int timeout_s = tcp ? TCP_S : LOCAL_S;
    look_ns = (uint64_t)timeout_s * 100000000;
    snprintf(dir, sizeof dir, "%s/%s.%d", getenv("TEST_TMPDIR"), tcp ? "tcp" : "local", async);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 1}, \"checkpoint\": "
             "{\"async\": %s}, "
             "\"comm\": {\"timeout_s\": %d}}",
             async ? "true" : "false", timeout_s);
    atomic_store(&warnings, 0);
    run_ranks(tcp, json, dir);
    if (!tcp) CHECK(atomic_load(&warnings) > 0); /* over TCP too few tests of a call see the clock for one */
    if (!tcp && !async) ranks_run(RANKS, json, one_does_not_come, dir);
}

int main(void) {
    run(false, false);
    run(false, true);
    run(true, false);
    return check_end();
}
