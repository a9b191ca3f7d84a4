#include "engine/comm/watch.h"

#include <stdio.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/system/thread.h"

void sleep_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void *run_control(void *user) {
    struct watch *watch = user;
    while (!atomic_load(&watch->stop)) {
        control_tick(watch->control, clock_now_ns());
        sleep_ns(control_period_ns(watch->control));
    }
    /* If this thread got no CPU time while the rank lingered, no other rank knows the failure yet. */
    if (comm_failure_raised(watch->comm->failure)) control_tick(watch->control, clock_now_ns());
    return NULL;
}

zero_status watch_start(struct watch *watch, struct comm *comm, const struct watch_link *link) {
    watch->comm = comm;
    watch->link = *link;
    watch->runs = false;
    atomic_init(&watch->stop, false);
    watch->control = control_create(comm, &link->port);
    if (!watch->control) return ZERO_E_MEMORY;
    comm->control = watch->control;
    if (comm->size == 1) return ZERO_OK;
    watch->runs = thread_start(&watch->thread, run_control, watch) == 0;
    if (watch->runs) return ZERO_OK;
    control_destroy(watch->control);
    comm->control = NULL;
    return ZERO_E_MEMORY;
}

/* The ring tells this rank only about the rank before it. Any other absent rank is named by the rank after it. If that
 * rank is absent, too, then after a longer limit the message names no rank. */
static void check_deadline(struct watch *watch, uint64_t begin_ns) {
    struct comm *comm = watch->comm;
    int32_t rank = control_staying(watch->control);
    uint64_t now_ns = clock_now_ns(), grace_ns = rank < 0 ? (uint64_t)(comm->timeout_s * 2e9) : 0;
    if (!deadline_passed(comm->timeout_s, begin_ns + grace_ns, now_ns)) return;
    char who[32] = "a rank";
    if (rank >= 0) snprintf(who, sizeof who, "rank %d", (int)rank);
    comm_raise(comm, ZERO_E_PEER, rank, false,
               "%s is alive but did not close its communicator, for which rank %u waited %.1f s: it is "
               "stuck, or its loop goes on for longer than that of the others",
               who, comm->rank, (double)(now_ns - begin_ns) * 1e-9);
}

static void wait_a_little(struct watch *watch, uint64_t begin_ns) {
    if (!watch->link.may_leave) check_deadline(watch, begin_ns);
    comm_ask_interrupted(watch->comm);
    sleep_ns(1000000);
}

/* A rank meets the others after it has received all records that it needs from them. Once all ranks have met, no rank
 * needs another. */
static void meet(struct watch *watch) {
    bool all = false;
    uint64_t begin_ns = clock_now_ns();
    control_leave(watch->control);
    while (!comm_failure_raised(watch->comm->failure) && !all) {
        if (control_left(watch->control) && !watch->link.meet(watch->link.port.user, &all)) return;
        if (watch->link.may_leave && clock_now_ns() - begin_ns > WATCH_LEAVE_NS) return;
        wait_a_little(watch, begin_ns);
    }
}

/* A link must not end before all messages to it have arrived: MPI would take a late message for a message of the next
 * link. */
static void finish(struct watch *watch) {
    uint64_t begin_ns = clock_now_ns();
    control_finish(watch->control);
    while (!comm_failure_raised(watch->comm->failure) && !control_finished(watch->control))
        wait_a_little(watch, begin_ns);
}

/* Waits at most WATCH_GRACE_NS, also for an interrupted rank: this is the last time at which the other ranks can
 * receive the failure. */
static void linger(struct watch *watch) {
    uint64_t now_ns = clock_now_ns(), end_ns = now_ns + WATCH_GRACE_NS;
    for (; now_ns < end_ns && !control_quiet(watch->control, now_ns); now_ns = clock_now_ns())
        sleep_ns(10000000);
}

bool watch_stop(struct watch *watch) {
    struct comm *comm = watch->comm;
    if (watch->runs && !comm_failure_raised(comm->failure)) meet(watch);
    if (watch->runs && !comm_failure_raised(comm->failure) && !watch->link.may_leave) finish(watch);
    bool failed = comm_failure_raised(comm->failure);
    if (failed && watch->runs) linger(watch);
    if (failed && comm->error.code == ZERO_OK)
        log_line(&comm->log, ZERO_LOG_ERROR, "comm %s: rank %u, while closing: %s", comm->ops->name,
                 comm->rank, comm->failure->error.message);
    atomic_store(&watch->stop, true);
    if (watch->runs) pthread_join(watch->thread, NULL);
    control_destroy(watch->control);
    comm->control = NULL;
    return !failed;
}
