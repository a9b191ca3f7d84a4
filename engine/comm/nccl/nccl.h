/* The structs and functions that the files of transport nccl share: comm_nccl.c drives calls and groups, nccl_steps.c
 * lists the steps of each call, nccl_issue.c issues them, nccl_warm_up.c makes the first calls, nccl_failure.c reports failures
 * of NCCL. */
#pragma once

#include "engine/comm/nccl/nccl_library.h"
#include "engine/comm/shape.h"
#include "engine/comm/transport.h"
#include "engine/device/device.h"

struct nccl_comm {
    struct comm base;
    struct comm *beside;
    struct nccl_library library;
    ncclUniqueId id;         /* of the group that is opened; after a failure a peer may still write it */
    uint32_t first_calls;    /* see comm_options */
    uint64_t posted, issued; /* calls with work on a stream: posted, and those whose steps are all issued */
    uint32_t idles;          /* calls of idle since the last completed call */
};

enum { STEPS_MAX = 7 };

typedef zero_status (*step_fn)(struct comm_work *work);

struct nccl_work {
    const step_fn *steps; /* the last entry is NULL */
    uint32_t step;        /* the next step to issue */
    bool issued;          /* all steps are issued, and the stream is recorded */
    uint64_t ticket;
    bool in_turn;              /* the steps are on a stream, and wait for their turn */
    uint64_t turn;             /* the call's number, over all groups and streams */
    struct comm_work *barrier; /* posted on the companion */
};

struct nccl_group {
    struct comm_group base;
    struct comm_group *companion; /* a group of `beside` with the same ranks */
    struct control_group *ring;   /* NULL: `beside` has no control channel */
    ncclComm_t data;              /* NULL: of one rank (nccl_alone), or aborted */
    uint64_t next;                /* the call whose steps are issued now */
    ncclResult_t failed;
    uint64_t failed_ns; /* the report waits a short time, because the control channel may name the cause */
    struct nccl_work works[COMM_CALLS_MAX];
};

static inline struct nccl_comm *comm_of(const struct comm_group *group) {
    return (struct nccl_comm *)group->comm;
}

/* A rank alone has no communicator: it copies, or sums, from its source to its target. */
static inline bool nccl_alone(const struct comm_group *group) { return group->count == 1; }

static inline struct nccl_work *mine_of(const struct comm_work *work) {
    return &((struct nccl_group *)work->group)->works[work_slot(work)];
}

static inline const struct nccl_library *library_of(const struct comm_work *work) {
    return &comm_of(work->group)->library;
}

static inline enum device_stream stream_of(const struct comm_call *call) {
    return shape_reduces(call) || call->kind == COMM_ALL_TO_ALL ? DEVICE_REDUCE : DEVICE_GATHER;
}

static inline cudaStream_t nccl_stream(const struct comm_work *work) {
    return (cudaStream_t)work->group->comm->device->stream[stream_of(&work->call)];
}

static inline bool nccl_good(ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
}

/* The most thread blocks of a communicator's kernel, each of which takes a multiprocessor: two kernels run beside each other and
 * beside the program's. NCCL_MAX_CTAS overrides it. */
enum { NCCL_CTAS_MAX = 16 };

/* Ends the group's communicator, and its work on the GPU. */
static inline void nccl_abort(struct nccl_group *group) {
    if (group->data) comm_of(&group->base)->library.ncclCommAbort(group->data);
    group->data = NULL;
}

/* nccl_issue.c. Whether NCCL has accepted everything that was issued so far. */
zero_status nccl_taken(struct comm_work *work, bool *out_taken);
/* Issues as many steps of one call as NCCL accepts. */
zero_status nccl_issue_call(struct comm_work *work);

/* nccl_warm_up.c. Makes the first calls of the group's communicator, and waits for them. */
zero_status nccl_warm_up(struct nccl_group *group);

/* nccl_steps.c. The steps of a call, in order. A call that moves no data has no steps. */
const step_fn *nccl_steps(const struct comm_work *work);

/* nccl_failure.c. Handles a result that is not good, found in this call. ZERO_OK: not reported yet, because the control
 * channel may name the cause within a short time. */
zero_status nccl_failed(struct comm_work *work, ncclResult_t result);

enum { NCCL_REASON_BYTES = 512 };

/* Writes NCCL's description of a result into `text`; returns `text`. */
const char *nccl_reason(const struct nccl_group *group, ncclResult_t result, char text[NCCL_REASON_BYTES]);
