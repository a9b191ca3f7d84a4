/* Tests that are specific to threads: a barrier holds, a waiting rank sleeps and wakes soon, wrong calls are
 * refused. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/system/thread.h"
#include "engine/comm/comm.h"
#include "tests/check.h"

enum { RANKS = 3, ROUNDS = 200 };

static struct local_world *world;
static atomic_uint arrived;
static const uint32_t all[] = {0, 1, 2};

struct rank {
    pthread_t thread;
    struct comm *comm;
    struct comm_group *group;
    uint32_t index;
    uint64_t cpu_ns, wait_ns;
};

static struct rank ranks[RANKS];

static void start_within(struct rank *rank, double timeout_s) {
    struct zero_error error;
    error_clear(&error);
    struct comm_options options = {
        .rank = rank->index, .size = RANKS, .local = world, .timeout_s = timeout_s};
    CHECK_INT(comm_open(&comm_local_ops, &options, &rank->comm, &error), ZERO_OK);
    CHECK_INT(comm_group_open(rank->comm, all, RANKS, &rank->group), ZERO_OK);
}

static void start(struct rank *rank) { start_within(rank, 20); }

static void end(struct rank *rank) {
    comm_group_close(rank->group);
    comm_close(rank->comm);
}

/* The world stays open. */
static void spawn_in(void *(*run)(void *)) {
    world = local_world_create(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.index = r};
        pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
}

static void spawn(void *(*run)(void *)) {
    spawn_in(run);
    local_world_destroy(world);
}

static void *run_barriers(void *user) {
    struct rank *rank = user;
    start(rank);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        atomic_fetch_add(&arrived, 1);
        CHECK_INT(comm_run(rank->group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK);
        CHECK(atomic_load(&arrived) >= (round + 1) * RANKS);
    }
    end(rank);
    return NULL;
}

static uint64_t thread_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static atomic_ullong posted_ns;

/* The last rank comes 300 ms late; the others sleep meanwhile, for far longer at a time than they take to
 * wake. */
static void *run_sleepers(void *user) {
    struct rank *rank = user;
    struct comm_work *work;
    bool done = false;
    start(rank);
    CHECK_INT(comm_run(rank->group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK);
    if (rank->index == RANKS - 1) nanosleep(&(struct timespec){0, 300000000}, NULL);
    uint64_t cpu = thread_cpu_ns();
    if (rank->index == RANKS - 1) atomic_store(&posted_ns, clock_now_ns());
    CHECK_INT(comm_post(rank->group, &(struct comm_call){.kind = COMM_BARRIER}, &work), ZERO_OK);
    while (comm_test(work, &done) == ZERO_OK && !done) comm_idle(rank->comm, 120000000000u);
    rank->cpu_ns = thread_cpu_ns() - cpu;
    rank->wait_ns = clock_now_ns() - atomic_load(&posted_ns);
    end(rank);
    return NULL;
}

static void *run_bad_call(void *user) {
    struct rank *rank = user;
    static float buffers[RANKS][100];
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .count = 10,
                             .what = "h.1",
                             .source = buffers[rank->index],
                             .target = buffers[rank->index] + 50};
    start(rank);
    if (rank->index == 1) call.source = buffers[1] + 51; /* inside the target, but not its own share */
    CHECK_INT(comm_run(rank->group, &call), rank->index == 1 ? ZERO_E_ARGUMENT : ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(rank->comm)->message,
                   "rank 1 cannot post all-gather of h.1 (10 x fp32), call 0 of group 0");
    CHECK_CONTAINS(comm_error(rank->comm)->message, "overlap in another way than the in-place form");
    CHECK_INT(comm_run(rank->group, &call), comm_error(rank->comm)->code);
    end(rank);
    return NULL;
}

/* ---- threads that end ---- */

enum { GONE = RANKS - 1 };
static pthread_barrier_t together;

static void *open_and_end(void *user) {
    start_within(user, 1);
    return NULL;
}

/* The thread that opened the comm waits, and stays: only the thread of rank 2 ends. */
static void *wait_for_the_gone(void *user) {
    struct rank *rank = user;
    struct comm_call call = {.kind = COMM_BARRIER, .what = "the end", .patient = rank->index == 0};
    start_within(rank, 1);
    pthread_barrier_wait(&together);
    zero_status status = comm_run(rank->group, &call);
    CHECK_INT(status, ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(rank->comm)->message,
                   "the thread of rank 2 ended, and did not close its communicator");
    CHECK_CONTAINS(comm_error(rank->comm)->message, "barrier of the end, call 0 of group 0");
    CHECK_INT(comm_error(rank->comm)->rank, GONE);
    return NULL;
}

