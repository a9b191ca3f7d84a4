#include "tests/gpt/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>

static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(1);
}

void cuda_device_open(struct cuda_device *d) {
    struct zero_error error;
    CUcontext context;
    error_clear(&error);
    if (cuda_driver_open(&d->driver, &error)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    must(d->driver.cuDeviceGet(&d->device, 0), "the first GPU");
    must(d->driver.cuDevicePrimaryCtxRetain(&context, d->device), "a context");
    must(d->driver.cuCtxSetCurrent(context), "the context");
    must(d->driver.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING), "a stream");
}

void cuda_device_close(struct cuda_device *d) {
    d->driver.cuStreamDestroy(d->stream);
    d->driver.cuDevicePrimaryCtxRelease(d->device);
    cuda_driver_close(&d->driver);
}

static void *allocate(void *user, uint64_t bytes) {
    struct cuda_device *d = user;
    CUdeviceptr memory;
    must(d->driver.cuMemAlloc(&memory, bytes), "an allocation");
    return (void *)(uintptr_t)memory;
}

static void release(void *user, void *memory) {
    struct cuda_device *d = user;
    d->driver.cuMemFree((CUdeviceptr)(uintptr_t)memory);
}

static void copy(void *user, void *target, const void *source, uint64_t bytes, bool waits) {
    struct cuda_device *d = user;
    must(d->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)target, (CUdeviceptr)(uintptr_t)source, bytes,
                                 d->stream),
         "a copy");
    if (waits) must(d->driver.cuStreamSynchronize(d->stream), "waiting for a copy");
}

struct fake_device cuda_device_of(struct cuda_device *device) {
    return (struct fake_device){device->stream, device, allocate, release, copy, 0};
}
