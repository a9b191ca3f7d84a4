/* The driver's functions: each takes the lock, checks its handles and the thread's context, lets some of the enqueued
 * work run, and does its own part. Misuse that CUDA reports is reported with CUDA's code. */
#include "tests/cuda/fake_cuda.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/fake_internal.h"

enum { DEVICES_MAX = 16, PINNED_BEHIND_PAGE = 512 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static int device_count;
static struct CUctx_st contexts[DEVICES_MAX];
static _Thread_local struct CUctx_st *current;

struct CUctx_st *current_context(void) {
    return current;
}

void fake_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("fake CUDA driver: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

/* ---- entering ---- */

CUresult call_enter(bool needs_context) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs_context && !current) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    if (!needs_context || current->retained) return CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult call_leave(CUresult result) {
    memory_lock();
    pthread_mutex_unlock(&mutex);
    return result;
}

void call_wait(bool (*done)(const void *), const void *of) {
    while (!done(of)) {
        if (streams_step()) continue;
        memory_lock();
        pthread_mutex_unlock(&mutex);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&mutex);
    }
}

static bool all_done(const void *of) { return streams_idle(of); }

/* The legacy default stream is one of each context. It is accepted by its own handle alone: 0 is a handle that was forgotten. */
static struct stream *legacy_stream(struct CUctx_st *context) {
    if (context && !context->legacy) context->legacy = stream_create(context);
    return context ? context->legacy : NULL;
}

struct stream *stream_of(CUstream handle) {
    struct stream *s = (struct stream *)handle;
    if (handle == CU_STREAM_LEGACY) return legacy_stream(current_context());
    return stream_valid(s) ? s : NULL;
}

static bool has_room(const void *of) { return stream_has_room(of); }

struct stream *stream_with_room(CUstream handle) {
    struct stream *s = stream_of(handle);
    if (s) call_wait(has_room, s);
    return s;
}

/* ---- devices and contexts ---- */

uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

