/* The ranks of a job before they train: rank 0 decides, and tells all ranks. They use the transport of the training, leave it
 * afterwards, and open it again to train. */
#pragma once

#include "engine/comm/comm.h"
#include "engine/config/config.h"
#include "engine/zero.h"

struct meeting {
    zero_engine *engine;
    zero_local *local;
    struct comm *comm;
    struct comm_group *all;
    uint32_t rank, ranks, node_ranks;
    uint32_t threads;    /* of a rank */
    uint64_t host_bytes; /* host memory that the ranks of this host may take; UINT64_MAX: unknown */
    bool on_gpu;
};

/* `alone`: of this process, whose threads are the ranks; else of all processes that a launcher started. `config`: after
 * config_read. Also after a failure the caller calls meeting_close. */
zero_status meeting_open(const struct config *config, bool alone, struct meeting *out,
                         struct zero_error *error);

/* Copies rank 0's bytes to all ranks. Collective. */
zero_status meeting_tell(const struct meeting *meeting, void *bytes, uint64_t count,
                         struct zero_error *error);

void meeting_close(struct meeting *meeting);
