/* The user interrupts a host program while a rank waits for another one: during opening, and in a call. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/zero.h"
#include "tests/check.h"
#include "tests/engine/plain.h"

enum { RANKS = 2, SOON_MS = 60000 };

static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
                           "\"comm\": {\"timeout_s\": 300}}";
static atomic_bool asked;
static atomic_int ended;

static int is_asked(void *user) { return atomic_load((atomic_bool *)user); }

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static void *ask_soon(void *unused) {
    pause_ms(300);
    atomic_store(&asked, true);
    return NULL;
}

struct rank {
    pthread_t thread;
    zero_local *local;
    uint32_t index;
};

/* Rank 1 comes to the sum when rank 0 has given up. */
static void *run(void *user) {
    struct rank *rank = user;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = rank->local,
                            .local_rank = rank->index,
                            .interrupted = rank->index ? NULL : is_asked,
                            .interrupted_user = &asked};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine != NULL)) return NULL;
    static const struct plain_param param = {"a", "a.w", 100, 0, NULL};
    struct plain p;
    double value = 1;
    CHECK_INT(plain_open(&p, engine, &param, 1, NULL), ZERO_OK);
    while (rank->index && !atomic_load(&ended)) pause_ms(10);
    uint64_t since_ns = clock_now_ns();
    pthread_t asker;
    if (!rank->index) pthread_create(&asker, NULL, ask_soon, NULL);
    CHECK_INT(zero_engine_sum(engine, &value, 1), ZERO_E_INTERRUPTED);
    CHECK((clock_now_ns() - since_ns) / 1000000 < SOON_MS);
    if (!rank->index) pthread_join(asker, NULL);
    atomic_store(&ended, 1);
    zero_engine_destroy(engine);
    return NULL;
}

static void a_call_is_interrupted(void) {
    zero_local *local = zero_local_create(RANKS);
    struct rank rank[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        rank[r] = (struct rank){.local = local, .index = r};
        pthread_create(&rank[r].thread, NULL, run, &rank[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(rank[r].thread, NULL);
    zero_local_destroy(local);
}

/* Rank 0 never comes. */
static void opening_is_interrupted(void) {
    zero_runtime runtime = {
        .struct_size = sizeof runtime, .interrupted = is_asked, .interrupted_user = &asked};
    setenv("WORLD_SIZE", "2", 1), setenv("RANK", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", "9", 1);
    atomic_store(&asked, false);
    uint64_t since_ns = clock_now_ns();
    pthread_t asker;
    pthread_create(&asker, NULL, ask_soon, NULL);
    CHECK(zero_engine_init_with(json, &runtime) == NULL);
    CHECK((clock_now_ns() - since_ns) / 1000000 < SOON_MS);
    CHECK_CONTAINS(zero_last_error(), "interrupted while rank 1 waited for rank 0");
    pthread_join(asker, NULL);
}

int main(void) {
    a_call_is_interrupted();
    opening_is_interrupted();
    return check_end();
}
