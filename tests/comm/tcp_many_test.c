/* tcp_many_test RANKS PROCESSES [FAULT]: more ranks than have connections to each other. The ranks are threads of some processes
 * on this host. They make calls on the group of all ranks, on that of their node, and on that of equal places in all nodes; then
 * they close, or a fault ends the run on all ranks.
 *
 *   failed    a rank fails
 *   closed    a rank closes before a call that the others make
 *   killed    a process is killed
 *   stopped   a process stands still
 *   files     none: the processes may at first have fewer files than connections to all ranks
 *   full      none: a process may have no more files, until it has said that it cannot take a connection */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/tcp.h"
#include "tests/check.h"

enum { RANKS_MAX = 512, NODE = 8, WORD = 3, FILES_MORE = 24, STACK_BYTES = 256 << 10 };
enum fault { NONE, FAILED, CLOSED, KILLED, STOPPED, FILES, FULL, FAULTS };
static const char *const fault_names[FAULTS] = {"none",    "failed", "closed", "killed",
                                                "stopped", "files",  "full"};

static uint32_t size, processes, port;
static enum fault fault;
static atomic_uint *ready; /* ranks, of all processes, that have made all calls before the fault */

struct rank {
    pthread_t thread;
    uint32_t number;
    struct comm *comm;
};

static struct comm_group *open_group(struct rank *rank, uint32_t first, uint32_t step, uint32_t end) {
    uint32_t ranks[RANKS_MAX], count = 0;
    struct comm_group *group = NULL;
    for (uint32_t r = first; r < end; r += step) ranks[count++] = r;
    CHECK_INT(comm_group_open(rank->comm, ranks, count, &group), ZERO_OK);
    return group;
}

static uint64_t word(uint32_t rank, uint32_t round) { return rank * 1000003ull + round; }

static void gather_rows(struct comm_group *group, uint32_t round, bool in_place) {
    uint32_t count = comm_group_size(group), me = comm_group_index(group);
    const uint32_t *ranks = comm_group_ranks(group);
    uint64_t *rows = calloc((count + 1) * WORD, sizeof *rows),
             *own = in_place ? rows + (1 + me) * WORD : rows;
    for (uint32_t i = 0; i < WORD; i++) own[i] = word(ranks[me], round + i);
    struct comm_call call = comm_rows(rows, WORD * sizeof *rows, "rows");
    call.source = own;
    if (CHECK_INT(comm_run(group, &call), ZERO_OK))
        for (uint32_t m = 0; m < count; m++)
            for (uint32_t i = 0; i < WORD; i++)
                CHECK_INT(rows[(1 + m) * WORD + i], word(ranks[m], round + i));
    free(rows);
}

/* As many calls in flight as the group takes: a rank may be COMM_CALLS_MAX calls ahead of another one. */
static void gather_ahead(struct comm_group *group) {
    enum { CALLS = 3 * COMM_CALLS_MAX };
    uint32_t count = comm_group_size(group), me = comm_group_index(group), posted = 0, done = 0;
    uint64_t *rows = calloc(CALLS * (count + 1), sizeof *rows);
    struct comm_work *works[CALLS];
    zero_status status = ZERO_OK;
    while (done < CALLS && status == ZERO_OK) {
        for (; posted < CALLS && !comm_group_full(group) && status == ZERO_OK; posted++) {
            uint64_t *own = rows + posted * (count + 1);
            struct comm_call call = comm_rows(own, sizeof *rows, "rows");
            own[0] = word(me, posted);
            status = comm_post(group, &call, &works[posted]);
        }
        bool over = false;
        if (status == ZERO_OK) status = comm_test(works[done], &over);
        for (uint32_t m = 0; m < count && over; m++)
            CHECK_INT(rows[done * (count + 1) + 1 + m], word(m, done));
        if (over)
            done++;
        else
            comm_idle(group->comm, 1000000);
    }
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", comm_group_error(group)->message);
    free(rows);
}

static void broadcast(struct comm_group *group, uint32_t root, uint64_t bytes) {
    unsigned char *target = calloc(1, bytes);
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_U8,
                             .count = bytes,
                             .root = root,
                             .what = "an id",
                             .target = target};
    if (comm_group_index(group) == root) memset(target, (int)(root % 255 + 1), bytes);
    CHECK_INT(comm_run(group, &call), ZERO_OK);
    for (uint64_t i = 0; i < bytes; i++)
        if (!CHECK_INT(target[i], root % 255 + 1)) break;
    free(target);
}

