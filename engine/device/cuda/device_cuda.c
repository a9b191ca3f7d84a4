/* A GPU, through the driver's table. There is one stream per purpose. A ticket is an event that is recorded behind its
 * work. A kernel's module is loaded when the kernel is prepared, or at its first launch. Pinned memory: pinned.h. Address space: space.h.
 *
 * Threads: any thread, one at a time: each call makes the GPU's primary context current in the calling thread. A
 * failure is kept, and every later call returns it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/system/thread.h"
#include "engine/device/cuda/pinned.h"
#include "engine/device/cuda/space.h"

enum {
    EVENTS = 2 * DEVICE_QUEUE_MAX, /* tickets of a stream that may be in flight; an older one is done */
    KERNELS_MAX = 128,
    FILES_MAX = 32,
    EXTENTS_MAX = 64,
    PAGE = 4096,
    CAPABILITY_MIN = 8, /* the major version of the first of CUDA_ARCHITECTURES in tools/build/cuda.bzl */
};

struct function {
    const struct kernel *kernel;
    CUfunction function;
};

struct file { /* a fatbin, which may hold several kernels */
    const unsigned char *fatbin;
    CUmodule module;
};

struct extent { /* one allocation of device memory */
    CUdeviceptr whole;
    void *page; /* the first page boundary in it */
};

struct cuda {
    struct device base;
    struct cuda_driver driver;
    CUdevice device;
    CUcontext context;
    CUstream stream[DEVICE_STREAMS];
    bool hosts_stream; /* DEVICE_COMPUTE is borrowed */
    CUevent event[DEVICE_STREAMS][EVENTS];
    struct function function[KERNELS_MAX];
    struct file file[FILES_MAX];
    struct extent extent[EXTENTS_MAX];
    struct pinned pinned;
    struct space space;
    uint32_t functions, files;
    struct zero_error error;
};

/* ---- failures ---- */

/* The first failure is kept; every later call passes it on. */
static zero_status told(struct cuda *c, struct zero_error *error) {
    return c->error.code ? error_pass(error, &c->error) : ZERO_OK;
}

/* While a program captures a graph in the default mode, the driver refuses to test events and to allocate in every thread, and drops the
 * capture. The engine's threads do nothing with captured streams, so they are exempt. */
static void allow_captures(const struct cuda *c) {
    static _Thread_local bool allowed;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!allowed && thread_is_own())
        allowed = c->driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
}

/* Makes the context current also after a failure, because closing and freeing still need the context. */
static zero_status enter(struct cuda *c, struct zero_error *error) {
    CUresult result = c->driver.cuCtxSetCurrent(c->context);
    allow_captures(c);
    if (!c->error.code)
        cuda_check(&c->driver, result, &c->error,
                   "device cuda: making the context of GPU %" PRId64 " current", c->base.index);
    return told(c, error);
}

/* ---- opening ---- */

static void close_cuda(struct device *device);

static zero_status ask(struct cuda *c, CUdevice_attribute attribute, int *out, struct zero_error *error) {
    return cuda_check(&c->driver, c->driver.cuDeviceGetAttribute(out, attribute, c->device), error,
                      "device cuda: asking what GPU %" PRId64 " can do", c->base.index);
}

/* Checks the GPU's abilities before any memory is planned for it. Without this check an unsuitable GPU would fail only
 * when its first kernel is loaded. */
static zero_status check_device(struct cuda *c, struct zero_error *error) {
    int reachable = 0, major = 0, minor = 0;
    TRY(ask(c, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, &reachable, error));
    TRY(ask(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, error));
    TRY(ask(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, error));
    if (c->driver.cuDeviceGetAttribute(&c->base.node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, c->device) !=
        CUDA_SUCCESS)
        c->base.node = -1;
    c->base.page_bytes = space_possible(&c->driver, c->device) ? DEVICE_PART_BYTES : 0;
    if (major < CAPABILITY_MIN)
        return error_set(error, ZERO_E_CONFIG,
                         "device cuda: GPU %" PRId64 " is of compute capability %d.%d, and this build has "
                         "kernels for %d.0 and later; set device.type \"cpu\"",
                         c->base.index, major, minor, (int)CAPABILITY_MIN);
    if (reachable) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "device cuda: GPU %" PRId64
                     " cannot reach the host's memory under the host's addresses; set device.type \"cpu\"",
                     c->base.index);
}

