/* conformance_test WAY RANKS [FAULT]: the conformance suite in a GPU's memory, by the ways that there are: transport nccl
 * beside ranks that are threads or tcp's, and transport local by copies and sums on the device. Ranks are threads, with a
 * GPU each where NCCL is between them, else on one. Results are those of the host's transport local, by their hashes.
 *
 * nccl-hosts: ranks are processes that share one GPU. NCCL takes them for ranks on several hosts (NCCL_HOSTID), and connects them
 * by sockets. So tools/gpu-check tests NCCL itself with several ranks on a machine with one GPU. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/comm.h"
#include "engine/comm/tcp/socket.h"
#include "engine/device/device.h"
#include "tests/check.h"
#include "tests/comm/conformance.h"

enum { RANKS_AT_MOST = 8, WHOLE_SUITE = -1 };

static const struct way {
    const char *name;
    const struct comm_ops *host; /* nccl: what it is beside */
    bool nccl, processes;
} ways[] = {{"nccl-local", &comm_local_ops, true, false},
            {"nccl-tcp", &comm_tcp_ops, true, false},
            {"nccl-hosts", &comm_tcp_ops, true, true},
            {"copies", &comm_local_ops, false, false}};
static const struct way on_host = {"host", &comm_local_ops, false, false};

struct rank {
    pthread_t thread;
    const struct way *way;
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

static void open_rank(struct rank *rank, struct comm **out_beside) {
    struct conformance *conformance = &rank->conformance;
    struct comm_options options = rank->options;
    struct zero_error error;
    error_clear(&error);
    struct device_options gpu = {.index =
                                     rank->way->nccl && !rank->way->processes ? (int64_t)options.rank : 0};
    if (rank->way != &on_host)
        require(device_table[DEVICE_CUDA]->open(&gpu, &conformance->device, &error), &error);
    if (!rank->way->nccl) options.device = conformance->device;
    require(comm_open(rank->way->host, &options, &conformance->comm, &error), &error);
    if (!rank->way->nccl) return;
    *out_beside = conformance->comm;
    options.beside = *out_beside, options.device = conformance->device;
    require(comm_open(&comm_nccl_ops, &options, &conformance->comm, &error), &error);
    CHECK_STRING(comm_name(conformance->comm), "nccl");
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct conformance *conformance = &rank->conformance;
    struct comm *beside = NULL;
    open_rank(rank, &beside);
    if (rank->fault == WHOLE_SUITE) {
        conformance_run(conformance);
        comm_close(conformance->comm);
    } else {
        conformance_run_fault(conformance, (enum conformance_fault)rank->fault);
    }
    comm_close(beside);
    if (conformance->device) conformance->device->ops->close(conformance->device);
    return NULL;
}

static uint32_t free_port(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    close(listener);
    return port;
}

/* Toy sizes: few thread blocks, and no memory that is mapped into other GPUs. */
static void set_host(uint32_t rank) {
    static const char *const settings[][2] = {{"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"},
                                              {"NCCL_MAX_CTAS", "2"},    {"NCCL_NVLS_ENABLE", "0"},
                                              {"NCCL_RAS_ENABLE", "0"},  {"NCCL_CUMEM_ENABLE", "0"},
                                              {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}};
    char host[32];
    snprintf(host, sizeof host, "host-%u", rank);
    setenv("NCCL_HOSTID", host, 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) setenv(settings[i][0], settings[i][1], 0);
}

static int run_process(struct rank *rank, uint64_t *out_hash) {
    set_host(rank->options.rank);
    run_rank(rank);
    *out_hash = rank->conformance.hash;
    return check_end();
}

/* The last process may be killed or stand still. */
static void run_processes(struct rank *ranks, uint32_t count, int fault, uint64_t *out_hash) {
    size_t bytes = count * sizeof *out_hash;
    uint64_t *hash = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[RANKS_AT_MOST];
    for (uint32_t r = 0; r < count; r++) {
        pids[r] = fork();
        if (pids[r] == 0) exit(run_process(&ranks[r], &hash[r]));
    }
    for (uint32_t r = 0; r < count; r++) {
        int status;
        bool dies = r + 1 == count && (fault == FAULT_KILLED || fault == FAULT_STOPPED);
        if (dies && fault == FAULT_STOPPED) kill(pids[r], SIGKILL);
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        CHECK_INT(dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, true);
    }
    memcpy(out_hash, hash, bytes);
    munmap(hash, bytes);
}

static double timeout_of(const struct way *way, int fault) {
    if (fault == FAULT_KILLED) return 60;
    if (fault == FAULT_STOPPED) return 3;
    return fault != FAULT_STUCK ? 30 : way->host == &comm_tcp_ops ? 3 : 0.5;
}

static void run(const struct way *way, uint32_t count, int fault, uint64_t *out_hash) {
    struct rank ranks[RANKS_AT_MOST];
    struct local_world *local = local_world_create(count);
    uint32_t port = free_port();
    double timeout_s = timeout_of(way, fault);
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){.way = way, .fault = fault};
        ranks[r].options = (struct comm_options){.rank = r,
                                                 .size = count,
                                                 .timeout_s = timeout_s,
                                                 .local = local,
                                                 .master = "127.0.0.1",
                                                 .master_port = port,
                                                 .log = {.write = print_line}};
        ranks[r].conformance = (struct conformance){.pause = conformance_idle, .seed = 11, .light = true};
        ranks[r].conformance.timeout_s = ranks[r].options.timeout_s;
        if (!way->processes) pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < count && !way->processes; r++) pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < count; r++) out_hash[r] = ranks[r].conformance.hash;
    if (way->processes) run_processes(ranks, count, fault, out_hash);
    local_world_destroy(local);
}

int main(int argc, char **argv) {
    uint64_t here[RANKS_AT_MOST], there[RANKS_AT_MOST];
    const struct way *way = NULL;
    for (size_t w = 0; w < sizeof ways / sizeof *ways && argc > 2; w++)
        if (strcmp(argv[1], ways[w].name) == 0) way = &ways[w];
    if (way && way->nccl && !way->processes) setenv("FAKE_CUDA_DEVICES", argv[2], 1);
    if (!way)
        return fprintf(stderr,
                       "usage: conformance_test nccl-local|nccl-tcp|nccl-hosts|copies RANKS [FAULT]\n"),
               2;
    uint32_t count = (uint32_t)atoi(argv[2]);
    int fault = WHOLE_SUITE;
    for (int f = 0; f < FAULTS && argc > 3; f++)
        if (strcmp(argv[3], conformance_fault_names[f]) == 0) fault = f;
    if (count < 1 || count > RANKS_AT_MOST || (argc > 3 && fault == WHOLE_SUITE)) return 2;
    run(way, count, fault, there);
    if (fault != WHOLE_SUITE) return check_end();
    run(&on_host, count, WHOLE_SUITE, here);
    for (uint32_t r = 0; r < count; r++) CHECK_INT(there[r], here[r]);
    return check_end();
}
