/* comm_bench local|tcp|tcp-unchecked RANKS | mpirun ... comm_bench mpi RANKS: seconds per call and bytes received per second,
 * per rank. Not a test: its numbers depend on who else uses the machine. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/comm/comm.h"
#include "tests/check.h"

enum { TCP_PORT = 29511, COUNT = 1 << 20, ROUNDS = 30, RANKS_AT_MOST = 16 };

struct rank {
    pthread_t thread;
    struct comm_options options;
    const struct comm_ops *transport;
};

static void measure(struct comm_group *group, struct comm_call call, const char *name) {
    uint64_t best = UINT64_MAX,
             received = (comm_group_size(group) - 1) * call.count * dtype_bytes(call.dtype);
    call.staging = malloc(comm_staging_bytes(group, &call) + 1);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_INT(comm_run(group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK);
        uint64_t begin = clock_now_ns();
        CHECK_INT(comm_run(group, &call), ZERO_OK);
        uint64_t took = clock_now_ns() - begin;
        if (took < best) best = took;
    }
    if (comm_group_index(group) == 0)
        printf("%-30s %9.1f us %7.2f GB/s\n", name, (double)best / 1e3, (double)received / (double)best);
    free(call.staging);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct comm *comm;
    struct comm_group *group;
    struct zero_error error;
    uint32_t members[RANKS_AT_MOST];
    error_clear(&error);
    if (!CHECK_INT(comm_open(rank->transport, &rank->options, &comm, &error), ZERO_OK)) exit(1);
    for (uint32_t i = 0; i < comm_size(comm); i++) members[i] = i;
    if (!CHECK_INT(comm_group_open(comm, members, comm_size(comm), &group), ZERO_OK)) exit(1);
    uint64_t total = (uint64_t)COUNT * comm_size(comm);
    float *source = malloc(total * 4 + 64 * RANKS_AT_MOST), *target = malloc(total * 4);
    for (uint64_t i = 0; i < total; i++) source[i] = 1, target[i] = 0;
    struct comm_call call = {.count = COUNT, .source = source + 16 * comm_rank(comm), .target = target};
    measure(group, (struct comm_call){.kind = COMM_BARRIER}, "barrier");
    call.kind = COMM_ALL_GATHER;
    measure(group, call, "all-gather, 4 MiB shares");
    call.kind = COMM_REDUCE_SCATTER;
    measure(group, call, "reduce-scatter fp32");
    call.native = true;
    measure(group, call, "reduce-scatter fp32, native");
    call.native = false, call.dtype = DTYPE_BF16;
    measure(group, call, "reduce-scatter bf16 into fp32");
    comm_group_close(group);
    comm_close(comm);
    free(source), free(target);
    return NULL;
}

int main(int argc, char **argv) {
    struct rank ranks[RANKS_AT_MOST] = {{.transport = &comm_mpi_ops}};
    uint32_t count = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    if (count < 1 || count > RANKS_AT_MOST)
        return fprintf(stderr, "usage: comm_bench local|mpi|tcp|tcp-unchecked RANKS\n"), 2;
    if (strcmp(argv[1], "mpi") == 0) {
        run_rank(&ranks[0]);
        return check_end();
    }
    struct local_world *world = local_world_create(count);
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){.transport = strncmp(argv[1], "tcp", 3) ? &comm_local_ops : &comm_tcp_ops,
                                 .options = {.rank = r,
                                             .size = count,
                                             .local = world,
                                             .master = "127.0.0.1",
                                             .master_port = TCP_PORT,
                                             .unchecked = strcmp(argv[1], "tcp-unchecked") == 0}};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < count; r++) pthread_join(ranks[r].thread, NULL);
    local_world_destroy(world);
    return check_end();
}
