/* NCCL as a table of functions, loaded at run time like the CUDA driver (engine/device/cuda/driver.h). To use another
 * function, add it to the list and to nccl_interface.h. Threads: a loaded table is constant. */
#pragma once

#include "engine/base/error.h"
#include "engine/comm/nccl/nccl_interface.h"

#define NCCL_FUNCTIONS(X)                                                                                    \
    X(ncclGetVersion)                                                                                        \
    X(ncclGetErrorString)                                                                                    \
    X(ncclGetLastError)                                                                                      \
    X(ncclGetUniqueId)                                                                                       \
    X(ncclCommInitRankConfig)                                                                                \
    X(ncclCommGetAsyncError)                                                                                 \
    X(ncclCommFinalize)                                                                                      \
    X(ncclCommDestroy)                                                                                       \
    X(ncclCommAbort)                                                                                         \
    X(ncclAllGather)                                                                                         \
    X(ncclReduceScatter)                                                                                     \
    X(ncclBroadcast)                                                                                         \
    X(ncclSend)                                                                                              \
    X(ncclRecv)                                                                                              \
    X(ncclGroupStart)                                                                                        \
    X(ncclGroupEnd)

struct nccl_library {
#define NCCL_FIELD(name) __typeof__(name) *name;
    NCCL_FUNCTIONS(NCCL_FIELD)
    NCCL_FIELD(ncclCommSplit) /* NULL: not to be used */
#undef NCCL_FIELD
    int version;
};

/* Loads libnccl.so.2, with NCCL_LAUNCH_ORDER_IMPLICIT=1 and NCCL_LAUNCH_RACE_FATAL=0 in the environment unless they are
 * set. The library stays loaded until the process ends, because it has its own threads.
 * ZERO_E_UNSUPPORTED: no library, or too old for communicators that do not block. */
zero_status nccl_library_open(struct nccl_library *out_library, struct zero_error *error);
