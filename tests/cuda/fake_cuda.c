/* The driver's functions: each takes the lock, checks its handles and the thread's context, lets some of the enqueued
 * work run, and does its own part. Misuse that CUDA reports is reported with CUDA's code. */
#include "tests/cuda/fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/cuda/emulator.h"
#include "tests/cuda/fake_internal.h"

#define EXPORT __attribute__((visibility("default")))

enum { DEVICES_MAX = 8, SHARED_DEFAULT = 48 * 1024, SHARED_MAX = 227 * 1024 };

struct CUfunc_st {
    const struct emulated_kernel *kernel;
    uint32_t shared_max;
    bool loaded;
    struct CUfunc_st *next;
};

struct CUmod_st {
    struct CUfunc_st *functions;
    const unsigned char *image;
    size_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool initialised, captures;
static int device_count;
static struct CUctx_st contexts[DEVICES_MAX];
static _Thread_local struct CUctx_st *current;

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

static CUresult enter(bool needs_context) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs_context && !current) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    if (!needs_context || current->retained) return CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult leave(CUresult result) {
    memory_lock();
    pthread_mutex_unlock(&mutex);
    return result;
}

#define ENTER(needs_context)                                                                                 \
    do {                                                                                                     \
        CUresult entered = enter(needs_context);                                                             \
        if (entered) return entered;                                                                         \
    } while (0)

/* Work runs until `done`. Where none is ready, it waits for what another thread will enqueue. */
static void run_until(bool (*done)(const void *), const void *of) {
    while (!done(of)) {
        if (streams_step()) continue;
        memory_lock();
        pthread_mutex_unlock(&mutex);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&mutex);
    }
}

static bool stream_done(const void *of) { return stream_idle(of); }
static bool mark_done(const void *of) { return event_done(of); }
static bool all_done(const void *of) { return streams_idle(of); }

static struct stream *stream_of(CUstream handle) {
    struct stream *s = (struct stream *)handle;
    return stream_valid(s) ? s : NULL; /* the default stream, 0, is none */
}

static struct event *event_of(CUevent handle) {
    struct event *e = (struct event *)handle;
    return event_valid(e) ? e : NULL;
}

static bool captured(const struct event *e) { return e->mark && e->mark->graph; }

/* ---- devices and contexts ---- */

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

EXPORT CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&mutex);
    if (!initialised) {
        device_count = (int)number_from("FAKE_CUDA_DEVICES", 1);
        if (device_count > DEVICES_MAX) fake_fail("at most %d devices", DEVICES_MAX);
        captures = number_from("FAKE_CUDA_CAPTURES", 1);
        memory_open(number_from("FAKE_CUDA_MEMORY", UINT64_C(1) << 30));
        streams_open(number_from("FAKE_CUDA_SEED", 1));
        for (int k = 0; k < DEVICES_MAX; k++) contexts[k].device = k;
        initialised = true;
    }
    pthread_mutex_unlock(&mutex);
    return device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
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
    snprintf(name, (size_t)bytes, "emulated device");
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
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    ENTER(false);
    *context = &contexts[device];
    contexts[device].retained++;
    return leave(CUDA_SUCCESS);
}

/* After the last release the context is gone, and all that was made in it. */
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    ENTER(false);
    if (!contexts[device].retained) return leave(CUDA_ERROR_INVALID_CONTEXT);
    contexts[device].retained--;
    memory_check();
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    ENTER(true);
    if (graphs_capture(current)) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    run_until(all_done, current);
    memory_check();
    return leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

/* The calls that wait or allocate: not while a stream is captured. */
#define ENTER_UNCAPTURED()                                                                                   \
    do {                                                                                                     \
        ENTER(true);                                                                                         \
        if (graphs_forbid()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);                            \
    } while (0)

EXPORT CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    ENTER_UNCAPTURED();
    uint64_t address = 0;
    CUresult result = memory_allocate(&address, bytes);
    if (!result) *out = address;
    return leave(result);
}

