#include "engine/ranks/ranks.h"

#include <unistd.h>

#include "engine/base/clock.h"

#define STAND_NS 1000000000ull /* before the other ranks are told */

zero_status ranks_check(struct ranks *ranks) {
    if (ranks->process != getpid())
        return refuse(ZERO_E_ORDER, "this process was forked from the one that opened the engine, which "
                                    "alone may call it: its threads, "
                                    "transfers and connections are there; open an engine of its own here");
    if (ranks->comm) comm_attend(ranks->comm);
    return ranks->error.code ? refuse_error(&ranks->error) : ranks_check_host(ranks, true);
}

zero_status ranks_check_host(struct ranks *ranks, bool inside) {
    struct zero_error error;
    if (host_call_jumped(&ranks->fault, inside)) fair_lock_give(&ranks->lock);
    if (!host_fault_is_set(&ranks->fault)) return ZERO_OK;
    error_clear(&error);
    host_fault_error(&ranks->fault, &error);
    return ranks_fail(ranks, &error);
}

zero_status ranks_fail(struct ranks *ranks, const struct zero_error *error) {
    if (!ranks->error.code) {
        ranks->error = *error;
        ranks->error.step = *ranks->step;
        fair_lock_take(&ranks->lock);
        if (ranks->comm && error->code != ZERO_E_PEER) comm_fail(ranks->comm, &ranks->error);
        comm_abandon(ranks->data); /* the host may free memory of the GPU next */
        fair_lock_give(&ranks->lock);
    }
    return ranks_check(ranks);
}

zero_status ranks_fail_alike(struct ranks *ranks, const struct zero_error *error) {
    if (!ranks->error.code) {
        ranks->error = *error;
        ranks->error.step = *ranks->step;
    }
    return ranks_check(ranks);
}

/* At most 100 ms between two polls count: the process may have been stopped. */
void ranks_stand(struct ranks *ranks) {
    const uint64_t AT_MOST_NS = 100000000;
    uint64_t now_ns = clock_now_ns(), passed_ns = ranks->stood_at_ns ? now_ns - ranks->stood_at_ns : 0;
    ranks->stood_at_ns = now_ns;
    ranks->stood_ns += passed_ns < AT_MOST_NS ? passed_ns : AT_MOST_NS;
    if (ranks->stood_ns >= STAND_NS && ranks->data == ranks->comm)
        comm_stand(ranks->comm, failure_present()->call, failure_present()->unit);
}

void ranks_go_on(struct ranks *ranks) {
    ranks->stood_ns = ranks->stood_at_ns = 0;
    comm_go_on(ranks->comm);
}

zero_status ranks_call(struct ranks *ranks, const struct comm_call *call) {
    return ranks_call_on(ranks, ranks->world, call);
}

zero_status ranks_call_on(struct ranks *ranks, struct comm_group *group, const struct comm_call *call) {
    const struct background *background = &ranks->background;
    const struct zero_error *error = NULL;
    struct comm_work *work;
    bool done = false;
    fair_lock_take(&ranks->lock);
    zero_status status = comm_post(group, call, &work);
    while (!status && !done) {
        bool moved;
        zero_status polled = background->poll(background->user, &moved, &error);
        status = comm_test(work, &done);
        if (status || done) break;
        if (polled) return fair_lock_give(&ranks->lock), ranks_fail(ranks, error);
        if (moved) ranks_go_on(ranks);
        if (!moved) background->idle(background->user), fair_lock_yield(&ranks->lock);
    }
    ranks_go_on(ranks);
    fair_lock_give(&ranks->lock);
    return status ? ranks_fail(ranks, comm_error(ranks->comm)) : ZERO_OK;
}