static zero_status meet(struct comm_group *group) {
    return comm_run(group, &(struct comm_call){.kind = COMM_BARRIER, .what = "all"});
}

/* Every member exchanges data with every other one. */
static void reduce(struct comm_group *group) {
    uint32_t count = comm_group_size(group), me = comm_group_index(group);
    float *source = malloc(count * sizeof *source), target = 0, sum = 0;
    for (uint32_t m = 0; m < count; m++) source[m] = (float)(me + m), sum += (float)(me + m);
    struct comm_call call = {.kind = COMM_REDUCE_SCATTER,
                             .dtype = DTYPE_F32,
                             .target_dtype = DTYPE_F32,
                             .count = 1,
                             .what = "h.3",
                             .source = source,
                             .target = &target};
    call.staging = malloc(comm_staging_bytes(group, &call) + 1);
    CHECK_INT(comm_run(group, &call), ZERO_OK);
    CHECK_DOUBLE(target, sum, 0);
    free(call.staging), free(source);
}

/* The last rank posts a call that it does not drive until all others are done with it. */
static void gather_without_last(struct rank *rank, struct comm_group *group) {
    enum { LOOKS = 30000 };
    uint64_t *rows = calloc(size + 1, sizeof *rows);
    struct comm_call call = comm_rows(rows, sizeof *rows, "h.4");
    call.passes = false;
    rows[0] = word(rank->number, 0);
    if (rank->number + 1 == size) {
        struct comm_work *work;
        bool done = false;
        CHECK_INT(comm_post(group, &call, &work), ZERO_OK);
        comm_idle(rank->comm, 0);
        for (int i = 0; i < LOOKS && atomic_load(ready) + 1 < size; i++) usleep(1000);
        CHECK_INT(atomic_load(ready), size - 1);
        while (!done && CHECK_INT(comm_test(work, &done), ZERO_OK)) comm_idle(rank->comm, 1000000);
    } else {
        CHECK_INT(comm_run(group, &call), ZERO_OK);
        atomic_fetch_add(ready, 1);
    }
    for (uint32_t m = 0; m < size; m++) CHECK_INT(rows[1 + m], word(m, 0));
    free(rows);
}

/* ---- rank 1's process may have no more files, until it has said that it cannot take a connection ---- */

enum { FULL_RANK = 1 };
static atomic_bool told;

static void hear(void *user, zero_log_level level, const char *line) {
    if (strstr(line, "no more sockets")) atomic_store(&told, true);
}

static void *allow_files(void *user) {
    enum { LOOKS = 30000 };
    for (int i = 0; i < LOOKS && !atomic_load(&told); i++) usleep(1000);
    CHECK(atomic_load(&told));
    CHECK_INT(setrlimit(RLIMIT_NOFILE, user), 0);
    return NULL;
}

static void reduce_without_files(struct comm_group *group) {
    struct rlimit before, full;
    pthread_t thread;
    int next = open("/dev/null", O_RDONLY);
    getrlimit(RLIMIT_NOFILE, &before);
    full = before, full.rlim_cur = (rlim_t)next;
    close(next);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &full), 0);
    pthread_create(&thread, NULL, allow_files, &before);
    reduce(group);
    pthread_join(thread, NULL);
}

/* Two connections to each neighbour, and to the ranks of the own node. */
static void check_connections(const struct rank *rank) {
    const struct tcp_comm *tcp = (const struct tcp_comm *)rank->comm;
    uint32_t most = NODE, made = 0;
    for (uint32_t step = 1; step < size; step *= 2) most += 2;
    for (uint32_t q = 0; q < size; q++) made += atomic_load(&tcp->peers[q].made[LANE_DATA]);
    if (made > most) CHECK_INT(made, most);
}

