/* A GPU for tests of kernels, used only through the driver: on the stand-in and, unchanged, on a real GPU. Arrays come
 * in pairs, one on the host and one on the GPU. Both hold the same bytes before a kernel runs on both, and must hold
 * the same bytes after it. */
#ifndef ZERO_TESTS_CUDA_GPU_H
#define ZERO_TESTS_CUDA_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/numbers/dtype.h"
#include "engine/device/cuda/driver.h"
#include "engine/device/kernel.h"

enum side { ON_HOST, ON_GPU };

struct pair {
    uint64_t bytes, skip; /* skip: bytes before what at() points to */
    unsigned char *host;
    CUdeviceptr device;
};

/* Opens GPU 0 and its stream; ends the process with a message if there is none. */
void gpu_open(void);
void gpu_close(void);
void gpu_must(CUresult result, const char *what); /* ends the process with the driver's reason */
const struct cuda_driver *gpu_driver(void);
CUstream gpu_stream(void);
const char *gpu_name(void);

/* Uninitialised on both sides. */
struct pair pair_new(uint64_t bytes, uint64_t skip);
void pair_free(struct pair *pair);
void *at(const struct pair *pair, enum side side);
void pair_upload(const struct pair *pair);
/* Numbers of every kind, denormals, inf and NaN included, on both sides; any bytes for DTYPE_U8. */
void pair_fill(const struct pair *pair, enum dtype dtype, uint64_t *seed);
/* True if both sides hold the same bytes, skipped bytes included; prints the place of a difference. */
int pair_same(const struct pair *pair, const char *name);

CUfunction gpu_function(const struct kernel *kernel);
/* Enqueues the kernel; gpu_wait waits for its end. */
void gpu_launch(const struct kernel *kernel, const void *argument);
void gpu_launch_on(CUstream stream, const struct kernel *kernel, const void *argument);
void gpu_wait(void);
/* Calls the host's function, or launches the kernel. */
void run_on(enum side side, const struct kernel *kernel, void *argument);

#endif