/* As in CUDA, after all that was enqueued. */
EXPORT CUresult cuMemFree(CUdeviceptr address) {
    ENTER_UNCAPTURED();
    if (!address) return leave(CUDA_SUCCESS);
    run_until(all_done, current);
    return leave(memory_free(address));
}

EXPORT CUresult cuMemGetInfo(size_t *available, size_t *total) {
    ENTER(true);
    *available = memory_available();
    *total = memory_capacity();
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER_UNCAPTURED();
    *out = bytes ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    if (*out) memset(*out, 0xff, bytes);
    return leave(*out ? pinned_add(*out, bytes) : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuMemFreeHost(void *memory) {
    ENTER_UNCAPTURED();
    if (!memory) return leave(CUDA_SUCCESS);
    run_until(all_done, current);
    if (pinned_remove(memory)) return leave(CUDA_ERROR_INVALID_VALUE);
    free(memory);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags) {
    ENTER_UNCAPTURED();
    return leave(pinned_add(memory, bytes));
}

EXPORT CUresult cuMemHostUnregister(void *memory) {
    ENTER_UNCAPTURED();
    run_until(all_done, current);
    return leave(pinned_remove(memory));
}

/* Every call that enqueues: checks the stream, lets something run before or after. */
static CUresult enqueue(CUstream handle, bool (*ready)(void *), void (*run)(void *), const void *argument,
                        size_t bytes) {
    struct stream *s = stream_of(handle);
    if (!s) return leave(CUDA_ERROR_INVALID_HANDLE);
    stream_enqueue(s, ready, run, argument, bytes);
    streams_advance();
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult fake_cuda_enqueue(CUstream stream, bool (*ready)(void *), void (*run)(void *),
                                  const void *argument, size_t bytes) {
    ENTER(true);
    return enqueue(stream, ready, run, argument, bytes);
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
    if (!bytes) return leave(CUDA_SUCCESS);
    if (!reachable(target, bytes) || !reachable(source, bytes)) return leave(CUDA_ERROR_INVALID_VALUE);
    count_copy();
    return enqueue(stream, NULL, run_copy, &(struct copy){target, source, bytes}, sizeof(struct copy));
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
    if (!count) return leave(CUDA_SUCCESS);
    if (target % width || !reachable(target, count * width)) return leave(CUDA_ERROR_INVALID_VALUE);
    return enqueue(stream, NULL, run_fill, &(struct fill){target, count, value, width}, sizeof(struct fill));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
    return fill(target, value, 1, count, stream);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
    return fill(target, value, 4, count, stream);
}

/* ---- streams and events ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER(true);
    *out = (CUstream)stream_create(current);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    return cuStreamCreate(out, flags);
}

EXPORT CUresult cuStreamDestroy(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return leave(CUDA_ERROR_INVALID_HANDLE);
    run_until(stream_done, s);
    stream_destroy(s);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return leave(graph_invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    streams_advance();
    return leave(stream_idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return leave(graph_invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    run_until(stream_done, s);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    struct event *e = event_of(event);
    if (!s || !e) return leave(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = stream_wait(s, e);
    streams_advance();
    return leave(result);
}

struct host_function {
    CUhostFn function;
    void *user;
};

static void run_host_function(void *argument) {
    const struct host_function *h = argument;
    memory_lock(); /* it is the host that runs */
    h->function(h->user);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user) {
    ENTER(true);
    return enqueue(stream, NULL, run_host_function, &(struct host_function){function, user},
                   sizeof(struct host_function));
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
    ENTER(true);
    *out = (CUevent)event_create(current);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy(CUevent handle) {
    ENTER(true);
    struct event *e = event_of(handle);
    if (!e) return leave(CUDA_ERROR_INVALID_HANDLE);
    event_destroy(e);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(true);
    struct event *e = event_of(event);
    struct stream *s = stream_of(stream);
    if (!e || !s) return leave(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = event_record(e, s);
    streams_advance();
    return leave(result);
}

EXPORT CUresult cuEventQuery(CUevent event) {
    ENTER(true);
    struct event *e = event_of(event);
    if (!e) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (captured(e)) return leave(graph_invalidate(e->mark->graph, CUDA_ERROR_CAPTURED_EVENT));
    if (graphs_forbid()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    streams_advance();
    return leave(event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    ENTER(true);
    struct event *e = event_of(event);
    if (!e) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (captured(e)) return leave(graph_invalidate(e->mark->graph, CUDA_ERROR_CAPTURED_EVENT));
    if (graphs_forbid()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    run_until(mark_done, e);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    ENTER(true);
    struct event *b = event_of(begin), *e = event_of(end);
    if (!b || !e || !b->mark || !e->mark) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (!event_done(b) || !event_done(e)) return leave(CUDA_ERROR_NOT_READY);
    *milliseconds = (float)((double)e->mark->time_ns - (double)b->mark->time_ns) * 1e-6f;
    return leave(CUDA_SUCCESS);
}

/* ---- modules and kernels ---- */

static const uint32_t fatbin_magic = 0xba55ed50;

/* The head of a fatbin: magic, version (16 bits), bytes of the head (16), bytes of what follows (64). */
static size_t image_bytes(const unsigned char *image) {
    uint32_t magic;
    uint16_t head;
    uint64_t body;
    memcpy(&magic, image, sizeof magic);
    memcpy(&head, image + 6, sizeof head);
    memcpy(&body, image + 8, sizeof body);
    return magic == fatbin_magic ? head + body : 0;
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    size_t bytes = image ? image_bytes(image) : 0;
    if (!bytes) return CUDA_ERROR_INVALID_IMAGE;
    ENTER(true);
    struct CUmod_st *m = calloc(1, sizeof *m);
    if (!m) fake_fail("the host has no memory");
    m->image = image;
    m->bytes = bytes;
    *out = m;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncLoad(CUfunction f) {
    ENTER(true);
    if (!f->loaded) count_load();
    f->loaded = true;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    ENTER(true);
    while (module->functions) {
        struct CUfunc_st *f = module->functions;
        module->functions = f->next;
        free(f);
    }
    free(module);
    return leave(CUDA_SUCCESS);
}

/* The fatbin is real, though it does not run: an entry that it lacks would be missing on a GPU. */
static bool image_has(const struct CUmod_st *m, const char *name) {
    char symbol[256];
    int bytes = snprintf(symbol, sizeof symbol, ".text.%s", name) + 1;
    return memmem(m->image, m->bytes, symbol, (size_t)bytes) != NULL;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    ENTER(true);
    if (!image_has(module, name)) return leave(CUDA_ERROR_NOT_FOUND);
    const struct emulated_kernel *kernel = emulator_find(name);
    if (!kernel) fake_fail("kernel %s has no emulation: add its file to tests/cuda/BUILD", name);
    struct CUfunc_st *f = calloc(1, sizeof *f);
    if (!f) fake_fail("the host has no memory");
    *f = (struct CUfunc_st){.kernel = kernel, .shared_max = SHARED_DEFAULT, .next = module->functions};
    module->functions = f;
    *out = f;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_NOT_SUPPORTED;
    if (value < 0 || value > SHARED_MAX) return CUDA_ERROR_INVALID_VALUE;
    f->shared_max = (uint32_t)value;
    return CUDA_SUCCESS;
}

struct launch {
    const struct emulated_kernel *kernel;
    struct emulator_shape shape;
    _Alignas(16) unsigned char argument[];
};

static void run_launch(void *argument) {
    const struct launch *l = argument;
    emulator_launch(l->kernel, &l->shape, l->argument, streams_random());
}

static bool shape_fits(const struct CUfunc_st *f, const struct emulator_shape *s) {
    uint64_t threads = (uint64_t)s->threads[0] * s->threads[1] * s->threads[2];
    return threads && threads <= f->kernel->threads_max && threads <= 1024 && s->threads[2] <= 64 &&
           s->blocks[0] && s->blocks[1] && s->blocks[2] && s->blocks[0] <= INT32_MAX &&
           s->blocks[1] <= UINT16_MAX && s->blocks[2] <= UINT16_MAX && s->shared_bytes <= f->shared_max;
}

/* Below this address are programs linked to fixed addresses, and the sanitizers' records of all memory: there, any two
 * numbers side by side form an address. */
#define SHADOWS_END UINT64_C(0x340000000000)

/* True if the address is in host memory that exists but that a GPU does not reach. Memory that a program is loaded with
 * does not count: an argument may name a table of the host's functions. */
static bool is_pageable(uint64_t address) {
    void *page = (void *)(uintptr_t)(address & ~UINT64_C(4095));
    Dl_info loaded;
    if (address < SHADOWS_END || address >= UINT64_C(1) << 47 || memory_is_device(address)) return false;
    return !pinned_has(address, 0) && msync(page, 1, MS_ASYNC) == 0 &&
           !dladdr((void *)(uintptr_t)address, &loaded);
}

/* A value in an argument that looks like a pointer is checked as one; except an enumerator, which padding may follow,
 * and the last word, of which one half may be padding. */
static void check_pointers(const struct emulated_kernel *kernel, const void *argument) {
    for (size_t at = 0; at + 2 * sizeof(uint64_t) <= kernel->argument_bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)argument + at, sizeof word);
        if ((uint32_t)word < 16) continue;
        if (is_pageable(word))
            fake_fail(
                "kernel %s is given an address of the host's pageable memory, at byte %zu of its argument",
                kernel->name, at);
        if (memory_is_device(word) && !memory_has(word, 0))
            fake_fail("kernel %s is given an address in no allocation, at byte %zu of its argument",
                      kernel->name, at);
    }
}

EXPORT bool fake_cuda_reaches(const void *memory, size_t bytes) {
    uint64_t address = (uint64_t)(uintptr_t)memory;
    pthread_mutex_lock(&mutex);
    bool reaches = memory_is_device(address) ? memory_has(address, bytes) : pinned_has(address, bytes);
    pthread_mutex_unlock(&mutex);
    return reaches;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                               unsigned threads_x, unsigned threads_y, unsigned threads_z,
                               unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
    ENTER(true);
    size_t bytes = sizeof(struct launch) + f->kernel->argument_bytes;
    struct launch *l = calloc(1, bytes);
    if (!l) fake_fail("the host has no memory");
    *l = (struct launch){.kernel = f->kernel,
                         .shape = {.blocks = {blocks_x, blocks_y, blocks_z},
                                   .threads = {threads_x, threads_y, threads_z},
                                   .shared_bytes = shared_bytes}};
    memcpy(l->argument, arguments[0], f->kernel->argument_bytes);
    check_pointers(f->kernel, l->argument);
    if (!f->loaded) count_load();
    f->loaded = true;
    struct stream *s = stream_of(stream);
    bool here = s && s->context == current;
    if (here) count_kernel(s->capture);
    CUresult result = !here                      ? leave(CUDA_ERROR_INVALID_HANDLE)
                      : shape_fits(f, &l->shape) ? enqueue(stream, NULL, run_launch, l, bytes)
                                                 : leave(CUDA_ERROR_INVALID_VALUE);
    free(l);
    return result;
}

/* ---- graphs ---- */

EXPORT CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!captures) return leave(CUDA_ERROR_NOT_SUPPORTED);
    return leave(s ? graph_begin(s, mode) : CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    struct graph *graph = NULL;
    CUresult result = s ? graph_end(s, &graph) : CUDA_ERROR_INVALID_HANDLE;
    *out = (CUgraph)graph;
    return leave(result);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    ENTER(true);
    *out = (CUgraphExec)graph_copy((struct graph *)graph);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    count_graph();
    graph_launch((struct graph *)graph, s);
    streams_advance();
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(true);
    graph_destroy((struct graph *)graph);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    ENTER(true);
    graph_destroy((struct graph *)graph);
    return leave(CUDA_SUCCESS);
}
