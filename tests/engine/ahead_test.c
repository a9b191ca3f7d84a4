/* ahead_test sim|cuda|nccl|drive: a host that runs ahead of its device by a whole pass. While the device stands still, all calls of the pass
 * return; then it works, late and out of order, and the weights have the bits of the CPU's run.
 *
 *   sim   one rank; no work of the device is done during the pass, the gathers' and reductions' included; also with parameters, gradients
 *         and state in host memory
 *   cuda  one rank, on the stand-in; the host's stream stands still: its own, the engine's, or the legacy default stream
 *   nccl  two ranks with a GPU each, on the stand-in; both hosts' streams stand still; then with passes that are cancelled:
 *         the ranks meet over TCP, as an agreement of threads would wait for the streams
 *   drive the same two ranks, with all on a drive; the stream of the gathers stands still: those of a unit's pieces follow each other */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "kernels/device_work.h"
#include "tests/check.h"
#include "tests/device/discrete.h"
#include "tests/engine/tcp_ranks.h"
#include "tests/engine/toy_model.h"

enum { UNITS = 5, STEPS = 3, RANKS_MAX_HERE = 2, HANGS_AFTER_S = 240 };

/* A reduction between ranks takes several rounds of unit 1. */
enum { PIECE_BYTES_HERE = 32 << 10 };
static const uint64_t small[UNITS] = {3000, 40000, 700, 5000, 4100},
                      large[UNITS] = {3 << 18, 3 << 18, 1 << 20, 5 << 17, 100}; /* up to 4 MiB */

struct run {
    uint32_t stage, ranks, port;
    bool narrow;      /* bf16 */
    const char *away; /* where all rests, keys of zero_optimization after a comma; NULL: on the device */
    bool cancels;     /* before each pass one that is cancelled; the pass after it leaves unit 0 out */
    uint32_t bound;   /* free order: the host waits until the device is done with memory */
    bool pages;       /* large units, of which the device maps those in use: at stage 3 */
    const uint64_t *counts;
    uint32_t steps;
    void (*open)(struct run *, uint32_t rank, zero_runtime *);
    void (*stop)(zero_engine *, bool still); /* NULL: nothing stands still */
    zero_local *local;
    char hash[33];
    double norm[STEPS];
};

struct rank {
    struct run *run;
    uint32_t rank;
    pthread_t thread;
    zero_engine *engine;
    zero_unit *unit[UNITS];
    zero_slot slot[UNITS];
};

/* ---- a program whose kernels are on its stream ---- */

/* The gradient of unit u is its parameter times a factor. */
static void enqueue_backward(struct rank *r, uint32_t u, uint32_t step) {
    struct running *run = engine_running(r->engine);
    enum dtype dtype = r->run->narrow ? DTYPE_BF16 : DTYPE_F32;
    struct cast_scaled_argument a = {.target = r->slot[u].grad,
                                     .source = r->slot[u].param,
                                     .count = r->run->counts[u],
                                     .factor = 0.5f + (float)(u + step + r->rank) / 8,
                                     .target_dtype = dtype,
                                     .source_dtype = dtype};
    if (!run->discrete) {
        kernel_cast_scaled.run(&a);
        return;
    }
    uint64_t ticket, bytes = r->run->counts[u] * dtype_bytes(dtype);
    struct zero_error error;
    struct device_work work = {.kernel = &kernel_cast_scaled,
                               .stream = DEVICE_COMPUTE,
                               .reads = 1,
                               .writes = 1,
                               .read = {{(void *)(uintptr_t)r->slot[u].param, bytes}},
                               .write = {{r->slot[u].grad, bytes}}};
    memcpy(work.argument, &a, sizeof a);
    error_clear(&error);
    fair_lock_take(&run->ranks->lock);
    CHECK_INT(run->device->ops->submit(run->device, &work, &ticket, &error), ZERO_OK);
    fair_lock_give(&run->ranks->lock);
}

static void must(zero_status status, const char *what) {
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s: %s\n", what, zero_last_error());
}

