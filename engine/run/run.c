#include "engine/run/run.h"

#include "engine/base/clock.h"

/* A smaller update holds the lock for less than a millisecond. */
enum { DETACHED_BYTES = 1 << 20 };

/* At most PASS_NS between two polls count: while this rank gets no CPU time, nothing moves. */
enum { LEAVE_NS = 1000 * 1000 * 1000, PASS_NS = 10 * 1000 * 1000 };

enum { IDLE_NS = 200 * 1000, JOB_IDLE_NS = 50 * 1000, DEVICE_IDLE_NS = 10 * 1000 };

/* Called after nothing moved: sleeps until a message, a transfer or a job may have ended. The end of work on a device wakes no
 * thread, and a message wakes none while a job runs; so the sleep is short then, and the caller polls again. */
static void idle(void *user) {
    const struct running *run = user;
    struct tier *drive = run->tier[TIER_NVME];
    if (executor_works(run->executor)) {
        ranks_go_on(run->ranks);
        comm_idle(run->ranks->data, 0);
        progress_await_job(run->progress, run->discrete ? DEVICE_IDLE_NS : JOB_IDLE_NS);
        return;
    }
    if (run->discrete) comm_idle(run->ranks->data, DEVICE_IDLE_NS);
    if (run->discrete) return;
    if (executor_transferring(run->executor)) {
        ranks_go_on(run->ranks);
        drive->ops->wait(drive, IDLE_NS);
    } else {
        ranks_stand(run->ranks);
        comm_idle(run->ranks->data, IDLE_NS);
    }
}

static zero_status poll(void *user, bool *out_moved, const struct zero_error **out_error) {
    struct running *run = user;
    *out_error = executor_error(run->executor);
    return executor_poll(run->executor, out_moved);
}

void run_begin(struct running *run) { run->ranks->background = (struct background){run, poll, idle}; }

void run_start_progress(struct running *run) {
    struct ranks *ranks = run->ranks;
    run->progress = progress_start(&ranks->lock, run->executor, ranks->data, run->device,
                                   run->detached_bytes ? run->detached_bytes : DETACHED_BYTES);
    if (!run->progress)
        log_line(&ranks->log, ZERO_LOG_WARN,
                 "the system refused a progress thread: collectives and chunks move only inside the engine's "
                 "calls");
}

zero_status run_wait(struct running *run, bool (*holds)(const struct executor *)) {
    struct fair_lock *lock = &run->ranks->lock;
    uint64_t began = clock_now_ns();
    zero_status status = ZERO_OK;
    fair_lock_take(lock);
    double update_s = executor_update_seconds(run->executor);
    bool waits = false;
    while (!status && !holds(run->executor)) {
        bool moved;
        if (!waits) progress_rest(run->progress, waits = true);
        status = executor_poll(run->executor, &moved);
        if (moved) ranks_go_on(run->ranks);
        if (!status && !moved && !holds(run->executor)) idle(run), fair_lock_yield(lock);
    }
    if (waits) ranks_go_on(run->ranks);
    update_s = executor_update_seconds(run->executor) - update_s;
    if (waits) progress_rest(run->progress, false);
    fair_lock_give(lock);
    if (waits) progress_wake(run->progress);
    double waited_s = (double)(clock_now_ns() - began) * 1e-9;
    run->wait_s += waited_s > update_s ? waited_s - update_s : 0; /* updates may have begun before */
    return status ? ranks_fail(run->ranks, executor_error(run->executor))
                  : ranks_check_host(run->ranks, true);
}

static const char *what_moves(const struct executor *executor) {
    if (executor_transferring(executor)) return "a transfer of the drive has";
    return executor_works(executor) ? "an update has" : "collective calls have";
}

void run_leave(struct running *run, double most_s) {
    struct fair_lock *lock = &run->ranks->lock;
    fair_lock_take(lock);
    progress_rest(run->progress, true);
    uint64_t began_ns = clock_now_ns(), polled_ns = began_ns, still_ns = 0;
    zero_status status = ZERO_OK;
    bool late = false;
    while (executor_owes(run->executor) && still_ns < LEAVE_NS && !late) {
        bool moved;
        status = executor_poll(run->executor, &moved);
        if (status) break;
        if (!moved) idle(run), fair_lock_yield(lock);
        ranks_go_on(run->ranks); /* it leaves */
        uint64_t now_ns = clock_now_ns(), passed_ns = now_ns - polled_ns;
        polled_ns = now_ns;
        still_ns += passed_ns < PASS_NS ? passed_ns : PASS_NS;
        if (moved || executor_works(run->executor) || executor_transferring(run->executor)) still_ns = 0;
        late = (double)(now_ns - began_ns) * 1e-9 > most_s;
    }
    const char *owes = late && executor_owes(run->executor) ? what_moves(run->executor) : NULL;
    progress_rest(run->progress, false);
    fair_lock_give(lock);
    if (owes)
        log_line(&run->ranks->log, ZERO_LOG_WARN,
                 "zero_engine_destroy: %s not ended after %g s (10 x comm.timeout_s): this rank leaves, and "
                 "other ranks may wait for it",
                 owes, most_s);
    if (status) ranks_fail(run->ranks, executor_error(run->executor)); /* the other ranks are told */
}

zero_status run_event(struct running *run, struct event event) {
    zero_status status = run_wait(run, executor_has_room);
    return status ? status : RUN_EVENT(run, executor_emit(run->executor, &event));
}

zero_status run_settle(struct running *run) {
    zero_status status = run_event(run, (struct event){.kind = EVENT_FLUSH});
    return status ? status : run_wait(run, executor_idle);
}

zero_status run_weights_written(struct running *run) {
    run->weights_version++;
    zero_status status = run_event(run, (struct event){.kind = EVENT_WRITTEN});
    return status ? status : run_settle(run);
}
