/* A group of one rank, in a world of two: it has no communicator, and its calls are at most one copy or one sum of its own memory. All
 * results are those of the host's transport. Counted on the stand-ins for NCCL and for the driver. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "engine/base/numbers/convert.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "kernels/norm.h"
#include "tests/check.h"
#include "tests/cuda/counts.h"

enum { RANKS = 2, COUNT = 2 * NORM_BLOCK_ELEMENTS + 37, BLOCKS = 3, BYTES = COUNT * sizeof(float) };

struct rank {
    pthread_t thread;
    pthread_barrier_t *barrier;
    struct local_world *local;
    uint32_t rank;
    struct device *device;
    struct comm *comm;
    struct comm_group *group;
    char *memory; /* of the GPU: source, target, sums of squares, their total */
};

static const struct row {
    enum comm_kind kind;
    enum dtype dtype, target_dtype;
    bool in_place, add, native, norm;
    uint64_t stride;
    int copies, kernels;
} rows[] = {
    {COMM_ALL_GATHER, DTYPE_F32, DTYPE_F32, .copies = 1},
    {COMM_ALL_GATHER, DTYPE_BF16, DTYPE_BF16, .stride = 2 * COUNT, .copies = 1},
    {COMM_ALL_GATHER, DTYPE_F32, DTYPE_F32, .in_place = true},
    {COMM_ALL_TO_ALL, DTYPE_F16, DTYPE_F16, .copies = 1},
    {COMM_BROADCAST, DTYPE_F32, DTYPE_F32, .in_place = true},
    {COMM_REDUCE_SCATTER, DTYPE_F32, DTYPE_F32, .kernels = 1},
    {COMM_REDUCE_SCATTER, DTYPE_F32, DTYPE_F32, .in_place = true, .kernels = 1},
    {COMM_REDUCE_SCATTER, DTYPE_BF16, DTYPE_F32, .add = true, .stride = COUNT + 1, .kernels = 1},
    {COMM_REDUCE_SCATTER, DTYPE_F32, DTYPE_F32, .native = true, .kernels = 1},
    {COMM_REDUCE_SCATTER, DTYPE_F32, DTYPE_F32, .norm = true, .kernels = 2}, /* and the total */
    {COMM_REDUCE_SCATTER, DTYPE_F32, DTYPE_F32, .norm = true, .in_place = true, .kernels = 2},
    {COMM_ALL_REDUCE, DTYPE_F32, DTYPE_F32, .in_place = true, .kernels = 1},
    {COMM_ALL_REDUCE, DTYPE_F16, DTYPE_F32, .add = true, .kernels = 1},
    {COMM_ALL_REDUCE, DTYPE_BF16, DTYPE_BF16, .native = true, .kernels = 1},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void move(struct rank *rank, void *target, const void *source, uint64_t bytes) {
    struct device *device = rank->device;
    struct zero_error error;
    uint64_t ticket;
    bool done = false;
    error_clear(&error);
    zero_status status = device->ops->copy(device, DEVICE_COMPUTE, target, source, bytes, &ticket, &error);
    while (!status && !done) status = device->ops->test(device, ticket, &done, &error);
    CHECK_INT(status, ZERO_OK);
}

/* The host's transport for one rank. */
static void expect(const struct row *row, const void *source, void *target) {
    struct comm *comm;
    struct comm_group *group;
    struct zero_error error;
    const uint32_t self = 0;
    error_clear(&error);
    CHECK_INT(comm_open(&comm_self_ops, &(struct comm_options){.size = 1, .timeout_s = 30}, &comm, &error),
              ZERO_OK);
    CHECK_INT(comm_group_open(comm, &self, 1, &group), ZERO_OK);
    struct comm_call call = {.kind = row->kind,
                             .dtype = row->dtype,
                             .target_dtype = row->target_dtype,
                             .count = COUNT,
                             .stride = row->stride,
                             .add = row->add,
                             .source = row->in_place ? target : source,
                             .target = target};
    CHECK_INT(comm_run(group, &call), ZERO_OK);
    comm_group_close(group);
    comm_close(comm);
}

static void run_row(struct rank *rank, const struct row *row) {
    static float source[COUNT], target[COUNT], expected[COUNT], got[COUNT];
    char *at[] = {rank->memory, rank->memory + 4 * BYTES, rank->memory + 8 * BYTES};
    struct fake_cuda_counts before, after;
    struct fake_nccl_counts calls;
    struct zero_error error;
    error_clear(&error);
    for (int i = 0; i < COUNT; i++) {
        uint32_t pair = row->dtype == DTYPE_F32 ? bits_of((float)(i % 97) - 48.5f)
                                                : 0x3c003f80u + (uint32_t)i % 63 * 0x10001u;
        source[i] = float_of(pair);
        target[i] = row->target_dtype == DTYPE_F32 ? (float)(i % 31) : float_of(0x3c003c00u);
    }
    if (row->dtype == DTYPE_F32) source[5] = float_of(0xffc12345); /* a sum makes it the one NaN */
    if (row->norm) source[5] = 1;
    if (row->in_place) memcpy(target, source, BYTES);
    memcpy(expected, target, BYTES);
    expect(row, source, expected);
    move(rank, at[0], source, BYTES);
    move(rank, at[1], target, BYTES);
    double *sums = (double *)(void *)at[2];
    struct comm_call call = {.kind = row->kind,
                             .dtype = row->dtype,
                             .target_dtype = row->target_dtype,
                             .count = COUNT,
                             .stride = row->native ? 0 : row->stride,
                             .native = row->native,
                             .add = row->add,
                             .source = at[row->in_place],
                             .target = at[1]};
    if (row->norm)
        call.norm = (struct comm_norm){
            .sums = sums, .all = sums, .total = sums + BLOCKS, .blocks = BLOCKS, .last = true};
    CHECK_INT(comm_staging_bytes(rank->group, &call), 0);
    CHECK(counts_read(&before));
    if (!CHECK_INT(comm_run(rank->group, &call), ZERO_OK))
        fprintf(stderr, "%s\n", comm_error(rank->comm)->message);
    CHECK(counts_read(&after));
    CHECK_INT(after.kernels - before.kernels, row->kernels);
    CHECK_INT(after.copies - before.copies, row->copies);
    move(rank, got, at[1], BYTES);
    if (!CHECK_BYTES(got, expected, BYTES)) fprintf(stderr, "in row %d\n", (int)(row - rows));
    double total;
    move(rank, &total, sums + BLOCKS, sizeof total);
    if (row->norm) CHECK_DOUBLE(total, norm_more(0, expected, row->target_dtype, COUNT), 0);
    CHECK(counts_read_nccl(&calls));
    CHECK_INT(calls.communicators, 0);
    CHECK_INT(calls.calls, 0);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct zero_error error;
    struct comm_options options = {.rank = rank->rank, .size = RANKS, .timeout_s = 30, .local = rank->local};
    const uint32_t all[RANKS] = {0, 1};
    struct comm_group *both;
    struct fake_nccl_counts counts;
    error_clear(&error);
    CHECK_INT(
        device_table[DEVICE_CUDA]->open(&(struct device_options){.index = rank->rank}, &rank->device, &error),
        ZERO_OK);
    CHECK_INT(comm_open(&comm_local_ops, &options, &rank->comm, &error), ZERO_OK);
    options.beside = rank->comm, options.device = rank->device;
    CHECK_INT(comm_open(&comm_nccl_ops, &options, &rank->comm, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    CHECK_INT(comm_group_open(rank->comm, &rank->rank, 1, &rank->group), ZERO_OK);
    pthread_barrier_wait(rank->barrier);
    uint64_t bytes = 9 * BYTES;
    rank->memory = rank->device->ops->allocate(rank->device, bytes, DEVICE_MEMORY);
    if (rank->rank == 0 && CHECK(rank->memory))
        for (int i = 0; i < ROWS; i++) run_row(rank, &rows[i]);
    struct comm_call barrier = {.kind = COMM_BARRIER};
    CHECK_INT(comm_run(rank->group, &barrier), ZERO_OK);
    pthread_barrier_wait(rank->barrier);
    rank->device->ops->release(rank->device, rank->memory, bytes, DEVICE_MEMORY);
    /* Both together have a communicator each. */
    CHECK_INT(comm_group_open(rank->comm, all, RANKS, &both), ZERO_OK);
    pthread_barrier_wait(rank->barrier);
    CHECK(counts_read_nccl(&counts));
    CHECK_INT(counts.communicators, RANKS);
    CHECK(counts.calls > 0);
    comm_group_close(both);
    comm_group_close(rank->group);
    comm_close(rank->comm);
    comm_close(options.beside);
    rank->device->ops->close(rank->device);
    return NULL;
}

int main(void) {
    struct rank ranks[RANKS];
    pthread_barrier_t barrier;
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    struct local_world *local = local_world_create(RANKS);
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.barrier = &barrier, .local = local, .rank = r};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&barrier);
    local_world_destroy(local);
    return check_end();
}
