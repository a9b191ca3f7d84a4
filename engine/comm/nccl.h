/* Transport nccl's own structs, and what its files share: comm_nccl.c drives calls and groups, nccl_steps.c says what a call
 * is made of, nccl_failure.c what failed. */
#ifndef ZERO_ENGINE_COMM_NCCL_H
#define ZERO_ENGINE_COMM_NCCL_H

#include "engine/comm/nccl_library.h"
#include "engine/comm/shape.h"
#include "engine/comm/transport.h"
#include "engine/device/device.h"

struct nccl_comm {
    struct comm base;
    struct comm *beside;
    struct nccl_library library;
    /* Per stream of the device: calls posted, and calls whose steps are all issued. */
    uint64_t posted[DEVICE_STREAMS], issued[DEVICE_STREAMS];
    uint32_t idles; /* in a row without a completed call */
};

enum { STEPS_MAX = 5 };

typedef zero_status (*step_fn)(struct comm_work *work);

struct nccl_work {
    const step_fn *steps; /* ended by NULL */
    uint32_t step;        /* the next to be issued */
    bool issued;          /* all are, and the stream is recorded */
    uint64_t ticket;
    bool in_turn; /* its steps are on a stream, as the turn-th call of it */
    uint64_t turn;
    struct comm_work *barrier; /* of the companion */
};

struct nccl_group {
    struct comm_group base;
    struct comm_group *companion; /* the same ranks, of `beside` */
    struct control_group *ring;   /* NULL: `beside` has none */
    ncclComm_t data;
    uint64_t next; /* the call whose steps are issued now */
    ncclResult_t failed;
    uint64_t failed_ns; /* kept back while the control channel may know better */
    struct nccl_work works[COMM_CALLS_MAX];
};

static inline struct nccl_comm *comm_of(const struct comm_group *group) {
    return (struct nccl_comm *)group->comm;
}

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

/* nccl_steps.c. The steps of a call, in their order; none where it moves nothing. */
const step_fn *nccl_steps(const struct comm_work *work);

/* nccl_failure.c. A result that is not good, found at this call. ZERO_OK: kept back, for the control channel may know better
 * in a moment. */
zero_status nccl_failed(struct comm_work *work, ncclResult_t result);

enum { NCCL_REASON_BYTES = 512 };

/* What NCCL says of a result; returns `text`. */
const char *nccl_reason(const struct nccl_group *group, ncclResult_t result, char text[NCCL_REASON_BYTES]);

#endif