static zero_status find_device(struct cuda *c, const struct device_options *o, struct zero_error *error) {
    int count = 0;
    TRY(cuda_check(&c->driver, c->driver.cuDeviceGetCount(&count), error, "device cuda: counting the GPUs"));
    if (count == 0)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "device cuda: the driver shows no GPU; look at CUDA_VISIBLE_DEVICES, or set device.type \"cpu\"");
    if (o->index >= count)
        return error_set(error, ZERO_E_CONFIG,
                         "device.index: there is no GPU %" PRId64 "; there are %d, from 0 on", o->index,
                         count);
    c->base.index = o->index < 0 ? (int64_t)(o->local_rank % (uint32_t)count) : o->index;
    zero_status status = cuda_check(&c->driver, c->driver.cuDeviceGet(&c->device, (int)c->base.index), error,
                                    "device cuda: opening GPU %" PRId64, c->base.index);
    return status ? status : check_device(c, error);
}

/* An event of one GPU cannot be recorded on a stream of another one. */
static zero_status check_host_stream(struct cuda *c, CUstream stream, struct zero_error *error) {
    CUcontext context = NULL;
    CUdevice device = c->device;
    CUresult result = c->driver.cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS) result = c->driver.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) result = c->driver.cuCtxGetDevice(&device);
    zero_status status = cuda_check(&c->driver, result, error,
                                    "device cuda: asking which GPU zero_runtime.cuda_stream is a stream of");
    if (!status) status = enter(c, error);
    if (status || device == c->device) return status;
    return error_set(error, ZERO_E_ARGUMENT,
                     "zero_runtime.cuda_stream is a stream of GPU %d, and the engine takes GPU %" PRId64
                     ": make the stream after cudaSetDevice(%" PRId64
                     "), or let the engine take GPU %d by device.index or zero_runtime.local_rank",
                     (int)device, c->base.index, c->base.index, (int)device);
}

/* The host program's next computation waits for the short work of the other streams. Therefore the other streams have
 * the higher priority: if two streams have blocks to start, their blocks start first. Without priorities, a gather
 * would start only after all blocks of the matrix product before it have started. */
static zero_status open_streams(struct cuda *c, const struct device_options *o, struct zero_error *error) {
    CUstream hosts = o->default_stream ? CU_STREAM_LEGACY : o->host_stream;
    int least = 0, greatest = 0;
    if (hosts == CU_STREAM_PER_THREAD)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_runtime.cuda_stream is the per-thread default stream, which is another one in "
                         "each thread of the engine: give a stream of your own, or set cuda_default_stream");
    zero_status status = cuda_check(&c->driver, c->driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                                    error, "device cuda: asking for the streams' priorities");
    if (!status && o->host_stream) status = check_host_stream(c, o->host_stream, error);
    for (int s = 0; s < DEVICE_STREAMS && !status; s++) {
        c->hosts_stream = hosts != NULL;
        if (s == DEVICE_COMPUTE && hosts)
            c->stream[s] = hosts;
        else
            status = cuda_check(&c->driver,
                                c->driver.cuStreamCreateWithPriority(&c->stream[s], CU_STREAM_NON_BLOCKING,
                                                                     s == DEVICE_COMPUTE ? least : greatest),
                                error, "device cuda: making a stream");
        c->base.stream[s] = c->stream[s];
    }
    for (int i = 0; i < DEVICE_STREAMS * EVENTS && !status; i++)
        status = cuda_check(
            &c->driver, c->driver.cuEventCreate(&c->event[i / EVENTS][i % EVENTS], CU_EVENT_DISABLE_TIMING),
            error, "device cuda: making an event");
    return status;
}

static zero_status open_context(struct cuda *c, struct zero_error *error) {
    zero_status status = cuda_check(&c->driver, c->driver.cuDevicePrimaryCtxRetain(&c->context, c->device),
                                    error, "device cuda: the context of GPU %" PRId64, c->base.index);
    return status ? status : enter(c, error);
}

