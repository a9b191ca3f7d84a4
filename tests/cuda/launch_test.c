/* A kernel through the driver table: copies there and back, a launch between, on three streams joined by events. */
#include <stdlib.h>

#include "engine/device/cuda/driver.h"
#include "engine/device/kernel.h"
#include "kernels/device_work.h"
#include "tests/check.h"
#include "tests/kernels/random.h"

enum { COUNT = 10007 };

static struct cuda_driver driver;

static void launch(CUfunction function, const struct kernel *kernel, void *argument, CUstream stream) {
    struct kernel_grid grid = kernel->grid(argument);
    CHECK_INT(driver.cuLaunchKernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
                                    stream, (void *[]){argument}, NULL),
              CUDA_SUCCESS);
}

/* `then` runs after what `before` has been given. */
static void order(CUstream before, CUstream then) {
    CUevent event;
    driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    driver.cuEventRecord(event, before);
    driver.cuStreamWaitEvent(then, event, 0);
    driver.cuEventDestroy(event);
}

static void scale_on_three_streams(CUfunction function, uint64_t misaligned) {
    static float expected[COUNT];
    CUstream in, compute, out;
    CUdeviceptr memory;
    float *host;
    uint64_t seed = 7;
    driver.cuStreamCreate(&in, CU_STREAM_NON_BLOCKING);
    driver.cuStreamCreate(&compute, CU_STREAM_NON_BLOCKING);
    driver.cuStreamCreate(&out, CU_STREAM_NON_BLOCKING);
    CHECK_INT(driver.cuMemAlloc(&memory, (COUNT + misaligned) * sizeof(float)), CUDA_SUCCESS);
    CHECK_INT(driver.cuMemHostAlloc((void **)&host, sizeof expected, 0), CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++) host[i] = random_uniform(&seed);
    memcpy(expected, host, sizeof expected);
    CUdeviceptr at = memory + misaligned * sizeof(float);
    float *x = (float *)(uintptr_t)at;
    struct cast_scaled_argument on_device = {.target = x, .source = x, .count = COUNT, .factor = 3.0f},
                                on_host = {
                                    .target = expected, .source = expected, .count = COUNT, .factor = 3.0f};
    driver.cuMemcpyAsync(at, (CUdeviceptr)(uintptr_t)host, sizeof expected, in);
    order(in, compute);
    launch(function, &kernel_cast_scaled, &on_device, compute);
    order(compute, out);
    driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, at, sizeof expected, out);
    CHECK_INT(driver.cuStreamSynchronize(out), CUDA_SUCCESS);
    kernel_cast_scaled.run(&on_host);
    CHECK_BYTES(host, expected, sizeof expected);
    driver.cuMemFree(memory), driver.cuMemFreeHost(host);
    driver.cuStreamDestroy(in), driver.cuStreamDestroy(compute), driver.cuStreamDestroy(out);
}

int main(void) {
    struct zero_error error;
    error_clear(&error);
    if (cuda_driver_open(&driver, &error)) {
        CHECK_STRING(error.message, "");
        return check_end();
    }
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CHECK_INT(driver.cuDeviceGet(&device, 0), CUDA_SUCCESS);
    CHECK_INT(driver.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_INT(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(driver.cuModuleLoadData(&module, kernel_cast_scaled.fatbin), CUDA_SUCCESS);
    CHECK_INT(driver.cuModuleGetFunction(&function, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(driver.cuModuleGetFunction(&function, module, kernel_cast_scaled.name), CUDA_SUCCESS);
    for (uint64_t misaligned = 0; misaligned < 4; misaligned++) scale_on_three_streams(function, misaligned);
    CHECK_INT(driver.cuModuleUnload(module), CUDA_SUCCESS);
    CHECK_INT(driver.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    cuda_driver_close(&driver);
    return check_end();
}
