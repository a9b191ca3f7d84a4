#include "tests/cuda/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/kernels/random.h"

enum {
    KERNELS_MAX = 64,
    MANY = 1 << 20, /* numbers that several threads fill in */
};

static struct {
    struct cuda_driver driver;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    char name[256];
    const struct kernel *kernel[KERNELS_MAX];
    CUmodule module[KERNELS_MAX];
    CUfunction function[KERNELS_MAX];
    int count;
} gpu;

void gpu_must(CUresult result, const char *what) {
    struct zero_error error;
    error_clear(&error);
    if (!cuda_check(&gpu.driver, result, &error, "%s", what)) return;
    fprintf(stderr, "%s\n", error.message);
    exit(1);
}

void gpu_open(void) {
    struct zero_error error;
    error_clear(&error);
    if (cuda_driver_open(&gpu.driver, &error)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    gpu_must(gpu.driver.cuDeviceGet(&gpu.device, 0), "GPU 0");
    gpu_must(gpu.driver.cuDeviceGetName(gpu.name, sizeof gpu.name, gpu.device), "the GPU's name");
    gpu_must(gpu.driver.cuDevicePrimaryCtxRetain(&gpu.context, gpu.device), "a context");
    gpu_must(gpu.driver.cuCtxSetCurrent(gpu.context), "making the context current");
    gpu_must(gpu.driver.cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING), "a stream");
}

void gpu_close(void) {
    for (int k = 0; k < gpu.count; k++)
        gpu_must(gpu.driver.cuModuleUnload(gpu.module[k]), "unloading a module");
    gpu_must(gpu.driver.cuStreamDestroy(gpu.stream), "the stream's end");
    gpu_must(gpu.driver.cuDevicePrimaryCtxRelease(gpu.device), "the context's end");
    cuda_driver_close(&gpu.driver);
}

const struct cuda_driver *gpu_driver(void) { return &gpu.driver; }
CUstream gpu_stream(void) { return gpu.stream; }
const char *gpu_name(void) { return gpu.name; }

struct pair pair_new(uint64_t bytes, uint64_t skip) {
    struct pair p = {.bytes = bytes + skip, .skip = skip, .host = malloc(bytes + skip)};
    if (!p.host) abort();
    gpu_must(gpu.driver.cuMemAlloc(&p.device, p.bytes), "device memory");
    return p;
}

void pair_free(struct pair *pair) {
    gpu_must(gpu.driver.cuMemFree(pair->device), "freeing device memory");
    free(pair->host);
}

void *at(const struct pair *pair, enum side side) {
    return side == ON_HOST ? pair->host + pair->skip : (unsigned char *)(uintptr_t)pair->device + pair->skip;
}

void pair_upload(const struct pair *pair) {
    gpu_must(
        gpu.driver.cuMemcpyAsync(pair->device, (CUdeviceptr)(uintptr_t)pair->host, pair->bytes, gpu.stream),
        "a copy to the GPU");
    gpu_wait();
}

void pair_fill(const struct pair *pair, enum dtype dtype, uint64_t *seed) {
    uint64_t bytes = dtype_bytes(dtype), count = pair->bytes / bytes, start = *seed;
#pragma omp parallel for if (count >= MANY)
    for (uint64_t i = 0; i < count; i++) {
        uint64_t state = start + i * RANDOM_STEP;
        uint32_t bits = dtype == DTYPE_U8 ? (uint32_t)random_u64(&state)
                                          : random_f32_bits(&state) >> (32 - 8 * bytes);
        memcpy(pair->host + i * bytes, &bits, bytes);
    }
    *seed = start + count * RANDOM_STEP;
    pair_upload(pair);
}

int pair_same(const struct pair *pair, const char *name) {
    unsigned char *copy = malloc(pair->bytes);
    if (!copy) abort();
    gpu_must(gpu.driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)copy, pair->device, pair->bytes, gpu.stream),
             "a copy from the GPU");
    gpu_wait();
    int same = memcmp(copy, pair->host, pair->bytes) == 0 ||
               check_bytes(copy, pair->host, pair->bytes, name, __FILE__, __LINE__);
    free(copy);
    return same;
}

CUfunction gpu_function(const struct kernel *kernel) {
    for (int k = 0; k < gpu.count; k++)
        if (gpu.kernel[k] == kernel) return gpu.function[k];
    int k = gpu.count++;
    if (k == KERNELS_MAX) abort();
    gpu.kernel[k] = kernel;
    gpu_must(gpu.driver.cuModuleLoadData(&gpu.module[k], kernel->fatbin), kernel->name);
    gpu_must(gpu.driver.cuModuleGetFunction(&gpu.function[k], gpu.module[k], kernel->name), kernel->name);
    return gpu.function[k];
}

void gpu_launch_on(CUstream stream, const struct kernel *kernel, const void *argument) {
    struct kernel_grid grid = kernel->grid(argument);
    if (!grid.blocks) return;
    gpu_must(gpu.driver.cuLaunchKernel(gpu_function(kernel), grid.blocks, 1, 1, grid.threads, 1, 1,
                                       grid.shared_bytes, stream, (void *[]){(void *)argument}, NULL),
             kernel->name);
}

void gpu_launch(const struct kernel *kernel, const void *argument) {
    gpu_launch_on(gpu.stream, kernel, argument);
}

void gpu_wait(void) { gpu_must(gpu.driver.cuStreamSynchronize(gpu.stream), "work on the GPU"); }

void run_on(enum side side, const struct kernel *kernel, void *argument) {
    if (side == ON_HOST)
        kernel->run(argument);
    else
        gpu_launch(kernel, argument);
}