static zero_status open_cuda(const struct device_options *options, struct device **out_device,
                             struct zero_error *error) {
    struct cuda *c = calloc(1, sizeof *c);
    if (!c) return error_set(error, ZERO_E_MEMORY, "device cuda: no memory for its handle");
    c->base.ops = &device_cuda;
    c->base.discrete = c->base.runs_at_once = true;
    error_clear(&c->error);
    zero_status status = cuda_driver_open(&c->driver, error);
    if (status) {
        if (options->out_broken) *options->out_broken = status == ZERO_E_INTERNAL;
        free(c);
        return status;
    }
    status = find_device(c, options, error);
    if (!status) status = open_context(c, error);
    if (!status) status = open_streams(c, options, error);
    if (status)
        close_cuda(&c->base);
    else
        *out_device = &c->base;
    return status;
}

/* Waits for queued work first: the work may use memory that the caller frees next. */
static void close_cuda(struct device *device) {
    struct cuda *c = (struct cuda *)device;
    if (c->context) {
        c->driver.cuCtxSetCurrent(c->context);
        for (int s = 0; s < DEVICE_STREAMS; s++) {
            bool borrowed = s == DEVICE_COMPUTE && c->hosts_stream;
            if (c->stream[s]) c->driver.cuStreamSynchronize(c->stream[s]);
            if (c->stream[s] && !borrowed) c->driver.cuStreamDestroy(c->stream[s]);
        }
        for (int i = 0; i < DEVICE_STREAMS * EVENTS; i++)
            if (c->event[i / EVENTS][i % EVENTS]) c->driver.cuEventDestroy(c->event[i / EVENTS][i % EVENTS]);
        for (uint32_t i = 0; i < c->files; i++) c->driver.cuModuleUnload(c->file[i].module);
        c->driver.cuDevicePrimaryCtxRelease(c->device);
    }
    cuda_driver_close(&c->driver);
    free(c);
}

/* ---- memory ---- */

/* For a small allocation, the driver's alignment is below a page. Therefore this function allocates one page more. */
static void *allocate_device(struct cuda *c, uint64_t bytes) {
    struct extent *e = c->extent;
    while (e < c->extent + EXTENTS_MAX && e->page) e++;
    if (e == c->extent + EXTENTS_MAX || bytes > UINT64_MAX - PAGE) return NULL;
    if (c->driver.cuMemAlloc(&e->whole, bytes + PAGE) != CUDA_SUCCESS) return NULL;
    CUdeviceptr page = (e->whole + PAGE - 1) / PAGE * PAGE;
    bool zeroed = c->driver.cuMemsetD8Async(page, 0, bytes, c->stream[DEVICE_IN]) == CUDA_SUCCESS &&
                  c->driver.cuStreamSynchronize(c->stream[DEVICE_IN]) == CUDA_SUCCESS;
    if (zeroed) return e->page = (void *)(uintptr_t)page;
    c->driver.cuMemFree(e->whole);
    return NULL;
}

static void *allocate(struct device *device, uint64_t bytes, enum device_memory kind) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, NULL)) return NULL;
    if (kind == DEVICE_PINNED) return pinned_allocate(&c->pinned, &c->driver, device, bytes);
    void *memory = allocate_device(c, bytes);
    if (memory) device->allocated[kind] += page_bytes(bytes);
    return memory;
}

static void wait_for_all(struct cuda *c) {
    for (int s = 0; s < DEVICE_STREAMS; s++) c->driver.cuStreamSynchronize(c->stream[s]);
}

static void release(struct device *device, void *memory, uint64_t bytes, enum device_memory kind) {
    struct cuda *c = (struct cuda *)device;
    enter(c, NULL);
    wait_for_all(c);
    if (kind == DEVICE_PINNED) {
        pinned_release(&c->pinned, &c->driver, device, memory, bytes);
        return;
    }
    for (struct extent *e = c->extent; e < c->extent + EXTENTS_MAX; e++)
        if (e->page == memory) {
            c->driver.cuMemFree(e->whole);
            *e = (struct extent){0};
        }
    device->allocated[kind] -= page_bytes(bytes);
}

static void *reserve(struct device *device, uint64_t space, uint64_t bytes) {
    struct cuda *c = (struct cuda *)device;
    void *memory = enter(c, NULL) ? NULL : space_reserve(&c->space, &c->driver, c->device, space, bytes);
    if (memory) device->allocated[DEVICE_MEMORY] += page_bytes(bytes);
    return memory;
}