static void end_badly(struct rank *rank, struct comm_group *all) {
    uint32_t last = size - 1, in_process = size / processes;
    struct zero_error error = {
        .code = ZERO_E_IO, .rank = (int32_t)last, .message = "the drive of rank N is full"};
    atomic_fetch_add(ready, 1);
    while (rank->number == last && atomic_load(ready) < size) usleep(1000);
    if (fault == FAILED && rank->number == last) comm_fail(rank->comm, &error);
    if (fault == CLOSED && rank->number == last) return;
    if (fault == KILLED && rank->number == last) kill(getpid(), SIGKILL);
    if (fault == STOPPED && rank->number == last) kill(getpid(), SIGSTOP);
    while (fault == STOPPED && rank->number == last) pause(); /* the signal may take another thread first */
    zero_status status = meet(all);
    if (fault == FAILED && rank->number == last) return;
    CHECK_INT(status, ZERO_E_PEER);
    const struct zero_error *found = comm_error(rank->comm);
    bool right = found->rank >= 0 && (uint32_t)found->rank / in_process == processes - 1;
    if (fault == FAILED) right = strstr(found->message, error.message) != NULL;
    if (!CHECK(right)) fprintf(stderr, "rank %u: %d: %s\n", rank->number, found->rank, found->message);
}

/* Another job may use the port of this one, which runs. */
static void check_port(void) {
    int listener = socket_listen(NULL, (uint16_t)port);
    CHECK(listener >= 0);
    if (listener >= 0) close(listener);
}

static void *run_rank(void *user) {
    struct rank *rank = user;
    struct zero_error error;
    struct comm_options options = {.rank = rank->number,
                                   .size = size,
                                   .timeout_s = fault == STOPPED ? 4 : 300,
                                   .master = "127.0.0.1",
                                   .master_port = port,
                                   .log = {.write = fault == FULL ? hear : NULL}};
    uint32_t node = rank->number / NODE * NODE;
    error_clear(&error);
    if (!CHECK_INT(comm_open(&comm_tcp_ops, &options, &rank->comm, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    if (rank->number == 0) check_port();
    struct comm_group *all = open_group(rank, 0, 1, size), *own = open_group(rank, node, 1, node + NODE),
                      *across = open_group(rank, rank->number % NODE, NODE, size);
    for (uint32_t round = 0; round < 2; round++) gather_rows(all, round, round);
    gather_ahead(all);
    gather_rows(across, 2, false);
    broadcast(all, 0, 128);
    broadcast(all, size / 2 + 1, 100000);
    broadcast(across, 1, 128);
    broadcast(own, NODE - 1, 128);
    CHECK_INT(meet(all), ZERO_OK);
    reduce(own);
    check_connections(rank);
    if (fault == FULL) CHECK_INT(meet(all), ZERO_OK);
    if (fault == FULL && rank->number == FULL_RANK)
        reduce_without_files(all);
    else if (size <= 64)
        reduce(all);
    if (size <= 64 && !fault) gather_without_last(rank, all);
    if (fault && fault != FULL) end_badly(rank, all);
    comm_group_close(across), comm_group_close(own), comm_group_close(all);
    comm_close(rank->comm);
    return NULL;
}

static int run_process(uint32_t first, uint32_t count) {
    struct rank ranks[RANKS_MAX];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = (struct rank){.number = first + i};
        CHECK_INT(pthread_create(&ranks[i].thread, &attributes, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
    return check_end();
}

static uint32_t free_port(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t found = socket_port(listener);
    close(listener);
    return found;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: tcp_many_test RANKS PROCESSES [FAULT]\n"), 2;
    size = (uint32_t)atoi(argv[1]), processes = (uint32_t)atoi(argv[2]), port = free_port();
    for (int f = 0; f < FAULTS && argc > 3; f++)
        if (strcmp(argv[3], fault_names[f]) == 0) fault = (enum fault)f;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = size + FILES_MORE;
    if (fault == FILES) fault = NONE, setrlimit(RLIMIT_NOFILE, &files);
    pid_t pids[RANKS_MAX];
    ready = mmap(NULL, sizeof *ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t p = 0; p < processes; p++) {
        pids[p] = fork();
        if (pids[p] == 0) exit(run_process(p * (size / processes), size / processes));
    }
    for (uint32_t p = 0; p < processes; p++) {
        bool dies = p + 1 == processes && (fault == KILLED || fault == STOPPED);
        int status;
        if (dies && fault == STOPPED) kill(pids[p], SIGKILL);
        CHECK_INT(waitpid(pids[p], &status, 0), pids[p]);
        CHECK_INT(dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, true);
    }
    return check_end();
}
