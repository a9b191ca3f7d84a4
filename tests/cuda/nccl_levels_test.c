/* What transport nccl sends inside of nodes and between them, for a reduction over four ranks: as comm_call_sent says, for a plan. The
 * bits: conformance_test.c. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "kernels/quantize.h"
#include "tests/check.h"
#include "tests/cuda/counts.h"

enum { RANKS = 4, COUNT = 1000, BYTES = 64 << 10, CODES = 1024 /* bytes: 4 scales, COUNT codes, zeros */ };

static const struct row {
    uint32_t node_ranks; /* 0: no nodes */
    enum comm_kind kind;
    enum dtype dtype;
    uint64_t inside, between; /* by hand: of one rank, without a gather's ring */
    enum code_format code;
    uint64_t stride;
} rows[] = {
    {0, COMM_REDUCE_SCATTER, DTYPE_BF16, 0, 3 * COUNT * 2, CODE_NONE, 0},
    {1, COMM_REDUCE_SCATTER, DTYPE_BF16, 0, 3 * COUNT * 2, CODE_NONE, 0},
    {2, COMM_REDUCE_SCATTER, DTYPE_BF16, 2 * COUNT * 2, COUNT * 4, CODE_NONE, 0},
    {2, COMM_REDUCE_SCATTER, DTYPE_F32, 2 * COUNT * 4, COUNT * 4, CODE_NONE, 0},
    {2, COMM_ALL_REDUCE, DTYPE_BF16, 2 * COUNT / 4 * 2, COUNT / 4 * 4, CODE_NONE, 0},
    {2, COMM_REDUCE_SCATTER, DTYPE_U8, 2 * CODES, COUNT * 4, CODE_INT8, 0},
    {2, COMM_ALL_TO_ALL, DTYPE_BF16, COUNT * 2, 2 * COUNT * 2, CODE_NONE, 0},
    {2, COMM_ALL_GATHER, DTYPE_BF16, 0, 0, CODE_NONE, 2 * COUNT},
};
enum { ROWS = sizeof rows / sizeof *rows };

struct rank {
    pthread_t thread;
    uint32_t rank;
    struct local_world *local;
    pthread_barrier_t *barrier;
};

/* The bytes that this rank has sent to ranks of its node, if nodes have `node_ranks`, and to others. */
static void count_sent(uint32_t rank, uint32_t node_ranks, uint64_t *out_inside, uint64_t *out_between) {
    struct fake_nccl_counts counts;
    CHECK(counts_read_nccl(&counts));
    *out_inside = *out_between = 0;
    for (uint32_t to = 0; to < RANKS; to++)
        if (to != rank)
            *(node_ranks && to / node_ranks == rank / node_ranks ? out_inside : out_between) +=
                counts.sent[rank][to];
}

static void run_row(const struct rank *rank, struct comm *comm, const struct row *row, char *memory) {
    const uint32_t all[RANKS] = {0, 1, 2, 3};
    struct comm_group *group;
    struct comm_counters before, after;
    uint64_t inside[2], between[2];
    CHECK_INT(comm_group_open(comm, all, RANKS, &group), ZERO_OK);
    if (row->node_ranks) comm_group_place(group, row->node_ranks, 1);
    struct comm_call call = {.kind = row->kind,
                             .dtype = row->dtype,
                             .target_dtype = row->code ? DTYPE_F32 : row->dtype,
                             .code = (uint8_t)row->code,
                             .count = COUNT,
                             .stride = row->stride,
                             .source = memory,
                             .target = memory + BYTES,
                             .staging = memory + 2 * BYTES};
    CHECK(comm_staging_bytes(group, &call) <= BYTES);
    struct comm_sent sent = comm_call_sent(group, &call);
    pthread_barrier_wait(rank->barrier);
    count_sent(rank->rank, row->node_ranks, &inside[0], &between[0]);
    comm_counters_read(comm, &before);
    if (!CHECK_INT(comm_run(group, &call), ZERO_OK)) fprintf(stderr, "%s\n", comm_error(comm)->message);
    comm_counters_read(comm, &after);
    count_sent(rank->rank, row->node_ranks, &inside[1], &between[1]);
    bool good = CHECK_INT(inside[1] - inside[0], row->inside);
    good &= CHECK_INT(between[1] - between[0], row->between);
    good &= CHECK_INT(sent.straight + sent.inside + sent.between, row->inside + row->between);
    if (sent.between) good &= CHECK_INT(sent.inside, row->inside) && CHECK_INT(sent.between, row->between);
    good &= CHECK_INT(after.bytes - before.bytes, sent.bytes);
    if (!good) fprintf(stderr, "in row %d\n", (int)(row - rows));
    comm_group_close(group);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct comm_options options = {.rank = rank->rank, .size = RANKS, .timeout_s = 30, .local = rank->local};
    struct device *device;
    struct comm *beside, *comm;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){.index = rank->rank}, &device, &error),
              ZERO_OK);
    CHECK_INT(comm_open(&comm_local_ops, &options, &beside, &error), ZERO_OK);
    options.beside = beside, options.device = device;
    CHECK_INT(comm_open(&comm_nccl_ops, &options, &comm, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    char *memory = device->ops->allocate(device, 3 * BYTES, DEVICE_MEMORY);
    for (int i = 0; i < ROWS && CHECK(memory); i++) run_row(rank, comm, &rows[i], memory);
    pthread_barrier_wait(rank->barrier);
    device->ops->release(device, memory, 3 * BYTES, DEVICE_MEMORY);
    comm_close(comm);
    comm_close(beside);
    device->ops->close(device);
    return NULL;
}

int main(void) {
    struct rank ranks[RANKS];
    pthread_barrier_t barrier;
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    pthread_barrier_init(&barrier, NULL, RANKS);
    struct local_world *local = local_world_create(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.rank = r, .local = local, .barrier = &barrier};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    local_world_destroy(local);
    return check_end();
}
