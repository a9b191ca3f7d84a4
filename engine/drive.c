/* Driving the executor from the host's calls: where they wait for it. */
#include "engine/base/clock.h"
#include "engine/engine_internal.h"
#include "engine/saver.h"
#include "engine/shadow.h"

enum { IDLE_NS = 200 * 1000, DEVICE_IDLE_NS = 10 * 1000 };

/* Nothing moved: sleeps a little, on what is awaited. A device wakes nobody: it is asked again soon. */
static void idle(zero_engine *e) {
    struct tier *drive = e->tier[TIER_NVME];
    if (e->separate) comm_idle(e->data, DEVICE_IDLE_NS);
    if (e->separate) return;
    if (executor_transferring(e->executor))
        drive->ops->wait(drive, IDLE_NS);
    else
        comm_idle(e->data, IDLE_NS);
}

zero_status engine_drive(zero_engine *e, bool (*holds)(const struct executor *, struct point),
                         struct point point) {
    uint64_t began = clock_now_ns();
    zero_status status = ZERO_OK;
    turn_take(&e->lock);
    double update_s = executor_update_seconds(e->executor);
    while (!status && !holds(e->executor, point)) {
        bool moved;
        status = executor_poll(e->executor, &moved);
        if (!status && !moved && !holds(e->executor, point)) idle(e), turn_yield(&e->lock);
    }
    update_s = executor_update_seconds(e->executor) - update_s;
    turn_give(&e->lock);
    e->wait_s += (double)(clock_now_ns() - began) * 1e-9 - update_s;
    return status ? engine_fail(e, executor_error(e->executor)) : ZERO_OK;
}

static bool is_idle(const struct executor *executor, struct point point) { return executor_idle(executor); }
static bool has_room(const struct executor *executor, struct point point) {
    return executor_has_room(executor);
}
zero_status engine_drive_idle(zero_engine *e) { return engine_drive(e, is_idle, (struct point){0}); }
zero_status engine_drive_room(zero_engine *e) { return engine_drive(e, has_room, (struct point){0}); }

zero_status engine_settle(zero_engine *e) {
    zero_status status = engine_drive_room(e);
    if (!status) status = ENGINE_EVENT(e, executor_flush(e->executor));
    if (!status) status = engine_drive_idle(e);
    if (!status) e->phase = PHASE_READY;
    return status;
}

/* A training pass whose forward has begun and whose backward has not would be lost. */
static bool before_backward(const zero_engine *e) {
    return e->phase == PHASE_PASS && e->mode == ZERO_TRAIN && e->policy.cursor > 0 &&
           e->policy.cursor <= e->policy.uses;
}

zero_status engine_check_pass(const zero_engine *e, const char *what) {
    if (!before_backward(e)) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: a training pass is between its forward and its backward; do the backward first, or "
                  "open the pass as ZERO_EVAL",
                  what);
}

zero_status zero_engine_flush(zero_engine *e) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase == PHASE_DECLARING || e->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER,
                      "zero_engine_flush: call it after commit, and not between a unit's begin and end");
    status = engine_check_pass(e, "zero_engine_flush");
    if (!status) status = engine_settle(e);
    if (status || !e->config.nvme_shadow) return status;
    status = shadow_sync(e);
    if (!status) status = engine_call(e, &(struct comm_call){.kind = COMM_BARRIER, .what = "the flush"});
    return status ? status : shadow_commit(e);
}

zero_status engine_check_outside(zero_engine *e, const char *what) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase == PHASE_DECLARING) return refuse(ZERO_E_ORDER, "%s: call zero_engine_commit first", what);
    if (e->phase == PHASE_USE)
        return refuse(ZERO_E_ORDER, "%s: unit \"%s\" is still in use; end it first", what, e->unit->name);
    return ZERO_OK;
}

zero_status engine_check_between(zero_engine *e, const char *what) {
    zero_status status = engine_check_outside(e, what);
    if (!status) status = engine_check_pass(e, what);
    return status ? status : saver_finish(e);
}

zero_status engine_call(zero_engine *e, const struct comm_call *call) {
    struct comm_work *work;
    bool done = false, moved;
    turn_take(&e->lock);
    zero_status status = comm_post(e->world, call, &work);
    while (!status && !done) {
        zero_status polled = executor_poll(e->executor, &moved);
        status = comm_test(work, &done);
        if (status || done) break;
        if (polled) return turn_give(&e->lock), engine_fail(e, executor_error(e->executor));
        if (!moved) idle(e), turn_yield(&e->lock);
    }
    turn_give(&e->lock);
    return status ? engine_fail(e, comm_error(e->comm)) : ZERO_OK;
}
