/* Tests of the stand-in driver itself: the calls that it must refuse, and the data that a program gets if it forgets to
 * wait. Only with the stand-in. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/cuda/driver.h"
#include "kernels/device_work.h"
#include "tests/check.h"
#include "tests/cuda/gpu.h"

static const struct cuda_driver *d;
static CUstream left, right;

/* The signal that ends `function` in a process of its own; 0: none. */
static int signal_of(void (*function)(void)) {
    fflush(stderr);
    pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        signal(SIGSEGV, SIG_DFL); /* else the address sanitizer would exit instead */
        function();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static CUdeviceptr clear_memory(size_t bytes) {
    CUdeviceptr memory;
    CHECK_INT(d->cuMemAlloc(&memory, bytes), CUDA_SUCCESS);
    CHECK_INT(d->cuMemsetD8Async(memory, 0, bytes, left), CUDA_SUCCESS);
    CHECK_INT(d->cuStreamSynchronize(left), CUDA_SUCCESS);
    return memory;
}

static void touch(void) { *(volatile char *)(uintptr_t)clear_memory(100) = 1; }

/* A kernel whose count is larger than its array. */
static void write_behind(void) {
    float *x = (float *)(uintptr_t)clear_memory(400);
    struct cast_scaled_argument a = {.target = x, .source = x, .count = 101, .factor = 2};
    gpu_launch(&kernel_cast_scaled, &a);
    d->cuCtxSynchronize();
}

/* A kernel that gets memory that no GPU reaches. */
static void give_pageable(void) {
    float *x = calloc(100, sizeof *x);
    struct cast_scaled_argument a = {.target = x, .source = x, .count = 100, .factor = 2};
    gpu_launch(&kernel_cast_scaled, &a);
}

static void give_freed(void) {
    CUdeviceptr freed = clear_memory(400);
    d->cuMemFree(freed);
    struct cast_scaled_argument a = {
        .target = (void *)(uintptr_t)freed, .source = (void *)(uintptr_t)freed, .count = 100, .factor = 2};
    gpu_launch(&kernel_cast_scaled, &a);
}

static void check_pinned(void) {
    float *x = aligned_alloc(4096, 4096);
    struct cast_scaled_argument a = {.target = x, .source = x, .count = 100, .factor = 2};
    CHECK_INT(signal_of(give_pageable), SIGABRT);
    CHECK_INT(signal_of(give_freed), SIGABRT);
    CHECK_INT(d->cuMemHostUnregister(x), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK_INT(d->cuMemHostRegister(x, 4096, 0), CUDA_SUCCESS);
    CHECK_INT(d->cuMemHostRegister(x + 10, 4, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    for (int i = 0; i < 100; i++) x[i] = (float)i;
    gpu_launch(&kernel_cast_scaled, &a);
    gpu_wait();
    CHECK_DOUBLE(x[99], 198, 0);
    CHECK_INT(d->cuMemHostUnregister(x), CUDA_SUCCESS);
    free(x);
}

/* A float that begins at an odd address: a GPU would end the context. */
static void load_misaligned(void) {
    float *x = (float *)(uintptr_t)(clear_memory(400) + 1);
    struct cast_scaled_argument a = {.target = x, .source = x, .count = 10, .factor = 2};
    gpu_launch(&kernel_cast_scaled, &a);
    d->cuCtxSynchronize();
}

static void check_memory(void) {
    size_t available, total;
    CUdeviceptr first, second;
    CHECK_INT(signal_of(touch), SIGSEGV);
    CHECK_INT(signal_of(write_behind), SIGABRT);
    CHECK_INT(signal_of(load_misaligned), SIGABRT);
    CHECK_INT(d->cuMemGetInfo(&available, &total), CUDA_SUCCESS);
    CHECK_INT(d->cuMemAlloc(&first, available + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(d->cuMemAlloc(&first, available - 1000), CUDA_SUCCESS);
    CHECK_INT(d->cuMemAlloc(&second, 1001), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(d->cuMemAlloc(&second, 1000), CUDA_SUCCESS);
    CHECK_INT(d->cuMemcpyAsync(second, second - 1, 1, left), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(d->cuMemsetD8Async(second, 0, 1001, left), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(d->cuMemFree(second + 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(d->cuMemFree(first), CUDA_SUCCESS);
    CHECK_INT(d->cuMemFree(second), CUDA_SUCCESS);
}

/* Two GPUs: work and events stay on their own GPU; a free waits only for its own GPU; a context lives until its last
 * release. */
static void check_contexts(void) {
    CUcontext first, second;
    CUstream there;
    CUevent here;
    CUdeviceptr memory;
    d->cuCtxGetCurrent(&first);
    d->cuEventCreate(&here, 0);
    CHECK_INT(d->cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(d->cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    d->cuCtxSetCurrent(second);
    d->cuStreamCreate(&there, CU_STREAM_NON_BLOCKING);
    CHECK_INT(d->cuEventRecord(here, there), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(d->cuLaunchKernel(gpu_function(&kernel_cast_scaled), 1, 1, 1, 1, 1, 1, 0, left,
                                (void *[]){&(struct cast_scaled_argument){.factor = 1}}, NULL),
              CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(d->cuMemAlloc(&memory, 100), CUDA_SUCCESS);
    d->cuStreamWaitEvent(there, here, 0);
    CHECK_INT(d->cuMemFree(memory), CUDA_SUCCESS);
    CHECK_INT(d->cuStreamDestroy(there), CUDA_SUCCESS);
    CHECK_INT(d->cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    CHECK_INT(d->cuMemAlloc(&memory, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    d->cuCtxSetCurrent(first);
    d->cuEventDestroy(here);
}

static void check_misuse(void) {
    CUcontext context;
    CUevent event;
    CUdeviceptr memory;
    float milliseconds;
    d->cuEventCreate(&event, 0);
    CHECK_INT(d->cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(d->cuEventQuery(event), CUDA_SUCCESS); /* never recorded */
    CHECK_INT(d->cuEventElapsedTime(&milliseconds, event, event), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(d->cuEventDestroy(event), CUDA_SUCCESS);
    CHECK_INT(d->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    d->cuCtxGetCurrent(&context);
    d->cuCtxSetCurrent(NULL);
    CHECK_INT(d->cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
    d->cuCtxSetCurrent(context);
}

/* True if a copy on another stream sees the data of `left`; it must if it waits. */
static bool copy_sees(bool waits) {
    CUdeviceptr memory = clear_memory(4);
    CUevent event;
    uint32_t *host;
    d->cuMemHostAlloc((void **)&host, 4, 0);
    d->cuEventCreate(&event, 0);
    for (int k = 1; k <= 4; k++) d->cuMemsetD32Async(memory, (uint32_t)k, 1, left);
    d->cuEventRecord(event, left);
    if (waits) d->cuStreamWaitEvent(right, event, 0);
    d->cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, memory, 4, right);
    d->cuStreamSynchronize(right);
    bool sees = *host == 4;
    d->cuMemFree(memory), d->cuMemFreeHost(host), d->cuEventDestroy(event);
    return sees;
}

/* An event stands for its latest recording at the time of the wait, not for later ones. */
static void check_latest_recording(void) {
    CUdeviceptr memory = clear_memory(4);
    CUevent event;
    uint32_t *host;
    d->cuMemHostAlloc((void **)&host, 4, 0);
    d->cuEventCreate(&event, 0);
    d->cuEventRecord(event, left);
    d->cuMemsetD32Async(memory, 7, 1, left);
    d->cuEventRecord(event, left);
    d->cuStreamWaitEvent(right, event, 0);
    d->cuEventRecord(event, right);
    d->cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, memory, 4, right);
    d->cuStreamSynchronize(right);
    CHECK_INT(*host, 7);
    d->cuMemFree(memory), d->cuMemFreeHost(host), d->cuEventDestroy(event);
}

static void check_order(void) {
    int seen = 0;
    for (int k = 0; k < 32; k++) {
        CHECK(copy_sees(true));
        seen += copy_sees(false);
    }
    CHECK(seen < 32); /* a missing wait shows */
    check_latest_recording();
}

/* Forks to `right` and joins again; each run adds what the one before left: 1, 2, 4, 8. */
static void capture(CUdeviceptr x, CUdeviceptr y, CUgraphExec *out) {
    CUevent fork_event, join_event;
    CUgraph graph;
    float *a = (float *)(uintptr_t)x, *b = (float *)(uintptr_t)y;
    struct gradient_take_argument take = {.sum = a, .gradient = b, .count = 1, .add = true};
    d->cuEventCreate(&fork_event, 0), d->cuEventCreate(&join_event, 0);
    CHECK_INT(d->cuStreamBeginCapture(left, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_INT(d->cuEventRecord(fork_event, left), CUDA_SUCCESS);
    CHECK_INT(d->cuStreamWaitEvent(right, fork_event, 0), CUDA_SUCCESS);
    CHECK_INT(d->cuMemcpyAsync(y, x, 4, right), CUDA_SUCCESS);
    CHECK_INT(d->cuEventRecord(join_event, right), CUDA_SUCCESS);
    CHECK_INT(d->cuStreamWaitEvent(left, join_event, 0), CUDA_SUCCESS);
    gpu_launch_on(left, &kernel_gradient_take, &take);
    CHECK_INT(d->cuStreamEndCapture(left, &graph), CUDA_SUCCESS);
    CHECK_INT(d->cuGraphInstantiate(out, graph, 0), CUDA_SUCCESS);
    d->cuGraphDestroy(graph);
    d->cuEventDestroy(fork_event), d->cuEventDestroy(join_event);
}

/* Calls that are forbidden during a capture end the capture. */
enum forbidden { ALLOCATE, REGISTER, ASK_EVENT, ASK_STREAM, WAIT_FOR_ALL, ASK_CAPTURED, NOTHING, FORBIDDEN };

static CUresult forbidden(enum forbidden call, CUevent before, CUevent inside) {
    static char host[64];
    CUdeviceptr memory;
    switch (call) {
    case ALLOCATE:
        return d->cuMemAlloc(&memory, 100);
    case REGISTER:
        return d->cuMemHostRegister(host, sizeof host, 0);
    case ASK_EVENT:
        return d->cuEventQuery(before);
    case ASK_STREAM:
        return d->cuStreamQuery(left);
    case WAIT_FOR_ALL:
        return d->cuCtxSynchronize();
    case ASK_CAPTURED:
        return d->cuEventQuery(inside);
    default:
        return CUDA_SUCCESS;
    }
}

static void check_captures(void) {
    CUevent before, inside;
    d->cuEventCreate(&before, 0), d->cuEventCreate(&inside, 0);
    d->cuEventRecord(before, right);
    for (int call = 0; call < FORBIDDEN; call++) {
        CUgraph graph;
        d->cuStreamBeginCapture(left, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        d->cuEventRecord(inside, left);
        CUresult result = forbidden((enum forbidden)call, before, inside);
        CHECK_INT(result, call == NOTHING        ? CUDA_SUCCESS
                          : call == ASK_CAPTURED ? CUDA_ERROR_CAPTURED_EVENT
                                                 : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        result = d->cuStreamEndCapture(left, &graph);
        CHECK_INT(result, call == NOTHING ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        if (!result) d->cuGraphDestroy(graph);
    }
    d->cuEventDestroy(before), d->cuEventDestroy(inside);
}

static void check_graph(void) {
    CUdeviceptr x = clear_memory(4), y = clear_memory(4);
    CUgraphExec graph;
    CUgraph none;
    CUevent event;
    float *host, one = 1;
    d->cuMemHostAlloc((void **)&host, 4, 0);
    capture(x, y, &graph);
    memcpy(host, &one, 4);
    d->cuMemcpyAsync(x, (CUdeviceptr)(uintptr_t)host, 4, left);
    for (int k = 0; k < 3; k++) CHECK_INT(d->cuGraphLaunch(graph, left), CUDA_SUCCESS);
    d->cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, x, 4, left);
    d->cuStreamSynchronize(left);
    CHECK_DOUBLE(*host, 8, 0);
    d->cuEventCreate(&event, 0);
    d->cuStreamBeginCapture(left, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    d->cuEventRecord(event, left);
    d->cuStreamWaitEvent(right, event, 0);
    CHECK_INT(d->cuStreamEndCapture(left, &none), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    d->cuEventDestroy(event), d->cuGraphExecDestroy(graph);
    d->cuMemFree(x), d->cuMemFree(y), d->cuMemFreeHost(host);
}

int main(void) {
    setenv("FAKE_CUDA_MEMORY", "1048576", 1), setenv("FAKE_CUDA_DEVICES", "2", 1);
    gpu_open();
    d = gpu_driver();
    d->cuStreamCreate(&left, CU_STREAM_NON_BLOCKING), d->cuStreamCreate(&right, CU_STREAM_NON_BLOCKING);
    check_memory();
    check_pinned();
    check_contexts();
    check_misuse();
    check_order();
    check_captures();
    check_graph();
    d->cuStreamDestroy(left), d->cuStreamDestroy(right);
    gpu_close();
    return check_end();
}
