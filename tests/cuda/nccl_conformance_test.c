/* nccl_conformance_test BESIDE RANKS [FAULT]: the conformance suite on transport nccl, over the stand-ins: ranks are
 * threads that share a GPU, beside a comm of transport BESIDE (local or tcp). Its results are those of the host's
 * transport local, by their hashes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/comm/comm.h"
#include "engine/comm/socket.h"
#include "engine/device/device.h"
#include "tests/check.h"
#include "tests/comm/conformance.h"

enum { RANKS_AT_MOST = 8, WHOLE_SUITE = -1 };

struct rank {
    pthread_t thread;
    enum comm_transport beside;
    struct comm_options options;
    int fault;
    bool on_gpu;
    struct conformance conformance;
};

static void print_line(void *user, zero_log_level level, const char *line) { printf("%s\n", line); }

static void require(zero_status status, const struct zero_error *error) {
    if (CHECK_INT(status, ZERO_OK)) return;
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct conformance *conformance = &rank->conformance;
    struct comm *beside;
    struct zero_error error;
    error_clear(&error);
    require(comm_open(rank->beside, &rank->options, &beside, &error), &error);
    conformance->comm = beside;
    if (rank->on_gpu) {
        struct comm_options options = rank->options;
        require(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &conformance->device, &error),
                &error);
        options.beside = beside, options.device = conformance->device;
        require(comm_open(COMM_NCCL, &options, &conformance->comm, &error), &error);
        CHECK_STRING(comm_name(conformance->comm), "nccl");
    }
    if (rank->fault == WHOLE_SUITE) {
        conformance_run(conformance);
        comm_close(conformance->comm);
    } else {
        conformance_run_fault(conformance, (enum conformance_fault)rank->fault);
    }
    if (!rank->on_gpu) return NULL;
    comm_close(beside);
    conformance->device->ops->close(conformance->device);
    return NULL;
}

static uint32_t free_port(void) {
    int listener = socket_listen(0);
    uint32_t port = socket_port(listener);
    close(listener);
    return port;
}

static void run(enum comm_transport beside, uint32_t count, int fault, bool on_gpu, uint64_t *out_hash) {
    struct rank ranks[RANKS_AT_MOST];
    struct local_world *local = local_world_create(count);
    uint32_t port = free_port();
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){.beside = beside, .fault = fault, .on_gpu = on_gpu};
        ranks[r].options = (struct comm_options){.rank = r,
                                                 .size = count,
                                                 .timeout_s = fault == FAULT_STUCK ? 0.5 : 30,
                                                 .local = local,
                                                 .master = "127.0.0.1",
                                                 .master_port = port,
                                                 .log = {.write = print_line}};
        ranks[r].conformance = (struct conformance){.pause = conformance_idle, .seed = 11, .light = true};
        ranks[r].conformance.timeout_s = ranks[r].options.timeout_s;
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < count; r++) pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < count; r++) out_hash[r] = ranks[r].conformance.hash;
    local_world_destroy(local);
}

int main(int argc, char **argv) {
    uint64_t here[RANKS_AT_MOST], there[RANKS_AT_MOST];
    if (argc < 3) return fprintf(stderr, "usage: nccl_conformance_test local|tcp RANKS [FAULT]\n"), 2;
    enum comm_transport beside = strcmp(argv[1], "tcp") == 0 ? COMM_TCP : COMM_LOCAL;
    uint32_t count = (uint32_t)atoi(argv[2]);
    int fault = WHOLE_SUITE;
    for (int f = 0; f < FAULTS && argc > 3; f++)
        if (strcmp(argv[3], conformance_fault_names[f]) == 0) fault = f;
    if (count < 1 || count > RANKS_AT_MOST || (argc > 3 && fault == WHOLE_SUITE)) return 2;
    run(beside, count, fault, true, there);
    if (fault != WHOLE_SUITE) return check_end();
    run(COMM_LOCAL, count, WHOLE_SUITE, false, here);
    for (uint32_t r = 0; r < count; r++) CHECK_INT(there[r], here[r]);
    return check_end();
}
