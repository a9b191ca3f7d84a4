#include "engine/ranks/ranks.h"

#include <unistd.h>

zero_status ranks_check(struct ranks *ranks) {
    if (ranks->process != getpid())
        return refuse(ZERO_E_ORDER, "this process was forked from the one that opened the engine, which "
                                    "alone may call it: its threads, "
                                    "transfers and connections are there; open an engine of its own here");
    if (ranks->comm) comm_attend(ranks->comm);
    return ranks->error.code ? refuse_error(&ranks->error) : ZERO_OK;
}

zero_status ranks_fail(struct ranks *ranks, const struct zero_error *error) {
    if (!ranks->error.code) {
        ranks->error = *error;
        ranks->error.step = *ranks->step;
        turn_take(&ranks->lock);
        if (ranks->comm && error->code != ZERO_E_PEER) comm_fail(ranks->comm, &ranks->error);
        comm_abandon(ranks->data); /* the host may free memory of the GPU next */
        turn_give(&ranks->lock);
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

zero_status ranks_call(struct ranks *ranks, const struct comm_call *call) {
    return ranks_call_on(ranks, ranks->world, call);
}

zero_status ranks_call_on(struct ranks *ranks, struct comm_group *group, const struct comm_call *call) {
    const struct background *background = &ranks->background;
    const struct zero_error *error = NULL;
    struct comm_work *work;
    bool done = false;
    turn_take(&ranks->lock);
    zero_status status = comm_post(group, call, &work);
    while (!status && !done) {
        bool moved;
        zero_status polled = background->poll(background->user, &moved, &error);
        status = comm_test(work, &done);
        if (status || done) break;
        if (polled) return turn_give(&ranks->lock), ranks_fail(ranks, error);
        if (!moved) background->idle(background->user), turn_yield(&ranks->lock);
    }
    turn_give(&ranks->lock);
    return status ? ranks_fail(ranks, comm_error(ranks->comm)) : ZERO_OK;
}
