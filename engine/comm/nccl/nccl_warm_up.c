/* The first calls of a communicator: one small call of each kind that its groups make, when the group opens.
 *
 * NCCL connects two ranks when they first need it, and loads a kernel's code at its first launch. Both may wait until the
 * GPU is idle. In a step the GPU may at that moment wait for a peer. Therefore the first calls are made while nothing
 * else is on the GPU. NCCL may still connect ranks later, for an algorithm that it takes only for large calls. */
#include "engine/base/clock.h"
#include "engine/comm/nccl/nccl.h"
#include "engine/comm/staged.h"
#include "engine/comm/watch.h"

enum { POLL_NS = 100000 };

static const struct warm_up {
    enum comm_kind kind;
    enum dtype dtype;
    bool native;
    enum comm_first first;
} calls[] = {{COMM_ALL_GATHER, DTYPE_F32, false, COMM_FIRST_GATHERS},
             {COMM_REDUCE_SCATTER, DTYPE_F32, false, COMM_FIRST_EXCHANGES},
             {COMM_REDUCE_SCATTER, DTYPE_F32, true, COMM_FIRST_SUMS},
             {COMM_REDUCE_SCATTER, DTYPE_BF16, true, COMM_FIRST_SUMS},
             {COMM_BROADCAST, DTYPE_F32, false, COMM_FIRST_BROADCASTS}};

/* Source, target and staging of a call of one element per share, one after another. */
static uint64_t part_bytes(const struct nccl_group *group) {
    struct comm_call largest = {.kind = COMM_REDUCE_SCATTER, .count = 1};
    return staged_bytes(&group->base, &largest);
}

static zero_status wait_a_little(struct comm *comm, uint64_t begin_ns) {
    comm_ask_interrupted(comm);
    if (comm_failure_raised(comm->failure)) return comm->failure->error.code;
    sleep_ns(POLL_NS);
    if (!deadline_passed(comm->timeout_s, begin_ns, clock_now_ns())) return ZERO_OK;
    return comm_raise(comm, ZERO_E_PEER, -1, false,
                      "comm nccl: rank %u waited %g s for the first calls of a communicator: NCCL cannot "
                      "move data between the GPUs: set NCCL_DEBUG=INFO",
                      comm->rank, 10 * comm->timeout_s);
}

static zero_status make_call(struct nccl_group *group, const struct warm_up *which, char *memory) {
    struct comm *comm = group->base.comm;
    struct comm_call call = {.kind = which->kind,
                             .dtype = which->dtype,
                             .target_dtype = which->dtype,
                             .native = which->native,
                             .count = 1,
                             .what = "the first calls",
                             .source = memory,
                             .target = memory + part_bytes(group),
                             .staging = memory + 2 * part_bytes(group)};
    struct comm_work work = {.group = &group->base, .call = call, .posted_ns = clock_now_ns()};
    record_make(&call, 0, 0, &work.record);
    struct nccl_work *mine = mine_of(&work);
    *mine = (struct nccl_work){.steps = nccl_steps(&work)};
    struct zero_error error;
    bool done = false;
    error_clear(&error);
    zero_status status = nccl_issue_call(&work);
    while (!status && !done) {
        if (!mine->issued)
            status = nccl_issue_call(&work);
        else if (comm->device->ops->test(comm->device, mine->ticket, &done, &error))
            status = comm_raise_error(comm, &error, false);
        if (!status && !done) status = wait_a_little(comm, work.posted_ns);
    }
    return status;
}

/* After a failure the communicator is aborted first: the memory is freed after all work of the GPU. */
zero_status nccl_warm_up(struct nccl_group *group) {
    struct comm *comm = group->base.comm;
    uint64_t bytes = 3 * part_bytes(group);
    char *memory = comm->device->ops->allocate(comm->device, bytes, DEVICE_MEMORY);
    if (!memory)
        return comm_raise(comm, ZERO_E_MEMORY, (int32_t)comm->rank, false,
                          "comm nccl: rank %u: the GPU has no memory for the first calls of a communicator",
                          comm->rank);
    zero_status status = ZERO_OK;
    uint32_t first = comm_of(&group->base)->first_calls;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && !status; i++)
        if (!first || first & calls[i].first) status = make_call(group, &calls[i], memory);
    if (status) nccl_abort(group);
    comm->device->ops->release(comm->device, memory, bytes, DEVICE_MEMORY);
    return status;
}
