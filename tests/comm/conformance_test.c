/* conformance_test TRANSPORT RANKS [FAULT]: runs the conformance suite on every rank; of transport mpi this
 * process is one rank, started by mpirun, of transport tcp it starts the ranks and compares their hashes with those
 * of threads. Prints a hash of all results per rank, to be compared between
 * transports. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/comm.h"
#include "engine/comm/local/sim.h"
#include "engine/comm/tcp/socket.h"
#include "tests/check.h"
#include "tests/comm/conformance.h"

enum { RANKS_AT_MOST = 64, WHOLE_SUITE = -1 };

enum { SELF, LOCAL, MPI, TCP, SIM, TRANSPORTS };
static const char *const names[TRANSPORTS] = {"self", "local", "mpi", "tcp", "sim"};
static const struct comm_ops *const transports[TRANSPORTS] = {&comm_self_ops, &comm_local_ops, &comm_mpi_ops,
                                                              &comm_tcp_ops, &comm_sim_ops};

/* Virtual ranks of one sim_world are threads that take turns: one runs at a time. */
struct turns {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t turn, ranks;
    bool ended[RANKS_AT_MOST];
};

struct rank {
    pthread_t thread;
    int transport; /* the index in `names` */
    struct comm_options options;
    struct turns *turns; /* sim */
    int fault;
    struct conformance conformance;
};

static void pass_turn(struct turns *turns, uint32_t rank) {
    uint32_t next = (rank + 1) % turns->ranks;
    while (turns->ended[next] && next != rank) next = (next + 1) % turns->ranks;
    turns->turn = next;
    pthread_cond_broadcast(&turns->changed);
}

static void await_turn(struct turns *turns, uint32_t rank) {
    while (turns->turn != rank) pthread_cond_wait(&turns->changed, &turns->mutex);
}

static void pause_turn(struct conformance *conformance) {
    struct turns *turns = conformance->user;
    uint32_t rank = comm_rank(conformance->comm);
    pass_turn(turns, rank);
    await_turn(turns, rank);
}

/* A failure during closing can only be seen in the log. */
static void print_line(void *user, zero_log_level level, const char *line) {
    printf("%s\n", line);
    fflush(stdout);
}

