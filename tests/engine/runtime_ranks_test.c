/* Ranks from zero_runtime: what is given, what is refused, and how ranks on one host share its CPUs. */
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/limits.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/tcp_ranks.h"

static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2}, "
                           "\"comm\": {\"timeout_s\": 5}}";
static const struct plain_param params[] = {{"a", "a.w", 5000, 0, NULL}};

static void refused(zero_runtime runtime, const char *part) {
    zero_engine *engine = NULL;
    CHECK_INT(zero_engine_open(json, &runtime, &engine), ZERO_E_ARGUMENT);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), part);
}

static void mistakes(void) {
    zero_runtime good = tcp_runtime(1, 2, 29500), r;
    zero_local *local = zero_local_create(2);
    int communicator = 0;
    r = good, r.rank = 2;
    refused(r, "zero_runtime.rank is 2 and size is 2: number the ranks from 0 to 1");
    r = good, r.address = NULL;
    refused(r, "zero_runtime.size is 2 without an address");
    r = good, r.address = "";
    refused(r, "zero_runtime.size is 2 without an address");
    r = good, r.port = 0;
    refused(r, "zero_runtime.port is 0");
    r = good, r.port = 65536;
    refused(r, "zero_runtime.port is 65536");
    r = good, r.size = RANKS_MAX + 1;
    refused(r, "there are at most 65536 ranks");
    r = good, r.size = 0;
    refused(r, "zero_runtime.rank is given without size");
    r = good, r.size = r.rank = 0;
    refused(r, "zero_runtime.address is given without size");
    r = good, r.size = r.rank = 0, r.address = NULL;
    refused(r, "zero_runtime.port is given without size");
    r = good, r.local = local;
    refused(r, "says twice which rank this is, by local and by rank and size");
    r = good, r.mpi_comm = &communicator;
    refused(r, "by mpi_comm and by rank and size");
    r = good, r.plan_ranks = 2;
    refused(r, "by plan_ranks and by rank and size");
    r = good, r.size = r.rank = r.port = 0, r.address = NULL, r.local = local, r.mpi_comm = &communicator;
    refused(r, "by local and by mpi_comm");
    r = good, r.address = "no such host";
    refused(r, "zero_runtime.address is \"no such host\"");
    r = good, r.secret = "too short";
    refused(r, "zero_runtime.secret has 9 bytes: a job's secret has 16 to 4096");
    r = good, r.size = r.rank = r.port = 0, r.address = NULL, r.local = local,
    r.secret = "the secret of this job";
    refused(r, "zero_runtime.secret is given, and these ranks do not meet over TCP");
    zero_local_destroy(local);
}

/* A host that was built before these fields were there. */
static void an_older_host(void) {
    zero_runtime older;
    memset(&older, 0xff, sizeof older);
    memset(&older, 0, offsetof(zero_runtime, rank));
    older.struct_size = offsetof(zero_runtime, rank);
    zero_engine *engine = zero_engine_init_with(json, &older);
    if (!CHECK(engine)) fprintf(stderr, "%s\n", zero_last_error());
    CHECK_INT(zero_engine_size(engine), 1);
    zero_engine_destroy(engine);
}

static void one_rank(zero_runtime runtime) {
    runtime.struct_size = sizeof runtime;
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    CHECK_INT(zero_engine_size(engine), 1);
    zero_engine_destroy(engine);
}

static void one_rank_needs_no_address(void) { one_rank((zero_runtime){.size = 1}); }

/* A trainer gives the same at any number of ranks. */
static void one_rank_may_have_a_secret(void) {
    zero_runtime runtime = tcp_runtime(0, 1, 29500);
    runtime.secret = "the secret of this job";
    one_rank(runtime);
    one_rank((zero_runtime){.secret = "the secret of this job"});
}

struct machine {
    int first_cpu[2], cpus[2]; /* of each rank */
    uint32_t threads[2];       /* that it should have */
};

static void keep_line(void *user, zero_log_level level, const char *line) {
    if (strstr(line, "threads each")) snprintf(user, 256, "%s", line);
}

static void bind(int first, int count) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < count; i++) CPU_SET(first + i, &set);
    CHECK_INT(sched_setaffinity(0, sizeof set, &set), 0);
}