EXPORT CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&mutex);
    if (!initialised) {
        device_count = (int)number_from("FAKE_CUDA_DEVICES", 1);
        if (device_count > DEVICES_MAX) fake_fail("at most %d devices", DEVICES_MAX);
        memory_open(number_from("FAKE_CUDA_MEMORY", UINT64_C(1) << 30));
        streams_open(number_from("FAKE_CUDA_SEED", 1));
        for (int k = 0; k < DEVICES_MAX; k++) contexts[k].device = k;
        initialised = true;
    }
    pthread_mutex_unlock(&mutex);
    return device_count ? (CUresult)number_from("FAKE_CUDA_INIT", CUDA_SUCCESS) : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = (int)number_from("FAKE_CUDA_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

EXPORT CUresult cuGetErrorString(CUresult code, const char **out) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].code == code) return *out = errors[k].text, CUDA_SUCCESS;
    return *out = NULL, CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **out) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].code == code) return *out = errors[k].name, CUDA_SUCCESS;
    return *out = NULL, CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = device_count;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int index) {
    if (index < 0 || index >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *device = index;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    const char *given = getenv("FAKE_CUDA_NAME");
    snprintf(name, (size_t)bytes, "%s", given ? given : "emulated device");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    *bytes = memory_capacity();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const int values[CU_DEVICE_ATTRIBUTE_MAX] = {
        [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
        [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
        [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 4,
        [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
        [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = SHARED_DEFAULT,
        [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = SHARED_MAX,
        [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
        [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
        [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 2,
        [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    };
    if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = values[attribute];
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *value = (int)number_from("FAKE_CUDA_CAPABILITY", (uint64_t)*value);
    if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        *value = (int)number_from("FAKE_CUDA_VIRTUAL", 1);
    if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) *value = (int)number_from("FAKE_CUDA_NODE", 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    ENTER(false);
    *context = &contexts[device];
    contexts[device].retained++;
    return call_leave(CUDA_SUCCESS);
}

/* After the last release the context is gone, and all that was made in it. */
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    ENTER(false);
    if (!contexts[device].retained) return call_leave(CUDA_ERROR_INVALID_CONTEXT);
    contexts[device].retained--;
    memory_check();
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(true);
    *device = current->device;
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    ENTER(true);
    if (graphs_capture(current)) return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    call_wait(all_done, current);
    memory_check();
    return call_leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

/* The calls that wait or allocate: not while a stream is captured. */
#define ENTER_UNCAPTURED()                                                                                   \
    do {                                                                                                     \
        ENTER(true);                                                                                         \
        if (graphs_forbid()) return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);                       \
    } while (0)

EXPORT CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    ENTER_UNCAPTURED();
    uint64_t address = 0;
    CUresult result = memory_allocate(&address, bytes);
    if (!result) *out = address;
    return call_leave(result);
}

/* As in CUDA, after all that was enqueued. */
EXPORT CUresult cuMemFree(CUdeviceptr address) {
    ENTER_UNCAPTURED();
    if (!address) return call_leave(CUDA_SUCCESS);
    call_wait(all_done, current);
    return call_leave(memory_free(address));
}

EXPORT CUresult cuMemGetInfo(size_t *available, size_t *total) {
    ENTER(true);
    *available = memory_available();
    *total = memory_capacity();
    return call_leave(CUDA_SUCCESS);
}

/* As a driver's small allocation, it does not begin on a page. */
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER_UNCAPTURED();
    char *page = bytes ? aligned_alloc(4096, (PINNED_BEHIND_PAGE + bytes + 4095) / 4096 * 4096) : NULL;
    *out = page ? memset(page + PINNED_BEHIND_PAGE, 0xff, bytes) : NULL;
    return call_leave(*out ? pinned_add(*out, bytes, true) : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuMemFreeHost(void *memory) {
    ENTER_UNCAPTURED();
    if (!memory) return call_leave(CUDA_SUCCESS);
    call_wait(all_done, current);
    if (pinned_remove(memory, true)) return call_leave(CUDA_ERROR_INVALID_VALUE);
    free((char *)memory - PINNED_BEHIND_PAGE);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags) {
    ENTER_UNCAPTURED();
    if (!number_from("FAKE_CUDA_REGISTERS", 1)) return call_leave(CUDA_ERROR_NOT_SUPPORTED);
    return call_leave(pinned_add(memory, bytes, false));
}

EXPORT CUresult cuMemHostUnregister(void *memory) {
    ENTER_UNCAPTURED();
    call_wait(all_done, current);
    return call_leave(pinned_remove(memory, false));
}

/* Every call that enqueues: checks the stream, lets something run before or after. */
CUresult call_enqueue(CUstream handle, bool (*ready)(void *), void (*run)(void *), const void *argument,
                      size_t bytes) {
    struct stream *s = stream_with_room(handle);
    if (!s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture && !graph_valid(s->capture)) return call_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream_enqueue(s, ready, run, argument, bytes);
    streams_advance();
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult fake_cuda_enqueue(CUstream stream, bool (*ready)(void *), void (*run)(void *),
                                  const void *argument, size_t bytes) {
    ENTER(true);
    return call_enqueue(stream, ready, run, argument, bytes);
}

/* Memory that a copy or a clear may touch: whole in one allocation, or the host's. */
static bool reachable(CUdeviceptr address, size_t bytes) {
    return address && (!memory_is_device(address) || memory_has(address, bytes));
}

struct copy {
    CUdeviceptr target, source;
    size_t bytes;
};

static void run_copy(void *argument) {
    const struct copy *c = argument;
    memmove((void *)(uintptr_t)c->target, (const void *)(uintptr_t)c->source, c->bytes);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
    ENTER(true);
    if (!bytes) return call_leave(CUDA_SUCCESS);
    if (!reachable(target, bytes) || !reachable(source, bytes)) return call_leave(CUDA_ERROR_INVALID_VALUE);
    count_copy();
    return call_enqueue(stream, NULL, run_copy, &(struct copy){target, source, bytes}, sizeof(struct copy));
}

struct fill {
    CUdeviceptr target;
    size_t count;
    uint32_t value, width;
};

static void run_fill(void *argument) {
    const struct fill *f = argument;
    for (size_t i = 0; i < f->count; i++)
        memcpy((char *)(uintptr_t)f->target + i * f->width, &f->value, f->width);
}

static CUresult fill(CUdeviceptr target, uint32_t value, uint32_t width, size_t count, CUstream stream) {
    ENTER(true);
    if (!count) return call_leave(CUDA_SUCCESS);
    if (target % width || !reachable(target, count * width)) return call_leave(CUDA_ERROR_INVALID_VALUE);
    return call_enqueue(stream, NULL, run_fill, &(struct fill){target, count, value, width},
                        sizeof(struct fill));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
    return fill(target, value, 1, count, stream);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
    return fill(target, value, 4, count, stream);
}

EXPORT bool fake_cuda_reaches(const void *memory, size_t bytes) {
    uint64_t address = (uint64_t)(uintptr_t)memory;
    pthread_mutex_lock(&mutex);
    bool reaches = memory_is_device(address) ? memory_has(address, bytes) : pinned_has(address, bytes);
    pthread_mutex_unlock(&mutex);
    return reaches;
}