/* Of the units from `first` on. */
static void one_pass(struct rank *r, uint32_t first, uint32_t step) {
    must(zero_micro_begin(r->engine, ZERO_TRAIN), "zero_micro_begin");
    for (uint32_t u = first; u < UNITS; u++) {
        must(zero_forward_begin(r->unit[u]), "zero_forward_begin");
        must(zero_forward_end(r->unit[u]), "zero_forward_end");
    }
    for (uint32_t u = UNITS; u-- > first;) {
        must(zero_backward_begin(r->unit[u]), "zero_backward_begin");
        CHECK_INT(r->slot[u].add != 0, r->run->bound > 0);
        enqueue_backward(r, u, step);
        must(zero_backward_end(r->unit[u]), "zero_backward_end");
    }
}

static void declare(struct rank *r) {
    static const char *const names[UNITS] = {"a", "b", "c", "d", "e"};
    CHECK_INT(zero_engine_dtype(r->engine), r->run->narrow ? ZERO_BF16 : ZERO_F32);
    for (uint32_t u = 0; u < UNITS; u++) {
        zero_param param = {.struct_size = sizeof param,
                            .name = names[u],
                            .dims = 1,
                            .shape = {r->run->counts[u]},
                            .slot = &r->slot[u]};
        must(zero_engine_add_unit(r->engine, names[u], &r->unit[u]), "zero_engine_add_unit");
        must(zero_unit_add_param(r->unit[u], &param), "zero_unit_add_param");
    }
}

static void train(struct rank *r) {
    struct run *run = r->run;
    zero_step_info info = {.struct_size = sizeof info};
    char hash[33];
    declare(r);
    if (run->bound)
        must(zero_engine_free_order_within(r->engine, run->bound), "zero_engine_free_order_within");
    must(zero_engine_commit(r->engine, NULL), "zero_engine_commit");
    const struct plan *plan = &engine_blueprint(r->engine)->plan;
    if (run->pages && run->open) CHECK(plan->row_bytes[MEMORY_GATHERED] < plan->space_bytes);
    must(zero_engine_fill(r->engine, toy_fill, NULL), "zero_engine_fill");
    for (uint32_t step = 0; step < run->steps; step++) {
        must(zero_engine_flush(r->engine), "zero_engine_flush");
        if (run->stop) run->stop(r->engine, true);
        if (run->cancels) {
            one_pass(r, 0, step);
            must(zero_micro_cancel(r->engine), "zero_micro_cancel");
        }
        one_pass(r, run->cancels, step);
        if (run->stop) run->stop(r->engine, false);
        must(zero_engine_step(r->engine, &info), "zero_engine_step");
        if (r->rank == 0) run->norm[step] = info.grad_norm;
    }
    must(zero_engine_hash(r->engine, hash), "zero_engine_hash");
    if (r->rank == 0) strcpy(run->hash, hash);
}

#define AWAY ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}"
#define DRIVE "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define STORED ", \"offload_optimizer\": " DRIVE ", \"offload_param\": " DRIVE

static void *run_rank(void *argument) {
    struct rank *r = argument;
    const struct run *run = r->run;
    char json[1000];
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = run->local, .local_rank = r->rank};
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"gradient_clipping\": 1.0, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": "
             "{\"stage\": %u, \"stage3_param_persistence_threshold\": 0%s}, \"bf16\": {\"enabled\": %s}}",
             run->stage, run->away ? run->away : "", run->narrow ? "true" : "false");
    if (run->open && run->cancels) {
        runtime = tcp_runtime(r->rank, run->ranks, run->port);
        runtime.local_rank = r->rank;
    }
    if (run->open) run->open(r->run, r->rank, &runtime);
    r->engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(r->engine)) fprintf(stderr, "%s\n", zero_last_error());
    if (r->engine) engine_terms(r->engine)->piece_bytes = PIECE_BYTES_HERE, train(r);
    zero_engine_destroy(r->engine);
    return NULL;
}

