/* Transport self: a world of one rank. It is the shortest transport; read it first. A call's first test performs the
 * call, unless another thread did so before. Threads: the comm's owner; `perform` any. */
#include "engine/comm/local/part.h"
#include "engine/comm/transport.h"

struct self_comm {
    struct comm base;
    struct comm_failure failure;
};

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    struct self_comm *self = (struct self_comm *)comm;
    if (comm->size != 1)
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm self: a world of %u ranks was requested, but this transport has one rank: use "
                         "local (threads) or mpi",
                         comm->size);
    comm_failure_init(&self->failure);
    comm->failure = &self->failure;
    return ZERO_OK;
}

static void close_comm(struct comm *comm) { comm_failure_destroy(&((struct self_comm *)comm)->failure); }

static zero_status group_open(struct comm_group *group) { return ZERO_OK; }

static void group_close(struct comm_group *group) {}

static zero_status post(struct comm_work *work) { return ZERO_OK; }

static zero_status begin(struct comm_work *work) {
    const void *source = part_source(&work->call), *pointer;
    work->begun = true;
    return part_complete(work, 1, &source, &pointer);
}

static zero_status test(struct comm_work *work, bool *out_done) {
    zero_status status = work->begun ? ZERO_OK : begin(work);
    return status ? status : part_done(work, out_done);
}

static void perform(struct comm_work *work) { begin(work); } /* without a device it cannot fail */

static bool in_order(const struct comm_group *group) { return true; }

static bool queued(const struct comm_work *work, uint64_t *out_ticket) {
    return work->begun && part_queued(work, out_ticket);
}

static void idle(struct comm *comm, uint64_t at_most_ns) {} /* no other rank can advance a call */

const struct comm_ops comm_self_ops = {
    .name = "self",
    .comm_bytes = sizeof(struct self_comm),
    .group_bytes = sizeof(struct comm_group),
    .open = open_comm,
    .close = close_comm,
    .group_open = group_open,
    .group_close = group_close,
    .post = post,
    .test = test,
    .perform = perform,
    .in_order = in_order,
    .streams = part_streams,
    .queued = queued,
    .idle = idle,
};
