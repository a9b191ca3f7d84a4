#include "engine/run/run.h"

#include "engine/base/clock.h"
#include "engine/run/progress.h"

enum { IDLE_NS = 200 * 1000, DEVICE_IDLE_NS = 10 * 1000 };

/* Nothing moved: sleeps until a message or a transfer may have come. A device wakes no thread: the caller polls it again soon. */
static void idle(void *user) {
    const struct running *run = user;
    struct tier *drive = run->tier[TIER_NVME];
    if (run->discrete) comm_idle(run->ranks->data, DEVICE_IDLE_NS);
    if (run->discrete) return;
    if (executor_transferring(run->executor))
        drive->ops->wait(drive, IDLE_NS);
    else
        comm_idle(run->ranks->data, IDLE_NS);
}

static zero_status poll(void *user, bool *out_moved, const struct zero_error **out_error) {
    struct running *run = user;
    *out_error = executor_error(run->executor);
    return executor_poll(run->executor, out_moved);
}

void run_begin(struct running *run) { run->ranks->background = (struct background){run, poll, idle}; }

void run_start_progress(struct running *run) {
    struct ranks *ranks = run->ranks;
    run->progress = progress_start(&ranks->lock, run->executor, ranks->data, run->discrete);
    if (!run->progress)
        log_line(&ranks->log, ZERO_LOG_WARN,
                 "no progress thread: collectives and chunks move only inside the engine's calls");
}

zero_status run_wait(struct running *run, bool (*holds)(const struct executor *, struct point),
                     struct point point) {
    struct turn *lock = &run->ranks->lock;
    uint64_t began = clock_now_ns();
    zero_status status = ZERO_OK;
    turn_take(lock);
    double update_s = executor_update_seconds(run->executor);
    while (!status && !holds(run->executor, point)) {
        bool moved;
        status = executor_poll(run->executor, &moved);
        if (!status && !moved && !holds(run->executor, point)) idle(run), turn_yield(lock);
    }
    update_s = executor_update_seconds(run->executor) - update_s;
    turn_give(lock);
    run->wait_s += (double)(clock_now_ns() - began) * 1e-9 - update_s;
    return status ? ranks_fail(run->ranks, executor_error(run->executor)) : ZERO_OK;
}

static bool is_idle(const struct executor *executor, struct point point) { return executor_idle(executor); }
static bool has_room(const struct executor *executor, struct point point) {
    return executor_has_room(executor);
}
zero_status run_wait_idle(struct running *run) { return run_wait(run, is_idle, (struct point){0}); }
zero_status run_wait_room(struct running *run) { return run_wait(run, has_room, (struct point){0}); }

zero_status run_settle(struct running *run) {
    zero_status status = run_wait_room(run);
    if (!status) status = RUN_EVENT(run, executor_flush(run->executor));
    return status ? status : run_wait_idle(run);
}

zero_status run_weights_written(struct running *run) {
    run->weights_version++;
    zero_status status = RUN_EVENT(run, executor_written(run->executor));
    return status ? status : run_settle(run);
}
