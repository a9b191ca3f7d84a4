/* Signals belong to the host program: the engine installs no handler, and its own threads take no signals except their
 * own faults. */
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

enum { RANKS = 2 };

/* The signals of one row of /proc/self/.../status: bit s - 1 is signal s. */
static uint64_t status_row(const char *path, const char *row) {
    char line[256];
    uint64_t bits = UINT64_MAX;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, row, strlen(row)) == 0) sscanf(line + strlen(row), "%" SCNx64, &bits);
    if (file) fclose(file);
    return bits;
}

/* 1 to 31: those above are also the C library's own. */
static uint64_t handled(void) { return status_row("/proc/self/status", "SigCgt:") & INT32_MAX; }

/* Threads that take the signal. */
static int takers(int number) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        count += !(status_row(path, "SigBlk:") >> (number - 1) & 1);
    }
    if (tasks) closedir(tasks);
    return count;
}

static const struct plain_param params[] = {{"a", "a.w", 5000, 0, NULL}, {"b", "b.w", 7000, 0, NULL}};

static atomic_int seen, reached, threads; /* threads that take SIGINT, that take SIGBUS, and all */
static int deaf;                          /* threads of a sanitizer, which block all signals */

/* A thread that has just been created blocks all signals until it sets its own mask: the test counts again. */
static void count_threads(void) {
    for (int tries = 0; tries < 3000; tries++) {
        atomic_store(&seen, takers(SIGINT));
        atomic_store(&reached, takers(SIGBUS));
        atomic_store(&threads, takers(SIGKILL)); /* no thread can block SIGKILL */
        if (atomic_load(&reached) == atomic_load(&threads) - deaf) return;
        usleep(20000);
    }
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_status status = engine ? plain_open(&p, engine, params, 2, NULL) : ZERO_E_CONFIG;
    if (!status) status = plain_step(&p, 1, NULL);
    if (!status && rank == 0) {
        count_threads();
    }
    double none = 0; /* the other rank's threads are there until then */
    if (!status) status = zero_engine_sum(engine, &none, 1);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void *nothing(void *argument) { return argument; }

int main(void) {
    char json[1200];
    const char *folder = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
             "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}}}",
             folder);
    /* Sanitizers start a thread of their own with the program's first. */
    pthread_t first;
    if (CHECK(pthread_create(&first, NULL, nothing, NULL) == 0)) pthread_join(first, NULL);
    uint64_t before = handled();
    int others = takers(SIGINT) - 1;
    deaf = takers(SIGKILL) - takers(SIGBUS);
    ranks_run(RANKS, json, train, NULL);
    CHECK_INT(handled(), before);
    CHECK_INT(atomic_load(&seen), 1 + RANKS + others); /* main's thread, and the test's ranks */
    CHECK_INT(atomic_load(&reached), atomic_load(&threads) - deaf);
    CHECK(atomic_load(&threads) > RANKS + 1);
    return check_end();
}