static void train(const zero_runtime *given, void *user) {
    const struct machine *machine = user;
    zero_runtime runtime = *given;
    char line[256] = "", share[64];
    struct plain p;
    runtime.log = keep_line, runtime.log_user = line;
    if (machine) bind(machine->first_cpu[runtime.rank], machine->cpus[runtime.rank]);
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    CHECK_INT(zero_engine_rank(engine), runtime.rank);
    CHECK_INT(zero_engine_size(engine), runtime.size);
    if (machine) CHECK_INT(zero_engine_threads(engine), machine->threads[runtime.rank]);
    if (machine && !runtime.rank) {
        snprintf(share, sizeof share, "%u threads each (%d CPUs, shared by ", machine->threads[0],
                 machine->cpus[0]);
        CHECK_CONTAINS(line, share);
    }
    CHECK_INT(plain_open(&p, engine, params, 1, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_engine_destroy(engine);
}

/* Ranks that share CPUs divide them, and ranks that are bound to CPUs of their own have all of these. */
static void ranks_divide_the_cpus(void) {
    cpu_set_t set;
    CHECK_INT(sched_getaffinity(0, sizeof set, &set), 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) first++;
    if (!CPU_ISSET(first + 1, &set)) {
        printf("left out: there are no two adjacent CPUs\n");
        return;
    }
    tcp_processes(2, 200, train, &(struct machine){{first, first}, {2, 2}, {1, 1}});
    tcp_processes(2, 200, train, &(struct machine){{first, first + 1}, {1, 1}, {1, 1}});
    tcp_processes(2, 200, train, &(struct machine){{first, first}, {2, 1}, {2, 1}});
}

/* ---- a rank that does not come as far as to the others: they learn why, and do not wait 10 x timeout_s for it ---- */

enum fault { A_SECRET, TWICE, NO_JSON, NO_SUCH_RANK, TAKEN, UNREADABLE, FAULTS };
static const char *const said[FAULTS] = {"zero_runtime.secret is given",
                                         "says twice",
                                         "json is NULL",
                                         "local_rank is 2",
                                         "was opened before",
                                         "unknown key"};

struct faulty {
    zero_local *local;
    enum fault fault;
    uint32_t rank;
};

static void *opens(void *argument) {
    const struct faulty *f = argument;
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = f->local, .local_rank = f->rank};
    const char *text = f->rank && f->fault == NO_JSON      ? NULL
                       : f->rank && f->fault == UNREADABLE ? "{\"train_batch\": 1}"
                                                           : json;
    zero_engine *engine = NULL;
    if (f->rank && f->fault == A_SECRET) runtime.secret = "the secret of this job";
    if (f->rank && f->fault == TWICE) runtime.size = 2;
    if (f->rank && f->fault == NO_SUCH_RANK) runtime.local_rank = 2;
    if (f->rank && f->fault == TAKEN) runtime.local_rank = 0;
    CHECK(zero_engine_open(text, &runtime, &engine) && !engine);
    CHECK_CONTAINS(zero_last_error(), said[f->fault]);
    return NULL;
}

static void threads_learn_why(void) {
    for (int fault = 0; fault < FAULTS; fault++) {
        pthread_t thread[2];
        zero_local *local = zero_local_create(2);
        struct faulty rank[2] = {{local, (enum fault)fault, 0}, {local, (enum fault)fault, 1}};
        for (int r = 0; r < 2; r++) pthread_create(&thread[r], NULL, opens, &rank[r]);
        for (int r = 0; r < 2; r++) pthread_join(thread[r], NULL);
        zero_local_destroy(local);
    }
}

static void lacks_json(const zero_runtime *runtime, void *user) {
    zero_engine *engine = NULL;
    CHECK_INT(zero_engine_open(runtime->rank ? NULL : json, runtime, &engine), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(),
                   runtime->rank ? "json is NULL" : "rank 1: zero_engine_init: json is NULL");
}

int main(void) {
    mistakes();
    threads_learn_why();
    tcp_processes(2, 20, lacks_json, NULL); /* timeout_s is 5 */
    an_older_host();
    one_rank_needs_no_address();
    one_rank_may_have_a_secret();
    /* A launcher's variables are not read. */
    setenv("WORLD_SIZE", "3", 1), setenv("RANK", "two", 1);
    tcp_processes(2, 200, train, NULL);
    one_rank_needs_no_address();
    unsetenv("WORLD_SIZE"), unsetenv("RANK");
    ranks_divide_the_cpus();
    return check_end();
}