static void unreserve(struct device *device, void *memory, uint64_t space, uint64_t bytes) {
    struct cuda *c = (struct cuda *)device;
    enter(c, NULL);
    wait_for_all(c);
    space_unreserve(&c->space, &c->driver);
    device->allocated[DEVICE_MEMORY] -= page_bytes(bytes);
}

static zero_status fill(struct device *device, void *part, uint64_t bytes, struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, error)) return error_pass(error, &c->error);
    cuda_check(&c->driver, space_fill(&c->space, &c->driver, part, bytes), &c->error,
               "device cuda: mapping memory to %" PRIu64 " bytes of address space", bytes);
    return told(c, error);
}

static void empty(struct device *device, void *part, uint64_t bytes) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, NULL)) return;
    cuda_check(&c->driver, space_empty(&c->space, &c->driver, part, bytes), &c->error,
               "device cuda: taking memory from %" PRIu64 " bytes of address space", bytes);
}

static zero_status memory(struct device *device, uint64_t *out_available, uint64_t *out_total,
                          struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    size_t available = 0, total = 0;
    if (enter(c, error)) return error_pass(error, &c->error);
    zero_status status = cuda_check(&c->driver, c->driver.cuMemGetInfo(&available, &total), error,
                                    "device cuda: asking for the free memory of GPU %" PRId64, device->index);
    *out_available = available;
    *out_total = total;
    return status;
}

/* ---- tickets ---- */

static CUevent event_of(const struct cuda *c, uint64_t ticket) {
    return c->event[ticket % TICKET_STREAMS][ticket / TICKET_STREAMS % EVENTS];
}

/* Records an event behind the work on the stream. The event served an earlier ticket of this stream. If that one is not
 * done, this function waits for it. On a stream that waits for peers it is done, because callers ask device_has_room. */
static zero_status ticket(struct cuda *c, enum device_stream stream, uint64_t *out_ticket,
                          struct zero_error *error) {
    uint64_t number = c->base.newest[stream] / TICKET_STREAMS + 1;
    *out_ticket = c->base.newest[stream] = number * TICKET_STREAMS + stream;
    if (number > EVENTS)
        cuda_check(&c->driver, c->driver.cuEventSynchronize(event_of(c, *out_ticket)), &c->error,
                   "device cuda: waiting for work");
    if (!c->error.code)
        cuda_check(&c->driver, c->driver.cuEventRecord(event_of(c, *out_ticket), c->stream[stream]),
                   &c->error, "device cuda: recording an event");
    return told(c, error);
}

/* The ticket's event serves a newer ticket: it is done. */
static bool is_past(const struct cuda *c, uint64_t ticket) {
    return ticket == 0 || (c->base.newest[ticket % TICKET_STREAMS] - ticket) / TICKET_STREAMS >= EVENTS;
}

static zero_status wait(struct device *device, enum device_stream stream, uint64_t ticket,
                        struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, error)) return error_pass(error, &c->error);
    if (!is_past(c, ticket))
        cuda_check(&c->driver, c->driver.cuStreamWaitEvent(c->stream[stream], event_of(c, ticket), 0),
                   &c->error, "device cuda: letting a stream wait for an event");
    return told(c, error);
}

static zero_status test(struct device *device, uint64_t ticket, bool *out_done, struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    *out_done = false;
    if (enter(c, error)) return error_pass(error, &c->error);
    bool known = is_past(c, ticket);
    CUresult result = known ? CUDA_SUCCESS : c->driver.cuEventQuery(event_of(c, ticket));
    *out_done = result == CUDA_SUCCESS;
    if (result != CUDA_ERROR_NOT_READY)
        cuda_check(&c->driver, result, &c->error, "device cuda: work on GPU %" PRId64, c->base.index);
    return told(c, error);
}

/* ---- kernels ---- */

static zero_status load(struct cuda *c, const struct kernel *kernel, CUmodule *out_module) {
    for (uint32_t i = 0; i < c->files; i++)
        if (c->file[i].fatbin == kernel->fatbin) return *out_module = c->file[i].module, ZERO_OK;
    if (!kernel->fatbin || c->files == FILES_MAX)
        return error_set(&c->error, ZERO_E_INTERNAL, "device cuda: kernel %s is in no file of this build",
                         kernel->name);
    zero_status status = cuda_check(&c->driver, c->driver.cuModuleLoadData(out_module, kernel->fatbin),
                                    &c->error, "device cuda: loading the file of kernel %s", kernel->name);
    if (!status) c->file[c->files++] = (struct file){kernel->fatbin, *out_module};
    return status;
}

