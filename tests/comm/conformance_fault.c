#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/comm/transport.h"
#include "tests/check.h"
#include "tests/comm/ring.h"

const char *const conformance_fault_names[FAULTS] = {
    [FAULT_DIVERGED] = "diverged", [FAULT_FAILED] = "failed", [FAULT_CLOSED] = "closed",
    [FAULT_STUCK] = "stuck",       [FAULT_KILLED] = "killed", [FAULT_STOPPED] = "stopped",
    [FAULT_UNOPENED] = "unopened", [FAULT_EXITED] = "exited", [FAULT_UNCLOSED] = "unclosed"};

enum { FAULT_COUNT = 100 };

static zero_status run_start(struct conformance *c, struct comm_group *group);

/* Until the comm fails. Transport mpi may complete calls that do not match, when their sizes do: then it is
 * found by and by, many calls later, and still the first one that differed is named. */
static zero_status wait_for_failure(struct conformance *c, struct comm_group *group, struct comm_work *work) {
    bool done = false;
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && !done) {
        status = comm_test(work, &done);
        if (status == ZERO_OK && !done) c->pause(c);
    }
    CHECK(!done || strcmp(comm_name(c->comm), "mpi") == 0);
    while (status == ZERO_OK) {
        struct timespec nap = {0, 500000};
        nanosleep(&nap, NULL);
        status = run_start(c, group);
    }
    return status;
}

static zero_status run_start(struct conformance *c, struct comm_group *group) {
    struct comm_work *work;
    bool done = false;
    zero_status status =
        comm_post(group, &(struct comm_call){.kind = COMM_BARRIER, .what = "the start"}, &work);
    while (status == ZERO_OK && !done) {
        status = comm_test(work, &done);
        if (status == ZERO_OK && !done) c->pause(c);
    }
    return status;
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Until the others gave up: they tell every rank, also one whose process they take for stuck. */
static void stay_away(const struct conformance *c, double at_most_s) {
    uint64_t begin_ns = clock_now_ns();
    while (!comm_failure_raised(c->comm->failure) && (double)(clock_now_ns() - begin_ns) < at_most_s * 1e9)
        nap(0.01);
}

static struct comm_call fault_call(enum conformance_fault fault, bool culprit, float *buffers) {
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .count = FAULT_COUNT,
                             .tag = 3,
                             .what = "h.3",
                             .source = buffers,
                             .target = buffers + FAULT_COUNT};
    if (fault == FAULT_DIVERGED && culprit)
        call.kind = COMM_REDUCE_SCATTER, call.what = "h.2", call.source = buffers + FAULT_COUNT,
        call.target = buffers;
    return call;
}

/* If a process ends, its sockets end, too. */
static bool ends_connections(const struct conformance *c, enum conformance_fault fault) {
    return (fault == FAULT_KILLED || fault == FAULT_EXITED) && strcmp(comm_name(c->comm), "mpi") != 0;
}

static void check_message(struct conformance *c, enum conformance_fault fault, bool culprit) {
    const struct zero_error *error = comm_error(c->comm);
    char name[32];
    snprintf(name, sizeof name, "rank %u", comm_size(c->comm) - 1);
    printf("rank %u: %s: %s\n", comm_rank(c->comm), zero_status_name(error->code), error->message);
    fflush(stdout);
    if (fault == FAULT_FAILED && culprit) {
        CHECK_STRING(error->message, "the drive is gone");
        return;
    }
    CHECK_CONTAINS(error->message, name);
    if (fault == FAULT_FAILED)
        CHECK_CONTAINS(error->message, "the drive is gone");
    else if (fault == FAULT_UNOPENED)
        CHECK_CONTAINS(error->message, "did not open a group of 3 ranks");
    else
        CHECK_CONTAINS(error->message, "all-gather of h.3 (100 x fp32, tag 3), call 1 of group 0");
    if (fault == FAULT_DIVERGED) CHECK_CONTAINS(error->message, "reduce-scatter of h.2 (100 x fp32, tag 3)");
    if (ends_connections(c, fault))
        CHECK_CONTAINS(error->message, "rank 2 is gone: its connection to rank ");
    else if (fault >= FAULT_KILLED)
        CHECK_CONTAINS(error->message, "rank 2 has been silent for 3.");
    if (fault != FAULT_DIVERGED) CHECK_INT(error->rank, comm_size(c->comm) - 1);
}

void conformance_run_fault(struct conformance *c, enum conformance_fault fault) {
    struct ring world;
    struct comm_work *work = NULL;
    uint32_t size = comm_size(c->comm);
    bool culprit = comm_rank(c->comm) == size - 1;
    /* A call that never finished keeps its buffers: peers may read them until all ranks have closed. */
    float *buffers = ring_allocate(c, (size + 1) * FAULT_COUNT * sizeof *buffers);
    void *staging = ring_allocate(c, (size + 1) * FAULT_COUNT * sizeof *buffers);
    c->kept[0] = buffers, c->kept[1] = staging;
    if (!c->device) memset(buffers, 0, (size + 1) * FAULT_COUNT * sizeof *buffers);
    ring_open(c, &world, 0, 1, size);
    zero_status started = run_start(c, world.group);
    struct comm_call call = fault_call(fault, culprit, buffers);
    call.staging = staging;
    if (started != ZERO_OK) { /* a peer was past the start, and failed, before this rank looked */
        check_message(c, fault, culprit);
    } else if (culprit && (fault == FAULT_KILLED || fault == FAULT_STOPPED)) {
        raise(fault == FAULT_KILLED ? SIGKILL : SIGSTOP);
    } else if (culprit && fault == FAULT_EXITED) {
        exit(0);
    } else if (fault == FAULT_UNOPENED) {
        struct comm_group *second;
        if (culprit) stay_away(c, 40 * c->timeout_s);
        CHECK_INT(comm_group_open(c->comm, world.ranks, size, &second), ZERO_E_PEER);
        check_message(c, fault, culprit);
    } else if (fault == FAULT_UNCLOSED) {
        if (culprit) stay_away(c, 12 * c->timeout_s + 1);
    } else if (culprit && fault == FAULT_FAILED) {
        struct zero_error error = {.code = ZERO_E_IO, .rank = (int32_t)size - 1};
        snprintf(error.message, sizeof error.message, "the drive is gone");
        comm_fail(c->comm, &error);
        CHECK_INT(comm_post(world.group, &call, &work), ZERO_E_IO);
        check_message(c, fault, culprit);
    } else if (culprit && fault == FAULT_STUCK) {
        stay_away(c, 40 * c->timeout_s);
        zero_status status =
            comm_post(world.group, &call, &work); /* it hears of it, too, when it comes back */
        CHECK_INT(status, ZERO_E_PEER);
        check_message(c, fault, culprit);
    } else if (!(culprit && fault == FAULT_CLOSED)) {
        uint64_t begin_ns = clock_now_ns();
        zero_status status = comm_post(world.group, &call, &work);
        if (status == ZERO_OK) status = wait_for_failure(c, world.group, work);
        if (ends_connections(c, fault)) CHECK(clock_now_ns() - begin_ns < (uint64_t)(c->timeout_s * 0.5e9));
        CHECK_INT(status, fault == FAULT_DIVERGED ? ZERO_E_DIVERGED : ZERO_E_PEER);
        CHECK_INT(comm_post(world.group, &call, &work), status); /* sticky */
        check_message(c, fault, culprit);
    }
    comm_group_close(world.group);
    comm_close(c->comm);
}