static void start(struct run *run) {
    static struct rank ranks[RANKS_MAX_HERE];
    run->local = zero_local_create(run->ranks);
    run->port = tcp_free_port();
    memset(ranks, 0, sizeof ranks);
    for (uint32_t i = 0; i < run->ranks; i++) {
        ranks[i].run = run, ranks[i].rank = i;
        CHECK_INT(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < run->ranks; i++) pthread_join(ranks[i].thread, NULL);
    zero_local_destroy(run->local);
}

/* ---- a simulated device that stands still ---- */

static uint64_t now_ns = 1; /* 0: no work is done; guarded by the engine's lock */

static uint64_t done_at(void *user, const struct device_work *work) { return 1; }

static void open_sim(struct run *run, uint32_t rank, zero_runtime *runtime) {
    static const struct device_pace pace = {NULL, &now_ns, done_at};
    struct device_options options = {.seed = 1,
                                     .index = -1,
                                     .pace = run->stop ? &pace : NULL,
                                     .probability = 0.1,
                                     .guard = &discrete_guard};
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_SIM]->open(&options, &device, &error), ZERO_OK);
    runtime->device = device;
}

/* The device of rank 0 has no pages, so that of no rank uses them. */
static void open_uneven(struct run *run, uint32_t rank, zero_runtime *runtime) {
    open_sim(run, rank, runtime);
    struct device *device = runtime->device;
    if (!rank) device->page_bytes = 0;
}

static void stop_sim(zero_engine *engine, bool still) {
    struct running *run = engine_running(engine);
    fair_lock_take(&run->ranks->lock);
    now_ns = !still;
    fair_lock_give(&run->ranks->lock);
}

/* ---- a stream of the stand-in that stands still ---- */

static atomic_uint stopped; /* ranks that are in their pass */

static bool may_go(void *argument) { return atomic_load(&stopped) == 0; }
static void go(void *argument) {}

/* The stream stands still until `may` is true. */
static void enqueue(void *stream, bool (*may)(void *), const void *argument, size_t bytes) {
    int (*put)(void *, bool (*)(void *), void (*)(void *), const void *, size_t);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&put = dlsym(driver, "fake_cuda_enqueue");
    CHECK_INT(put(stream, may, go, argument, bytes), 0);
    dlclose(driver);
}

static void stop_stream(zero_engine *engine, bool still) {
    void *stream = NULL;
    if (!still) {
        atomic_fetch_sub(&stopped, 1);
        return;
    }
    CHECK_INT(zero_engine_cuda(engine, &stream), (int)(zero_engine_rank(engine)));
    atomic_fetch_add(&stopped, 1);
    enqueue(stream, may_go, NULL, 0);
}

/* ---- the stream of the gathers, which stands still until several of them are on it ---- */

/* In fp32 the ring from the drive has two slots: the one piece of unit 0, and the first of unit 1, in two rounds. In bf16 it has four, for
 * all pieces of both, in a round each. If each round, or each piece, waited for the one before, there would be 2 gathers. */
enum { QUEUED_FP32 = 3, QUEUED_BF16 = 4, QUEUED_S = 20 };

struct queue {
    uint64_t until_ns;
    uint32_t wanted;
    unsigned long long (*most)(void);
};

/* Once the engine has loaded NCCL. */
static struct queue gathers_queue(bool narrow) {
    struct queue queue = {clock_now_ns() + QUEUED_S * 1000000000ull, narrow ? QUEUED_BF16 : QUEUED_FP32,
                          NULL};
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NODELETE);
    *(void **)&queue.most = dlsym(library, "fake_nccl_gathers_queued");
    return queue;
}

static bool are_queued(void *argument) {
    const struct queue *queue = argument;
    return queue->most() >= queue->wanted || clock_now_ns() > queue->until_ns;
}

static void stop_gathers(zero_engine *engine, bool still) {
    struct queue queue = gathers_queue(zero_engine_dtype(engine) == ZERO_BF16);
    void *stream = engine_running(engine)->device->stream[DEVICE_GATHER];
    if (still) enqueue(stream, are_queued, &queue, sizeof queue);
}

static void open_cuda(struct run *run, uint32_t rank, zero_runtime *runtime) { runtime->cuda = 1; }

static void open_default(struct run *run, uint32_t rank, zero_runtime *runtime) {
    runtime->cuda = runtime->cuda_default_stream = 1;
}

/* ---- */

static void compare_at(uint32_t stage, struct run device) {
    device.stage = stage;
    struct run host = device;
    host.counts = device.counts = device.pages ? large : small;
    host.steps = device.steps = device.pages ? 1 : STEPS;
    host.open = NULL, host.stop = NULL;
    start(&host);
    start(&device);
    int same = CHECK_STRING(device.hash, host.hash);
    for (int s = 0; s < (int)device.steps; s++) same &= CHECK_DOUBLE(device.norm[s], host.norm[s], 0);
    if (!same) fprintf(stderr, "at stage %u, bf16 %d\n", stage, device.narrow);
}