static void run_rank(struct rank *rank) {
    struct zero_error error;
    struct conformance *conformance = &rank->conformance;
    error_clear(&error);
    conformance->pause = rank->turns ? pause_turn : conformance_idle;
    conformance->user = rank->turns;
    conformance->timeout_s = rank->options.timeout_s;
    if (!CHECK_INT(comm_open(transports[rank->transport], &rank->options, &conformance->comm, &error),
                   ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    CHECK_STRING(comm_name(conformance->comm), names[rank->transport]);
    uint32_t index = comm_rank(conformance->comm), size = comm_size(conformance->comm);
    if (rank->fault != WHOLE_SUITE) {
        conformance_run_fault(conformance, (enum conformance_fault)rank->fault);
        return;
    }
    conformance_run(conformance);
    comm_close(conformance->comm);
    printf("rank %u of %u: hash %016llx\n", index, size, (unsigned long long)conformance->hash);
}

static void *run_thread(void *user) {
    struct rank *rank = user;
    struct turns *turns = rank->turns;
    if (turns) {
        pthread_mutex_lock(&turns->mutex);
        await_turn(turns, rank->options.rank);
    }
    run_rank(rank);
    if (turns) {
        turns->ended[rank->options.rank] = true;
        pass_turn(turns, rank->options.rank);
        pthread_mutex_unlock(&turns->mutex);
    }
    return NULL;
}

/* Shared by ranks that are processes: they write it, and the process that started them reads it. */
struct shared {
    uint64_t hash[RANKS_AT_MOST];
    bool told[RANKS_AT_MOST]; /* while closing: who does not */
};

struct line_writer {
    struct shared *shared;
    uint32_t rank;
};

static void note_line(void *user, zero_log_level level, const char *line) {
    const struct line_writer *writer = user;
    print_line(NULL, level, line);
    if (strstr(line, "while closing: rank 2 is alive but did not close"))
        writer->shared->told[writer->rank] = true;
}

static int run_process(struct shared *shared, const struct rank *of_all, uint32_t r) {
    struct line_writer writer = {shared, r};
    struct rank rank = *of_all;
    rank.options.rank = r;
    rank.options.log = (struct log){.write = note_line, .user = &writer};
    run_rank(&rank);
    shared->hash[r] = rank.conformance.hash;
    free(rank.conformance.kept[0]), free(rank.conformance.kept[1]);
    return check_end();
}

/* A port that was free a moment ago. */
static uint32_t free_port(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    close(listener);
    return port;
}

/* The last process may be killed or stopped, as its fault demands; the others must end without an error. */
static void await_processes(const pid_t *pids, uint32_t count, int fault) {
    for (uint32_t r = 0; r < count; r++) {
        int status;
        if (r == count - 1 && fault == FAULT_STOPPED) kill(pids[r], SIGKILL);
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        if (r == count - 1 && (fault == FAULT_KILLED || fault == FAULT_STOPPED))
            CHECK(WIFSIGNALED(status));
        else
            CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    }
}

static void run_processes(const struct rank *rank, uint32_t count, int fault, struct shared *shared) {
    pid_t pids[RANKS_AT_MOST];
    for (uint32_t r = 0; r < count; r++) {
        pids[r] = fork();
        if (pids[r] == 0) exit(run_process(shared, rank, r));
    }
    await_processes(pids, count, fault);
    for (uint32_t r = 0; r + 1 < count && fault == FAULT_UNCLOSED; r++)
        CHECK(!shared->told[r]); /* they left */
}

/* out_hash[count], or NULL */
static void run_threads(int transport, uint32_t count, int fault, double timeout_s, uint64_t *out_hash) {
    struct rank ranks[RANKS_AT_MOST] = {0};
    struct turns turns = {
        .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .ranks = count};
    struct local_world *local = transport == LOCAL ? local_world_create(count) : NULL;
    struct sim_world *sim = NULL;
    if (transport == SIM)
        sim = sim_world_create(
            &(struct sim_options){.ranks = count, .seed = 5, .completion = 0.3, .levels = true});
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){
            .transport = transport,
            .options = {.rank = r, .size = count, .timeout_s = timeout_s, .local = local, .sim = sim},
            .turns = sim ? &turns : NULL,
            .fault = fault,
            .conformance = {.seed = 11},
        };
        pthread_create(&ranks[r].thread, NULL, run_thread, &ranks[r]);
    }
    for (uint32_t r = 0; r < count; r++) pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < count && out_hash; r++) out_hash[r] = ranks[r].conformance.hash;
    for (uint32_t r = 0; r < count; r++)
        free(ranks[r].conformance.kept[0]), free(ranks[r].conformance.kept[1]);
    local_world_destroy(local);
    sim_world_destroy(sim);
}

static int find(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (names[i] && strcmp(names[i], name) == 0) return i; /* others have a test of their own */
    fprintf(stderr, "there is no \"%s\"\n", name);
    exit(2);
}

static void run_tcp(struct rank *rank, uint32_t count, int fault) {
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t hash[RANKS_AT_MOST];
    rank->options.master = "127.0.0.1";
    rank->options.master_port = free_port();
    run_processes(rank, count, fault, shared);
    if (fault == WHOLE_SUITE) {
        run_threads(LOCAL, count, WHOLE_SUITE, 30, hash);
        for (uint32_t r = 0; r < count; r++) CHECK_INT(shared->hash[r], hash[r]);
    }
    munmap(shared, sizeof *shared);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: conformance_test TRANSPORT RANKS [FAULT]\n"), 2;
    int transport = find(names, TRANSPORTS, argv[1]);
    uint32_t ranks = (uint32_t)atoi(argv[2]);
    int fault = argc > 3 ? find(conformance_fault_names, FAULTS, argv[3]) : WHOLE_SUITE;
    if (ranks < 1 || ranks > RANKS_AT_MOST) return 2;
    if (transport == LOCAL || transport == SIM) {
        run_threads(transport, ranks, fault, fault == FAULT_STUCK ? 0.5 : 30, NULL);
        return check_end();
    }
    struct rank rank = {.transport = transport, .fault = fault, .conformance = {.seed = 11}};
    rank.options.size = transport == MPI ? 0 : ranks;
    bool ends_connections = transport == TCP && (fault == FAULT_KILLED || fault == FAULT_EXITED);
    rank.options.timeout_s = ends_connections ? 60 : fault >= FAULT_STUCK ? 3 : 30;
    rank.options.log = (struct log){.write = print_line};
    if (transport == TCP)
        run_tcp(&rank, ranks, fault);
    else
        run_rank(&rank);
    return check_end();
}