static zero_status find(struct cuda *c, const struct kernel *kernel, CUfunction *out_function) {
    CUmodule module;
    for (uint32_t i = 0; i < c->functions; i++)
        if (c->function[i].kernel == kernel) return *out_function = c->function[i].function, ZERO_OK;
    if (c->functions == KERNELS_MAX)
        return error_set(&c->error, ZERO_E_INTERNAL, "device cuda: more than %d kernels", (int)KERNELS_MAX);
    zero_status status = load(c, kernel, &module);
    if (!status)
        status = cuda_check(&c->driver, c->driver.cuModuleGetFunction(out_function, module, kernel->name),
                            &c->error, "device cuda: finding kernel %s", kernel->name);
    if (!status)
        status = cuda_check(&c->driver, c->driver.cuFuncLoad(*out_function), &c->error,
                            "device cuda: loading kernel %s", kernel->name);
    if (!status) c->function[c->functions++] = (struct function){kernel, *out_function};
    return status;
}

static zero_status prepare(struct device *device, const struct kernel *kernel, struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    CUfunction function;
    if (enter(c, error)) return error_pass(error, &c->error);
    find(c, kernel, &function);
    return told(c, error);
}

static zero_status launch(struct cuda *c, const struct device_work *work) {
    _Alignas(16) uint8_t argument[DEVICE_ARGUMENT_BYTES];
    struct kernel_grid grid = work->kernel->grid(work->argument);
    CUfunction function;
    if (!grid.blocks) return ZERO_OK;
    TRY(find(c, work->kernel, &function));
    memcpy(argument, work->argument, sizeof argument);
    return cuda_check(
        &c->driver,
        c->driver.cuLaunchKernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
                                 c->stream[work->stream], (void *[]){argument}, NULL),
        &c->error, "device cuda: launching kernel %s in %" PRIu32 " blocks", work->kernel->name, grid.blocks);
}

static zero_status submit(struct device *device, const struct device_work *work, uint64_t *out_ticket,
                          struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    struct device_work copy = *work;
    if (enter(c, error)) return error_pass(error, &c->error);
    *out_ticket = 0;
    if (!work->kernel->grid) return work->kernel->run(copy.argument), ZERO_OK;
    return launch(c, work) ? told(c, error) : ticket(c, (enum device_stream)work->stream, out_ticket, error);
}

/* ---- copies ---- */

static zero_status copy(struct device *device, enum device_stream stream, void *target, const void *source,
                        uint64_t bytes, uint64_t *out_ticket, struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, error)) return error_pass(error, &c->error);
    if (bytes)
        cuda_check(&c->driver,
                   c->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)target, (CUdeviceptr)(uintptr_t)source,
                                           bytes, c->stream[stream]),
                   &c->error, "device cuda: copy of %" PRIu64 " bytes", bytes);
    return c->error.code ? told(c, error) : ticket(c, stream, out_ticket, error);
}

static zero_status clear(struct device *device, enum device_stream stream, void *memory, uint64_t bytes,
                         uint64_t *out_ticket, struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    if (enter(c, error)) return error_pass(error, &c->error);
    if (bytes)
        cuda_check(&c->driver,
                   c->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, bytes, c->stream[stream]),
                   &c->error, "device cuda: clearing %" PRIu64 " bytes", bytes);
    return c->error.code ? told(c, error) : ticket(c, stream, out_ticket, error);
}

static zero_status record(struct device *device, enum device_stream stream, uint64_t *out_ticket,
                          struct zero_error *error) {
    struct cuda *c = (struct cuda *)device;
    return enter(c, error) ? error_pass(error, &c->error) : ticket(c, stream, out_ticket, error);
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .open = open_cuda,
    .close = close_cuda,
    .allocate = allocate,
    .release = release,
    .reserve = reserve,
    .unreserve = unreserve,
    .fill = fill,
    .empty = empty,
    .memory = memory,
    .prepare = prepare,
    .submit = submit,
    .copy = copy,
    .clear = clear,
    .record = record,
    .wait = wait,
    .test = test,
};