static void compare(struct run device) {
    for (uint32_t stage = device.pages ? 3 : 0; stage <= 3; stage++)
        for (int narrow = 0; narrow < 2 - device.pages; narrow++) {
            device.narrow = narrow;
            compare_at(stage, device);
        }
}

/* The per-thread default stream is another one in the engine's own thread. */
static void refused(void) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .cuda = 1, .cuda_stream = (void *)2};
    zero_engine *engine = NULL;
    static const char json[] = "{\"train_batch_size\": 1, \"device\": {\"type\": \"cuda\"}}";
    CHECK_INT(zero_engine_open(json, &runtime, &engine), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "per-thread default stream");
    runtime.cuda_stream = (void *)1, runtime.cuda_default_stream = 1;
    CHECK_INT(zero_engine_open(json, &runtime, &engine), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "cuda_default_stream");
}

/* The program's stream is of GPU 0. */
static void other_gpu(void) {
    static const char *const json[] = {
        "{\"train_batch_size\": 1, \"device\": {\"type\": \"cuda\", \"index\": 0}}",
        "{\"train_batch_size\": 1, \"device\": {\"type\": \"cuda\", \"index\": 1}}"};
    zero_runtime runtime = {.struct_size = sizeof runtime, .cuda = 1};
    zero_engine *engine = NULL;
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    runtime.cuda_stream = device->stream[DEVICE_COMPUTE];
    CHECK_INT(zero_engine_open(json[1], &runtime, &engine), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "cuda_stream is a stream of GPU 0, and the engine takes GPU 1: ");
    must(zero_engine_open(json[0], &runtime, &engine), "zero_engine_open");
    zero_engine_destroy(engine);
    device->ops->close(device);
}

int main(int argc, char **argv) {
    const char *on = argc > 1 ? argv[1] : "";
    alarm(HANGS_AFTER_S); /* a call that waits for the device never returns */
    for (int away = 0; away < 2 && !strcmp(on, "sim"); away++) {
        compare((struct run){.ranks = 1, .away = away ? AWAY : NULL, .open = open_sim, .stop = stop_sim});
        compare((struct run){.ranks = 1, .away = away ? AWAY : NULL, .open = open_sim, .bound = 1});
    }
    if (!strcmp(on, "sim")) compare((struct run){.ranks = 2, .open = open_uneven, .bound = 1});
    if (!strcmp(on, "cuda")) {
        compare((struct run){.ranks = 1, .open = open_cuda, .stop = stop_stream});
        compare((struct run){.ranks = 1, .open = open_default, .stop = stop_stream, .away = AWAY});
        for (uint32_t bound = 1; bound <= 2; bound++)
            compare((struct run){.ranks = 1, .open = open_cuda, .bound = bound, .pages = true});
        refused();
    }
    if (!strcmp(on, "drive")) {
        setenv("FAKE_CUDA_DEVICES", "2", 1);
        for (int narrow = 0; narrow < 2; narrow++) {
            struct run run = {.ranks = 2, .away = STORED, .open = open_cuda, .stop = stop_gathers};
            run.narrow = narrow;
            compare_at(3, run);
            struct queue queue = gathers_queue(narrow);
            if (!CHECK(queue.most() >= queue.wanted))
                fprintf(stderr, "%llu gathers, bf16 %d\n", queue.most(), narrow);
        }
    }
    if (!strcmp(on, "nccl")) {
        setenv("FAKE_CUDA_DEVICES", "2", 1);
        other_gpu();
        compare((struct run){.ranks = 2, .open = open_cuda, .stop = stop_stream});
        compare((struct run){.ranks = 2, .open = open_cuda, .bound = 1, .pages = true, .away = AWAY});
        compare_at(3, (struct run){.ranks = 2, .away = STORED, .open = open_cuda, .narrow = true});
        compare(
            (struct run){.ranks = 2, .open = open_cuda, .stop = stop_stream, .cancels = true, .away = AWAY});
    }
    return check_end();
}
