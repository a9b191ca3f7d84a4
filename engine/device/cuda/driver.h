/* The CUDA driver as a table of functions, loaded at run time: one binary runs with and without a GPU.
 *
 * Call a function of cuda.h as driver->cuMemAlloc(...). Macros of cuda.h replace the field's name and the symbol's name
 * by the version that the header declares (cuMemAlloc_v2). To use another function, add it to the list.
 * Threads: a loaded table is constant. Every call except cuInit, cuDevice* and cuCtx* needs a context that is current
 * in the calling thread (cuCtxSetCurrent). Tests replace the library by a stand-in of their own (tests/cuda/). */
#pragma once

#include <cuda.h>

#include "engine/base/error.h"

#define CUDA_DRIVER_FUNCTIONS(X)                                                                             \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuGetErrorString)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDeviceTotalMem)                                                                                      \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuCtxGetStreamPriorityRange)                                                                           \
    X(cuCtxSynchronize)                                                                                      \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemGetInfo)                                                                                          \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemUnmap)                                                                                            \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemHostRegister)                                                                                     \
    X(cuMemHostUnregister)                                                                                   \
    X(cuMemcpyAsync)                                                                                         \
    X(cuMemsetD8Async)                                                                                       \
    X(cuMemsetD32Async)                                                                                      \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamCreateWithPriority)                                                                            \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamGetCtx)                                                                                        \
    X(cuStreamQuery)                                                                                         \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuLaunchHostFunc)                                                                                      \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy)                                                                                        \
    X(cuEventRecord)                                                                                         \
    X(cuEventQuery)                                                                                          \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)                                                                                    \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuFuncLoad)                                                                                            \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuLaunchKernel)                                                                                        \
    X(cuGraphInstantiate)                                                                                    \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphDestroy)

struct cuda_driver {
    void *library;
#define CUDA_DRIVER_FIELD(name) __typeof__(name) *name;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
};

/* Loads libcuda.so.1 and initializes it, with CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment unless the variable is
 * set. ZERO_E_UNSUPPORTED: there is no driver, it lacks functions, or it finds no GPU. ZERO_E_INTERNAL: it does not start.
 * ZERO_E_CONFIG: the driver is for an earlier major version of CUDA than the kernels. */
zero_status cuda_driver_open(struct cuda_driver *out_driver, struct zero_error *error);
void cuda_driver_close(struct cuda_driver *driver);

/* ZERO_OK for CUDA_SUCCESS. Else the message says what failed ("device cuda: copy of 4096 bytes") and the driver's
 * reason; the status is ZERO_E_MEMORY if memory ran out, and ZERO_E_INTERNAL for all other failures. */
zero_status cuda_check(const struct cuda_driver *driver, CUresult result, struct zero_error *error,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
