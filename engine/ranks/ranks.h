/* The ranks of a training: which one this is, how it reaches the others, and how all of them fail together.
 *
 * A failure is sticky: ranks_fail keeps the first one and tells the other ranks, and every later ranks_check returns it.
 *
 * Threads: the host's thread owns the struct. `lock` guards the comm, and the executor that uses it, against the progress
 * thread and a save in the background. */
#pragma once

#include <sys/types.h>

#include "engine/base/host_call.h"
#include "engine/base/log.h"
#include "engine/comm/comm.h"
#include "engine/ranks/failure.h"
#include "engine/ranks/fair_lock.h"

/* Called under the lock while this rank waits for a collective, so that other work goes on. */
struct background {
    void *user;
    /* Advances everything that can advance. After a failure *out_error is its error. */
    zero_status (*poll)(void *user, bool *out_moved, const struct zero_error **out_error);
    void (*idle)(void *user); /* nothing moved: sleeps for a moment */
};

struct ranks {
    uint32_t rank, size;
    pid_t process; /* that opened the engine: no other may call it */
    /* See model_ranks.h. model_rank: the number of this rank's piece of a model that the host has cut; 0 of 1: the model is whole.
     * data_rank: this rank's number among the ranks with this piece; ZeRO shards over those ranks. */
    uint32_t model_rank, model_size, data_rank, data_size;
    uint32_t *at, *place; /* ranks by model rank and data rank; the inverse; owned */
    uint32_t node_ranks;  /* ranks on this rank's node */
    /* This rank's number on its node, and the ranks of the node that has most: by comm.node_ranks, if that is given. */
    uint32_t node_index, node_most;
    struct comm *comm; /* for messages between ranks */
    struct comm *data; /* for parameters and gradients: NCCL where several GPUs take part, else comm itself */
    struct comm_group *world; /* all ranks, of comm */
    /* The ranks with this model rank, of comm; if the model is whole, `world`. */
    struct comm_group *data_world;
    struct fair_lock lock;
    struct log log;
    struct zero_error error;      /* sticky; code 0: none */
    struct host_fault fault;      /* of the functions of the host that the engine calls */
    const uint64_t *step;         /* updates done: the step that a failure names */
    struct outliving *outliving;  /* memory that peers may read after this rank has left */
    struct background background; /* poll is NULL before commit */
    uint64_t stood_ns;            /* how long this rank's call has waited for others alone */
    uint64_t stood_at_ns;         /* when it last did; 0: it does not */
    /* In the plan's memory, from commit on: ranks_message_bytes, and the sentence of one failure. */
    uint8_t *message, *text;
};

/* A failure of the engine: sticky, and told to all ranks. Returns its code. */
zero_status ranks_fail(struct ranks *ranks, const struct zero_error *error);

/* A failure that every rank finds by itself, from the same numbers: sticky, and not told to the others. */
zero_status ranks_fail_alike(struct ranks *ranks, const struct zero_error *error);

/* ZERO_OK; the sticky failure with its sentence; or ZERO_E_ORDER in a forked child. The public functions call it first: the calling thread is now the rank's. */
zero_status ranks_check(struct ranks *ranks);

/* Where a function of the host has thrown or jumped: a failure of the engine, by ranks_fail. `inside`: as in host_call_jumped. */
zero_status ranks_check_host(struct ranks *ranks, bool inside);

/* The call in progress waits, and only other ranks can end that: once per poll. ranks_go_on: something moved, or the wait is over. */
void ranks_stand(struct ranks *ranks);
void ranks_go_on(struct ranks *ranks);

/* Posts a collective on the world and waits for it, while the executor's work goes on. */
zero_status ranks_call(struct ranks *ranks, const struct comm_call *call);

/* The same on `world` or `data_world`. */
zero_status ranks_call_on(struct ranks *ranks, struct comm_group *group, const struct comm_call *call);
