/* mpi_interrupted CASE: two ranks under mpirun. Rank 1 is interrupted, once, while it waits for rank 0 to open (0, 2), or to make a
 * group (1). Rank 0 comes then. If it comes soon (0, 1), rank 1 tells it. If it comes when rank 1 has left (2), it waits no longer than
 * 10 x timeout_s. No rank waits inside of MPI, for ever. */
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/comm/comm.h"
#include "tests/check.h"

enum { RANKS = 2, TIMEOUT_S = 3, SOON_S = 60 };
enum { OPENING, GROUPING, OPENING_LATE };

static const uint32_t all[RANKS] = {0, 1};
static char sign[512]; /* a file: rank 0 may come */
static int which;
static bool armed;

static void give_sign(void) { fclose(fopen(sign, "w")); }

static bool ask(void *user) {
    bool interrupts = armed;
    armed = false;
    if (interrupts && which != OPENING_LATE) give_sign();
    return interrupts;
}

static void await_sign(void) {
    struct stat found;
    while (stat(sign, &found)) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static zero_status open_rank(struct comm **out_comm, struct zero_error *error) {
    struct comm_options options = {.timeout_s = TIMEOUT_S, .interrupted = ask};
    error_clear(error);
    return comm_open(&comm_mpi_ops, &options, out_comm, error);
}

static zero_status open_group(struct comm *comm, struct comm_group **out_group, struct zero_error *error) {
    zero_status status = comm_group_open(comm, all, RANKS, out_group);
    if (!status) status = comm_run(*out_group, &(struct comm_call){.kind = COMM_BARRIER});
    return status ? error_pass(error, comm_error(comm)) : ZERO_OK;
}

int main(int argc, char **argv) {
    which = argc > 1 ? atoi(argv[1]) : OPENING;
    struct comm *comm = NULL;
    struct comm_group *group = NULL;
    struct zero_error error;
    snprintf(sign, sizeof sign, "%s/interrupted", getenv("TEST_TMPDIR"));
    if (!CHECK_INT(open_rank(&comm, &error), ZERO_OK)) return check_end(); /* MPI itself has begun on both */
    uint32_t me = comm_rank(comm);
    if (which != GROUPING) comm_close(comm), comm = NULL;
    armed = me == 1;
    if (me == 0) await_sign();
    uint64_t since_ns = clock_now_ns();
    zero_status status = comm ? ZERO_OK : open_rank(&comm, &error);
    if (me == 1 && which == OPENING_LATE) give_sign();
    if (!status) status = open_group(comm, &group, &error);
    bool late = me == 0 && (which == OPENING_LATE || status == ZERO_E_PEER); /* else: on a busy machine */
    CHECK_INT(status, late ? ZERO_E_PEER : ZERO_E_INTERRUPTED);
    CHECK_CONTAINS(error.message, late ? "rank 0 waited" : "interrupted");
    CHECK((clock_now_ns() - since_ns) / 1000000000 < SOON_S);
    if (group) comm_group_close(group);
    comm_close(comm);
    printf("rank %u %s: %s\n", me, late ? "came late" : "ends", error.message);
    return check_end();
}
