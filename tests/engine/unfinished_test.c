/* Rank 1 fails in place of a collective call while the engines open or commit. Rank 0's call then never ends: its memory is kept while
 * other ranks may reach it, here until the world of the ranks is destroyed. */
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm/comm.h"
#include "tests/check.h"
#include "tests/engine/plain.h"

enum { RANKS = 2 };

static const struct row {
    const char *what; /* the call */
    int count;        /* the first that is called so, or the second */
    uint32_t model_size;
    const char *json; /* rank 0's, or NULL */
} rows[] = {
    {"the model ranks", 1, 0, NULL},
    {"the ranks' nodes", 1, 0, NULL},
    {"the configuration's hash", 1, 0, NULL},
    {"why the configuration is wrong", 1, 0, "{}}"},
    {"what the model ranks declared", 1, 2, NULL},
    {"what a model rank declared", 1, 2, NULL},
    {"what a model rank declared", 2, 2, NULL},
    {"room for chunks", 1, 0, NULL},
    {"spare memory", 1, 0, NULL},
    {"model", 1, 0, NULL},
};

static const struct row *row;
static int counted;      /* rank 1's calls of the row */
static atomic_int begun; /* rank 0's */
static _Atomic uintptr_t unfinished;
static atomic_int freed;
static char good[512];

zero_status __real_comm_open(const struct comm_ops *transport, const struct comm_options *options,
                             struct comm **out_comm, struct zero_error *error);
zero_status __wrap_comm_open(const struct comm_ops *transport, const struct comm_options *options,
                             struct comm **out_comm, struct zero_error *error);
zero_status __real_comm_run(struct comm_group *group, const struct comm_call *call);
zero_status __wrap_comm_run(struct comm_group *group, const struct comm_call *call);
void __real_free(void *memory);
void __wrap_free(void *memory);

static _Thread_local struct comm *comm; /* of this thread's rank */

zero_status __wrap_comm_open(const struct comm_ops *transport, const struct comm_options *options,
                             struct comm **out_comm, struct zero_error *error) {
    zero_status status = __real_comm_open(transport, options, out_comm, error);
    if (!status) comm = *out_comm;
    return status;
}

zero_status __wrap_comm_run(struct comm_group *group, const struct comm_call *call) {
    bool first = comm_rank(comm) == 0, counts = call->what && strcmp(call->what, row->what) == 0;
    if (counts && first) atomic_fetch_add(&begun, 1);
    if (counts && !first && ++counted == row->count) {
        while (atomic_load(&begun) < counted) sched_yield();
        comm_fail(comm, &(struct zero_error){.code = ZERO_E_IO, .message = "the drive is gone"});
    }
    zero_status status = __real_comm_run(group, call);
    uintptr_t none = 0, memory = (uintptr_t)(call->source ? call->source : call->target);
    if (first && status && memory) atomic_compare_exchange_strong(&unfinished, &none, memory);
    return status;
}

void __wrap_free(void *memory) {
    uintptr_t before = atomic_load(&unfinished) - (uintptr_t)memory; /* wraps, where it is below */
    if (memory && before < malloc_usable_size(memory)) atomic_fetch_add(&freed, 1);
    __real_free(memory);
}

struct rank {
    pthread_t thread;
    zero_runtime runtime;
};

static void *run(void *user) {
    const zero_runtime *runtime = &((struct rank *)user)->runtime;
    struct plain p;
    struct plain_param param = {"a", runtime->model_rank ? "b.w" : "a.w", 100, 0, NULL};
    zero_engine *engine =
        zero_engine_init_with(row->json && !runtime->local_rank ? row->json : good, runtime);
    if (engine) CHECK(plain_open(&p, engine, &param, 1, NULL) != ZERO_OK);
    zero_engine_destroy(engine);
    return NULL;
}

static void fail_in_the_row(void) {
    zero_local *local = zero_local_create(RANKS);
    struct rank rank[RANKS];
    counted = 0;
    atomic_store(&begun, 0);
    atomic_store(&unfinished, 0);
    atomic_store(&freed, 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        rank[r].runtime = (zero_runtime){.struct_size = sizeof(zero_runtime),
                                         .local = local,
                                         .local_rank = r,
                                         .model_rank = row->model_size ? r : 0,
                                         .model_size = row->model_size};
        pthread_create(&rank[r].thread, NULL, run, &rank[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(rank[r].thread, NULL);
    bool kept = CHECK_INT(freed, 0);
    zero_local_destroy(local);
    if (!CHECK(unfinished != 0) || (kept && !CHECK_INT(freed, 1))) kept = false;
    if (!kept) fprintf(stderr, "%s, call %d\n", row->what, row->count);
}

int main(void) {
    const char *directory = getenv("TEST_TMPDIR");
    snprintf(good, sizeof good,
             "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
             "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", "
             "\"nvme_path\": \"%s\"}}}",
             directory ? directory : "/tmp");
    for (row = rows; row < rows + sizeof rows / sizeof *rows; row++) fail_in_the_row();
    return check_end();
}
