/* The CUDA driver as a table of functions, loaded at run time: one binary runs with and without a GPU.
 *
 * A function of cuda.h is called as driver->cuMemAlloc(...); cuda.h's macros turn both the field and the name that is
 * looked up into the version that the header declares (cuMemAlloc_v2). To use another function, add it to the list.
 * Threads: a loaded table is constant. Every call but cuInit and the cuDevice* and cuCtx* ones needs a context that is current in
 * the calling thread (cuCtxSetCurrent). Tests put a stand-in of their own in the library's place (tests/cuda/). */
#ifndef ZERO_ENGINE_DEVICE_CUDA_DRIVER_H
#define ZERO_ENGINE_DEVICE_CUDA_DRIVER_H

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
    X(cuCtxGetStreamPriorityRange)                                                                           \
    X(cuCtxSynchronize)                                                                                      \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemGetInfo)                                                                                          \
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
    X(cuStreamQuery)                                                                                         \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
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

/* Loads libcuda.so.1 and initialises it. ZERO_E_UNSUPPORTED: there is none, it lacks functions, or no GPU; ZERO_E_CONFIG: it
 * is one for an earlier CUDA than the kernels'. */
zero_status cuda_driver_open(struct cuda_driver *out_driver, struct zero_error *error);
void cuda_driver_close(struct cuda_driver *driver);

/* ZERO_OK for CUDA_SUCCESS; else says what failed ("device cuda: copy of 4096 bytes") and the driver's reason. Running
 * out of memory is ZERO_E_MEMORY, all else ZERO_E_INTERNAL. */
zero_status cuda_check(const struct cuda_driver *driver, CUresult result, struct zero_error *error,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
