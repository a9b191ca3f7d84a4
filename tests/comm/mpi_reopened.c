/* mpi_reopened: three ranks under mpirun open two comms, one after the other. Rank 1 comes late to the end of the first closing, when
 * rank 2 needs nothing more from it: its control thread still sends heartbeats to rank 2. Were the closing over for rank 2, MPI would
 * count them as messages of the second comm, whose own messages of the same numbers it would never deliver. */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/comm.h"
#include "tests/check.h"

enum { RANKS = 3, LATE = 1, BEATS = 20, AWAIT_MS = 60000 };

struct rank {
    struct comm *comm;
    char sign[512]; /* a file: rank 1 is late now */
    bool closing, was_late;
    uint64_t first, last; /* rank 1's messages in the first comm until it was late, and after that */
    bool failed;
};

static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static uint64_t sent(const struct rank *rank) {
    struct comm_counters counters;
    comm_counters_read(rank->comm, &counters);
    return counters.control_messages;
}

static void await_sent(const struct rank *rank, uint64_t messages) {
    while (sent(rank) < messages) nap();
}

/* Called while rank 1 waits in the closing; the first call may come before it has told the other ranks that it leaves. */
static bool be_late(void *user) {
    struct rank *rank = user;
    static int calls;
    if (!rank->closing || rank->was_late || ++calls < 3) return false;
    rank->first = sent(rank);
    fclose(fopen(rank->sign, "w"));
    await_sent(rank, rank->first + BEATS);
    rank->last = sent(rank);
    rank->was_late = true;
    return false;
}

static void note_line(void *user, zero_log_level level, const char *line) {
    struct rank *rank = user;
    printf("%s\n", line);
    rank->failed = true;
}

/* Longer than the machine has run, so that the clock is below every limit: a difference of the two must not wrap. */
static double timeout_s(void) { return (double)clock_now_ns() * 1e-9; }

static void open_and_meet(struct rank *rank, struct comm_group **out_group) {
    static const uint32_t all[RANKS] = {0, 1, 2};
    struct comm_options options = {.timeout_s = timeout_s(),
                                   .interrupted = be_late,
                                   .interrupted_user = rank,
                                   .log = {.write = note_line, .user = rank}};
    struct zero_error error;
    error_clear(&error);
    if (!CHECK_INT(comm_open(&comm_mpi_ops, &options, &rank->comm, &error), ZERO_OK) ||
        !CHECK_INT(comm_group_open(rank->comm, all, RANKS, out_group), ZERO_OK) ||
        !CHECK_INT(comm_run(*out_group, &(struct comm_call){.kind = COMM_BARRIER}), ZERO_OK))
        exit(check_end());
}

/* A forked child ends as a program does, and does not finalize its parent's MPI. */
static void fork_and_end(void) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (!child) alarm(AWAIT_MS / 1000), exit(0);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

int main(void) {
    struct rank rank = {0};
    struct comm_group *group;
    struct stat found;
    snprintf(rank.sign, sizeof rank.sign, "%s/late", getenv("TEST_TMPDIR"));
    open_and_meet(&rank, &group);
    uint32_t me = comm_rank(rank.comm);
    for (int ms = 0; me == 2 && ms < AWAIT_MS && stat(rank.sign, &found); ms++) nap();
    rank.closing = me == LATE;
    comm_group_close(group);
    comm_close(rank.comm);
    if (!CHECK(!rank.failed)) return check_end();
    CHECK(rank.was_late == (me == LATE));

    open_and_meet(&rank, &group);
    /* The number of rank 1's last message of calls is that of a heartbeat which it sent when it was late. */
    if (me == LATE) await_sent(&rank, (rank.first + rank.last) / 2);
    comm_group_close(group);
    comm_close(rank.comm);
    CHECK(!rank.failed);
    fork_and_end();
    return check_end();
}
