/* What opens a group of transport nccl: from 2.26.2 on, a second group of the same ranks splits the first one's communicator; the first calls are those that its comm makes; and two processes of one GPU are ranks of
 * one communicator only if NCCL_HOSTID says that they are on two hosts, as tools/gpu-check has them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/comm.h"
#include "engine/comm/tcp/socket.h"
#include "engine/device/device.h"
#include "tests/check.h"
#include "tests/cuda/counts.h"

enum { RANKS = 2, COUNT = 512 };

struct rank {
    pthread_t thread;
    struct local_world *local; /* NULL: over TCP */
    uint32_t rank, port, first_calls;
    int64_t gpu;
    zero_status opened;
    char message[256];
};

/* A first call that is large is refused: the stand-in stands for connections that would be made then. */
static void make_calls(struct rank *rank, struct comm_group *group, struct device *device) {
    uint64_t bytes = 4 * RANKS * COUNT * sizeof(float);
    char *memory = device->ops->allocate(device, 2 * bytes, DEVICE_MEMORY);
    struct comm_call gather = {
        .kind = COMM_ALL_GATHER, .count = COUNT, .source = memory, .target = memory + bytes};
    struct comm_call sum = gather;
    sum.kind = COMM_REDUCE_SCATTER, sum.native = rank->first_calls & COMM_FIRST_SUMS;
    sum.staging = memory + bytes + bytes / 2;
    CHECK(comm_staging_bytes(group, &sum) <= bytes / 2);
    CHECK_INT(comm_run(group, &gather), ZERO_OK);
    CHECK_INT(comm_run(group, &sum), ZERO_OK);
    device->ops->release(device, memory, 2 * bytes, DEVICE_MEMORY);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct zero_error error;
    struct device *device;
    struct comm *beside, *comm;
    struct comm_group *group;
    const uint32_t ranks[RANKS] = {0, 1};
    struct comm_options options = {.rank = rank->rank,
                                   .size = RANKS,
                                   .timeout_s = 30,
                                   .local = rank->local,
                                   .master = "127.0.0.1",
                                   .master_port = rank->port};
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){.index = rank->gpu}, &device, &error),
              ZERO_OK);
    CHECK_INT(comm_open(rank->local ? &comm_local_ops : &comm_tcp_ops, &options, &beside, &error), ZERO_OK);
    options.beside = beside, options.device = device, options.first_calls = rank->first_calls;
    CHECK_INT(comm_open(&comm_nccl_ops, &options, &comm, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    rank->opened = comm_group_open(comm, ranks, RANKS, &group);
    snprintf(rank->message, sizeof rank->message, "%.255s", comm_error(comm)->message);
    struct comm_group *second = NULL, *third = NULL;
    if (!rank->opened) CHECK_INT(comm_group_open(comm, ranks, RANKS, &second), ZERO_OK);
    if (!rank->opened) make_calls(rank, group, device);
    if (second) make_calls(rank, second, device);
    if (second) CHECK_INT(comm_group_open(comm, ranks, RANKS, &third), ZERO_OK); /* the others are at work */
    comm_group_close(third), comm_group_close(second);
    if (!rank->opened) comm_group_close(group);
    comm_close(comm);
    comm_close(beside);
    device->ops->close(device);
    return NULL;
}

static void run_threads(uint32_t first_calls, bool exchanges, uint32_t splits) {
    struct rank ranks[RANKS];
    static struct fake_nccl_counts before;
    struct fake_nccl_counts after;
    struct local_world *local = local_world_create(RANKS);
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.local = local, .rank = r, .first_calls = first_calls, .gpu = r};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (!CHECK_INT(ranks[r].opened, ZERO_OK)) fprintf(stderr, "%s\n", ranks[r].message);
    }
    CHECK(counts_read_nccl(&after));
    CHECK_INT(after.exchanges > before.exchanges, exchanges);
    CHECK_INT(after.communicators - before.communicators, 3 * RANKS);
    CHECK_INT(after.splits - before.splits, splits * RANKS);
    before = after;
    local_world_destroy(local);
}

static int run_process(uint32_t number, uint32_t port, const char *host, bool one_host) {
    struct rank rank = {
        .rank = number, .port = port, .first_calls = COMM_FIRST_GATHERS | COMM_FIRST_EXCHANGES};
    setenv("NCCL_HOSTID", host, 1);
    run_rank(&rank);
    CHECK_INT(rank.opened, one_host ? ZERO_E_PEER : ZERO_OK);
    if (one_host) CHECK_CONTAINS(rank.message, "each rank needs its own GPU");
    return check_end();
}

static void run_processes(bool one_host) {
    static const char *const hosts[RANKS] = {"first", "second"};
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    pid_t pids[RANKS];
    close(listener);
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0) exit(run_process(r, port, hosts[one_host ? 0 : r], one_host));
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        int status;
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void) {
    run_processes(false);
    run_processes(true);
    setenv("FAKE_NCCL_VERSION", "22300", 1);
    run_threads(COMM_FIRST_GATHERS | COMM_FIRST_SUMS, false, 0);
    CHECK(!getenv("NCCL_P2P_DIRECT_DISABLE"));
    setenv("FAKE_NCCL_VERSION", "22203", 1);
    run_threads(COMM_FIRST_GATHERS | COMM_FIRST_SUMS, false, 0);
    CHECK_STRING(getenv("NCCL_P2P_DIRECT_DISABLE"), "1");
    setenv("FAKE_NCCL_VERSION", "22601", 1);
    run_threads(COMM_FIRST_GATHERS | COMM_FIRST_SUMS, false, 0);
    setenv("FAKE_NCCL_VERSION", "22602", 1);
    run_threads(COMM_FIRST_GATHERS | COMM_FIRST_EXCHANGES, true, 1);
    return check_end();
}