static atomic_bool helps;

/* As the engine's own thread does, which outlives the rank's. */
static void *help(void *user) {
    struct rank *rank = user;
    while (atomic_load(&helps)) comm_idle(rank->comm, 1000000);
    return NULL;
}

static void close_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) end(&ranks[r]);
    local_world_destroy(world);
}

/* A rank whose thread returned is silent. The others detect that within timeout_s, as they do for a process. */
static void a_thread_that_ends_is_noticed(bool helped) {
    pthread_t helper;
    world = local_world_create(RANKS);
    pthread_barrier_init(&together, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.index = r};
        pthread_create(&ranks[r].thread, NULL, r == GONE ? open_and_end : wait_for_the_gone, &ranks[r]);
    }
    pthread_join(ranks[GONE].thread, NULL);
    atomic_store(&helps, helped);
    if (helped) CHECK_INT(thread_start(&helper, help, &ranks[GONE]), 0);
    pthread_barrier_wait(&together);
    for (uint32_t r = 0; r < GONE; r++) pthread_join(ranks[r].thread, NULL);
    atomic_store(&helps, false);
    if (helped) pthread_join(helper, NULL);
    pthread_barrier_destroy(&together);
    close_all();
}

enum { CHANGE_TIMEOUT_S = 5 }; /* so long that a busy machine runs the other thread of rank 2 within it */

static void nap_beyond_the_timeout(void) { nanosleep(&(struct timespec){CHANGE_TIMEOUT_S, 500000000}, NULL); }

static void *open_with_time(void *user) {
    start_within(user, CHANGE_TIMEOUT_S);
    return NULL;
}

/* Rank 2 comes late: the others attend their ranks, and wait by then. */
static void *take_over(void *user) {
    struct rank *rank = user;
    if (rank->index != GONE) comm_attend(rank->comm);
    pthread_barrier_wait(&together);
    if (rank->index == GONE) nanosleep(&(struct timespec){0, 200000000}, NULL);
    CHECK_INT(comm_run(rank->group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK);
    if (rank->index == GONE) nap_beyond_the_timeout(); /* it lives: that may take long */
    CHECK_INT(comm_run(rank->group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK);
    return NULL;
}

/* The thread that opened the comm may end if another thread continues, however long ago the first one ended. */
static void a_rank_may_change_its_thread(void) {
    spawn_in(open_with_time);
    nap_beyond_the_timeout();
    pthread_barrier_init(&together, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) pthread_create(&ranks[r].thread, NULL, take_over, &ranks[r]);
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&together);
    close_all();
}

/* A thread with a wrong number, or none: that rank was never there, so it is not alive. */
static void a_rank_that_never_came(void) {
    world = local_world_create(RANKS);
    struct rank first = {.index = 0};
    start_within(&first, 0.05);
    CHECK_INT(comm_run(first.group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(first.comm)->message,
                   "rank 1 did not open its communicator, for which rank 0 waited");
    CHECK_INT(comm_error(first.comm)->rank, 1);
    end(&first);
    local_world_destroy(world);
}

static void bad_options(void) {
    struct comm *comm;
    struct zero_error error;
    world = local_world_create(2);
    error_clear(&error);
    CHECK_INT(comm_open(&comm_local_ops, &(struct comm_options){.rank = 2, .size = 2, .local = world}, &comm,
                        &error),
              ZERO_E_ARGUMENT);
    CHECK(comm == NULL);
    error_clear(&error);
    CHECK_INT(comm_open(&comm_local_ops, &(struct comm_options){.rank = 0, .size = 3, .local = world}, &comm,
                        &error),
              ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "got one of 2");
    error_clear(&error);
    CHECK_INT(comm_open(&comm_self_ops, &(struct comm_options){.rank = 0, .size = 2}, &comm, &error),
              ZERO_E_ARGUMENT);
    local_world_destroy(world);
}

int main(void) {
    spawn(run_barriers);
    spawn(run_sleepers);
    for (int r = 0; r < RANKS - 1; r++) {
        printf("rank %d slept, woke %.1f us after the post, used %.1f us of CPU\n", r,
               (double)ranks[r].wait_ns / 1e3, (double)ranks[r].cpu_ns / 1e3);
        CHECK(ranks[r].cpu_ns < 30000000);
        CHECK(ranks[r].wait_ns < 60000000000);
    }
    spawn(run_bad_call);
    a_thread_that_ends_is_noticed(false);
    a_thread_that_ends_is_noticed(true);
    a_rank_may_change_its_thread();
    a_rank_that_never_came();
    bad_options();
    return check_end();
}
