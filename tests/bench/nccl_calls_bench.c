/* What a call of NCCL costs the host, with communicators that block and with those that do not: the engine's do not, so that
 * every wait has a deadline. Then NCCL starts a thread at each group's end, and says when it has taken the call.
 *
 * Two ranks are processes that share the GPU (tests/README.md). Printed are medians of `calls` all-gathers of 4 KiB, in microseconds:
 * until NCCL has taken the call, asked for without a pause, and until the GPU has made it.
 *   nccl_calls_bench [--calls N] [--json FILE]     300 calls; JSON: an object, appended */
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/nccl/nccl_interface.h"
#include "tests/cuda/gpu.h"

enum { RANKS = 2, BYTES = 4096, CALLS_MAX = 100000 };

#define FUNCTIONS(X)                                                                                         \
    X(ncclGetErrorString)                                                                                    \
    X(ncclGetUniqueId)                                                                                       \
    X(ncclCommInitRankConfig)                                                                                \
    X(ncclCommGetAsyncError)                                                                                 \
    X(ncclCommAbort)                                                                                         \
    X(ncclAllGather)

static struct {
#define FIELD(name) __typeof__(name) *name;
    FUNCTIONS(FIELD)
#undef FIELD
} nccl;

/* What the processes share. */
static struct shared {
    ncclUniqueId id[2];
    atomic_int ids, arrived;
} * shared;

static int calls = 300;

static void must(ncclResult_t result, const char *what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fprintf(stderr, "%s: %s\n", what, nccl.ncclGetErrorString(result));
    exit(1);
}

static void open_library(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
#define LOOK_UP(name)                                                                                        \
    if (library) *(void **)(void *)&nccl.name = dlsym(library, #name);
    FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (library && nccl.ncclCommInitRankConfig) return;
    printf("skipped: there is no NCCL\n");
    exit(0);
}

static void await_taken(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (; state == ncclInProgress; sched_yield())
        must(nccl.ncclCommGetAsyncError(comm, &state), "its state");
    must(state, "a call");
}

static void meet(int ranks) {
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < ranks) sched_yield();
}

static ncclComm_t connect_ranks(int rank, int which) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = which;
    config.maxCTAs = 2;
    if (rank == 0) must(nccl.ncclGetUniqueId(&shared->id[which]), "an id");
    if (rank == 0) atomic_fetch_add(&shared->ids, 1);
    while (atomic_load(&shared->ids) <= which) sched_yield();
    must(nccl.ncclCommInitRankConfig(&comm, RANKS, shared->id[which], rank, &config), "a communicator");
    await_taken(comm);
    return comm;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, (size_t)calls, sizeof *values, ascending);
    return values[calls / 2];
}

/* out: until the call is taken, until it is done. */
static void measure(ncclComm_t comm, CUdeviceptr memory, double out[2]) {
    static double taken[CALLS_MAX], done[CALLS_MAX];
    for (int i = -1; i < calls; i++) { /* the first one connects, and is small as the engine's */
        size_t bytes = i < 0 ? 64 : BYTES;
        uint64_t begin_ns = clock_now_ns();
        must(nccl.ncclAllGather((void *)memory, (void *)(memory + BYTES), bytes, ncclUint8, comm,
                                (cudaStream_t)gpu_stream()),
             "an all-gather");
        await_taken(comm);
        uint64_t taken_ns = clock_now_ns();
        gpu_must(gpu_driver()->cuStreamSynchronize(gpu_stream()), "the stream");
        if (i < 0) continue;
        taken[i] = (double)(taken_ns - begin_ns) * 1e-3, done[i] = (double)(clock_now_ns() - begin_ns) * 1e-3;
    }
    out[0] = median(taken), out[1] = median(done);
}

static int run_rank(int rank, FILE *json) {
    static const char *const settings[][2] = {
        {"NCCL_NET", "Socket"},         {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_RAS_ENABLE", "0"},       {"NCCL_CUMEM_ENABLE", "0"},   {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
        {"NCCL_LAUNCH_RACE_FATAL", "0"}};
    static const char *const names[] = {"do_not_block", "block"};
    CUdeviceptr memory;
    double us[2][2];
    setenv("NCCL_HOSTID", rank ? "host-1" : "host-0", 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) setenv(settings[i][0], settings[i][1], 0);
    open_library();
    gpu_open();
    gpu_must(gpu_driver()->cuMemAlloc(&memory, BYTES * (RANKS + 1)), "memory");
    for (int which = 0; which < 2; which++) {
        ncclComm_t comm = connect_ranks(rank, which);
        measure(comm, memory, us[which]);
        meet((which + 1) * RANKS);
        must(nccl.ncclCommAbort(comm), "the end of a communicator");
    }
    for (int which = 0; which < 2 && rank == 0; which++)
        printf("communicators that %s: taken after %.1f us, done after %.1f us\n", names[which], us[which][0],
               us[which][1]);
    if (json && rank == 0)
        fprintf(json,
                "{\"taken_us\": %.2f, \"done_us\": %.2f, \"blocking_taken_us\": %.2f, \"blocking_done_us\": "
                "%.2f}\n",
                us[0][0], us[0][1], us[1][0], us[1][1]);
    if (json) fclose(json);
    gpu_must(gpu_driver()->cuMemFree(memory), "freeing memory");
    gpu_close();
    return 0;
}

int main(int argc, char **argv) {
    FILE *json = NULL;
    pid_t pids[RANKS];
    int failed = 0, status;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--calls")) calls = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--json")) json = fopen(argv[i + 1], "a");
    }
    if (argc % 2 == 0 || calls < 1 || calls > CALLS_MAX)
        return fprintf(stderr, "usage: nccl_calls_bench [--calls N] [--json FILE]\n"), 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0) exit(run_rank(r, json));
    }
    for (int r = 0; r < RANKS; r++) failed |= waitpid(pids[r], &status, 0) != pids[r] || status;
    return failed;
}
