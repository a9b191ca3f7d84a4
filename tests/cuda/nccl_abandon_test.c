/* A rank whose peer stays away may give up its calls, and only then free memory of its GPU, because the driver waits
 * for NCCL's kernels; here two calls, of two groups. Also tests ranks that share a GPU, which NCCL refuses. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "tests/check.h"

enum { RANKS = 2, COUNT = 64, GROUPS = 2, POLLS = 200 };

struct rank {
    pthread_t thread;
    pthread_barrier_t *barrier; /* of all */
    struct local_world *local;
    uint32_t rank;
    int64_t gpu;
    void (*body)(struct rank *rank);
    struct device *device;
    struct comm *comm;
};

static void all_ranks(struct rank *rank, struct comm_group **out) {
    uint32_t ranks[RANKS] = {0, 1};
    CHECK_INT(comm_group_open(rank->comm, ranks, RANKS, out), ZERO_OK);
}

/* An all-gather and an all-to-all are on two streams. */
static void post(struct comm_group *group, enum comm_kind kind, float *memory) {
    struct comm_work *work;
    struct comm_call call = {
        .kind = kind, .count = COUNT, .what = "h.1", .source = memory, .target = memory + RANKS * COUNT};
    bool done = false;
    zero_status status = comm_post(group, &call, &work);
    for (int i = 0; i < POLLS && !status; i++) status = comm_test(work, &done);
    CHECK_INT(status, ZERO_OK);
    CHECK(!done);
}

static void abandon(struct rank *rank) {
    struct comm_group *group[GROUPS];
    struct device *device = rank->device;
    uint64_t bytes = 4 * RANKS * COUNT * sizeof(float);
    float *memory = device->ops->allocate(device, bytes, DEVICE_MEMORY);
    for (int g = 0; g < GROUPS; g++) all_ranks(rank, &group[g]);
    pthread_barrier_wait(rank->barrier); /* a failure would end the opening of a slower one */
    if (rank->rank == 0) {
        struct zero_error error = {.code = ZERO_E_IO};
        strcpy(error.message, "the drive is gone");
        post(group[0], COMM_ALL_GATHER, memory);
        post(group[1], COMM_ALL_TO_ALL, memory);
        comm_abandon(rank->comm); /* nothing has failed: nothing is given up */
        post(group[0], COMM_ALL_GATHER, memory);
        comm_fail(rank->comm, &error);
    }
    comm_abandon(rank->comm);
    device->ops->release(device, memory, bytes, DEVICE_MEMORY);
    pthread_barrier_wait(rank->barrier); /* who closes aborts its own part alone */
    for (int g = 0; g < GROUPS; g++) comm_group_close(group[g]);
}

static void split_fails(struct rank *rank) {
    uint32_t ranks[RANKS] = {0, 1};
    struct comm_group *first, *second;
    all_ranks(rank, &first);
    pthread_barrier_wait(rank->barrier);
    CHECK_INT(comm_group_open(rank->comm, ranks, RANKS, &second), ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(rank->comm)->message, "making a group of 2 ranks failed");
    comm_group_close(first);
}

static void refused(struct rank *rank) {
    uint32_t ranks[RANKS] = {0, 1};
    struct comm_group *group;
    CHECK_INT(comm_group_open(rank->comm, ranks, RANKS, &group), ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(rank->comm)->message, "Duplicate GPU");
    CHECK_CONTAINS(comm_error(rank->comm)->message, "each rank needs its own GPU");
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct zero_error error;
    struct comm_options options = {.rank = rank->rank, .size = RANKS, .timeout_s = 30, .local = rank->local};
    error_clear(&error);
    CHECK_INT(
        device_table[DEVICE_CUDA]->open(&(struct device_options){.index = rank->gpu}, &rank->device, &error),
        ZERO_OK);
    CHECK_INT(comm_open(&comm_local_ops, &options, &rank->comm, &error), ZERO_OK);
    options.beside = rank->comm, options.device = rank->device;
    CHECK_INT(comm_open(&comm_nccl_ops, &options, &rank->comm, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    rank->body(rank);
    comm_close(rank->comm);
    comm_close(options.beside);
    rank->device->ops->close(rank->device);
    return NULL;
}

static void run(void (*body)(struct rank *rank), int64_t gpus) {
    struct rank ranks[RANKS];
    pthread_barrier_t barrier;
    struct local_world *local = local_world_create(RANKS);
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] =
            (struct rank){.barrier = &barrier, .local = local, .rank = r, .gpu = r % gpus, .body = body};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&barrier);
    local_world_destroy(local);
}

int main(void) {
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    setenv("FAKE_NCCL_VERSION", "22203", 1);
    run(abandon, 2);
    setenv("FAKE_NCCL_VERSION", "22005", 1); /* aborts in no NCCL group */
    run(abandon, 2);
    setenv("FAKE_NCCL_VERSION", "22602", 1); /* splits the second group off the first */
    run(abandon, 2);
    setenv("FAKE_NCCL_SPLITS", "fail", 1);
    run(split_fails, 2);
    run(refused, 1);
    return check_end();
}
