/* A failure on one rank ends all ranks, and each names that rank and the reason. The ranks are threads of this process
 * or, with an argument, this process is one rank of mpirun's. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

enum { RANKS = 3, CULPRIT = 1, SOON_MS = 60000 };

#define COMM "\"comm\": {\"timeout_s\": 300}"
#define GOOD "{\"train_micro_batch_size_per_gpu\": 3, \"memory\": {\"nvme\": 8192}, " COMM "}"

static const struct fault {
    const char *name, *config; /* of the culprit */
    const char *model;         /* NULL, or the text of its config.json */
    uint64_t nvme_bytes;       /* that it reserves */
    zero_status status;        /* its own */
    const char *says, *others_say;
} faults[] = {
    {"a wrong key", "{\"train_micro_batch_size_per_gpu\": 3, \"stagee\": 1}", NULL, 0, ZERO_E_CONFIG,
     "stagee", "rank 1: "},
    {"no such file", "/nowhere/config.json", NULL, 0, ZERO_E_IO, "cannot be opened", "rank 1: "},
    {"an impossible batch", "{\"train_micro_batch_size_per_gpu\": 3, \"train_batch_size\": 4, " COMM "}",
     NULL, 0, ZERO_E_CONFIG, "train_batch_size", "rank 1: "},
    {"another configuration", "{\"train_micro_batch_size_per_gpu\": 4, " COMM "}", NULL, 0, ZERO_E_CONFIG,
     "rank 1 has another configuration", "rank 1 has another configuration"},
    {"a budget", GOOD, NULL, 16384, ZERO_E_BUDGET, "memory.nvme", "rank 1 failed: "},
    {"another model", GOOD, "{\"n_embd\": 64, \"n_head\": 2}", 0, ZERO_E_CONFIG,
     "rank 1 has another configuration", "rank 1 has another configuration"},
    {"a wrong model", GOOD, "{\"n_layers\": 2}", 0, ZERO_E_CONFIG, "model.n_layers: unknown key", "rank 1: "},
};

static const char *model_directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static void write_model(const char *text) {
    const char *directory = model_directory();
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "w");
    if (CHECK(file)) fputs(text, file), fclose(file);
}

/* A rank that waits for another one's part waits for comm.timeout_s. */
static void was_soon(uint64_t began_ns) { CHECK((clock_now_ns() - began_ns) / 1000000 < SOON_MS); }

/* One rank's part; a rank that gets through is a failure of the test. */
static void run(const struct fault *fault, uint32_t rank, zero_runtime runtime) {
    bool culprit = rank == CULPRIT;
    runtime.struct_size = sizeof runtime;
    if (culprit && fault->model) {
        write_model(fault->model);
        runtime.model = model_directory();
    }
    struct toy_result *result = calloc(1, sizeof *result);
    struct toy_setup setup = toy_setup_default();
    setup.ranks = RANKS;
    setup.nvme_bytes = culprit ? fault->nvme_bytes : 0;
    uint64_t began_ns = clock_now_ns();
    zero_engine *engine = zero_engine_init_with(culprit ? fault->config : GOOD, &runtime);
    if (engine) toy_train_rank(engine, &setup, result);
    was_soon(began_ns);
    const char *error = engine ? result->error : zero_last_error();
    if (engine && culprit) CHECK_INT(result->status, fault->status);
    int same = CHECK_CONTAINS(error, fault->says);
    if (!culprit) same &= CHECK_CONTAINS(error, fault->others_say);
    if (!same) fprintf(stderr, "rank %u, %s\n", rank, fault->name);
    zero_engine_destroy(engine);
    free(result);
}

struct seat {
    pthread_t thread;
    const struct fault *fault;
    zero_local *local;
    uint32_t rank;
};

static void *run_thread(void *argument) {
    const struct seat *seat = argument;
    run(seat->fault, seat->rank, (zero_runtime){.local = seat->local, .local_rank = seat->rank});
    return NULL;
}

static void run_threads(const struct fault *fault) {
    struct seat seats[RANKS];
    zero_local *local = zero_local_create(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        seats[r] = (struct seat){.fault = fault, .local = local, .rank = r};
        pthread_create(&seats[r].thread, NULL, run_thread, &seats[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(seats[r].thread, NULL);
    zero_local_destroy(local);
}

/* ---- what is right on all ranks ---- */

struct opened {
    zero_local *local;
    uint32_t rank;
    bool bound; /* to one CPU */
    uint32_t cpus, threads;
    bool logged; /* a line about the model file's keys */
};

static void find_line(void *user, zero_log_level level, const char *line) {
    struct opened *o = user;
    if (strstr(line, "model.resid_pdrop = 0.25: accepted")) o->logged = true;
}

static void *open_engine(void *argument) {
    struct opened *o = argument;
    cpu_set_t cpus;
    CHECK_INT(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    o->cpus = (uint32_t)CPU_COUNT(&cpus);
    for (int c = 0, seen = 0; o->bound && c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &cpus) && seen++) CPU_CLR(c, &cpus);
    CHECK_INT(sched_setaffinity(0, sizeof cpus, &cpus), 0); /* of this thread alone */
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = o->local,
                            .local_rank = o->rank,
                            .log = find_line,
                            .log_user = o,
                            .model = model_directory()};
    uint64_t began_ns = clock_now_ns();
    zero_engine *engine = zero_engine_init_with(GOOD, &runtime);
    was_soon(began_ns);
    if (!CHECK(engine)) return fprintf(stderr, "%s\n", zero_last_error()), NULL;
    o->threads = zero_engine_threads(engine);
    zero_engine_destroy(engine);
    return NULL;
}

/* All ranks share all CPUs, or ranks 0 and 1 share one and rank 2 has all; and rank 0 logs what became of the
 * model file's keys. */
static void cpus_and_model(bool bound) {
    pthread_t threads[RANKS];
    struct opened opened[RANKS];
    zero_local *local = zero_local_create(RANKS);
    write_model("{\"n_embd\": 64, \"n_head\": 2, \"resid_pdrop\": 0.25}");
    for (uint32_t r = 0; r < RANKS; r++) {
        opened[r] = (struct opened){.local = local, .rank = r, .bound = bound && r < 2};
        pthread_create(&threads[r], NULL, open_engine, &opened[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    zero_local_destroy(local);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t cpus = opened[r].bound ? 1 : opened[r].cpus;
        uint32_t sharers = !bound || opened[r].cpus == 1 ? RANKS : r < 2 ? 2 : 1;
        CHECK_INT(opened[r].threads, cpus > sharers ? cpus / sharers : 1);
        CHECK_INT(opened[r].logged, r == 0);
    }
}

int main(int argc, char **argv) {
    const char *launched = getenv("OMPI_COMM_WORLD_RANK");
    if (argc > 1) { /* MPI cannot be used again after a failure: one fault per process */
        if (CHECK(launched != NULL)) run(&faults[atoi(argv[1])], (uint32_t)atoi(launched), (zero_runtime){0});
    } else {
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) run_threads(&faults[f]);
        cpus_and_model(false);
        cpus_and_model(true);
    }
    return check_end();
}
