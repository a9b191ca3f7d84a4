/* Transport nccl in a build without CUDA. */
#include "engine/comm/staged.h"

static zero_status open_comm(struct comm *comm, const struct comm_options *options,
                             struct zero_error *error) {
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "comm nccl: this build has no CUDA: build where the CUDA toolkit is, or use mpi");
}

/* For plans. */
const struct comm_ops comm_nccl_ops = {.name = "nccl",
                                       .levels = true,
                                       .comm_bytes = sizeof(struct comm),
                                       .open = open_comm,
                                       .staging_bytes = staged_between};
