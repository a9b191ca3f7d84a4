/* The step loop allocates nothing: malloc and its kin, mmap and munmap are wrapped by the linker (--wrap,
 * over all that is linked statically, which the engine is) and counted while a flag is up, on every thread.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

static atomic_int counting, calls;
static _Atomic(const char *) first_call;

static void count(const char *what) {
    if (!atomic_load(&counting)) return;
    if (atomic_fetch_add(&calls, 1) == 0) atomic_store(&first_call, what);
}

#define WRAP(result, name, parameters, arguments)                                                            \
    result __real_##name parameters;                                                                         \
    result __wrap_##name parameters;                                                                         \
    result __wrap_##name parameters {                                                                        \
        count(#name);                                                                                        \
        return __real_##name arguments;                                                                      \
    }

WRAP(void *, malloc, (size_t bytes), (bytes))
WRAP(void *, calloc, (size_t items, size_t bytes), (items, bytes))
WRAP(void *, realloc, (void *memory, size_t bytes), (memory, bytes))
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
WRAP(int, posix_memalign, (void **memory, size_t align, size_t bytes), (memory, align, bytes))
WRAP(void, free, (void *memory), (memory))
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))
WRAP(int, munmap, (void *memory, size_t bytes), (memory, bytes))

static const struct plain_param params[] = {
    {"a", "a.w", 5000, 0, NULL},          {"a", "a.b", 5, ZERO_NO_DECAY, NULL}, {"b", "b.w", 7000, 0, NULL},
    {"c", "c.w", 300, ZERO_FROZEN, NULL}, {"d", "d.w", 5000, 0, "a.w"},         {"d", "d.v", 50, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

struct run {
    int plant; /* allocate where nothing should */
    bool drive;
    atomic_int arrived;
};

/* A barrier without memory: the flag goes up and down while every rank is outside its steps. */
static void meet(struct run *run, int times) {
    atomic_fetch_add(&run->arrived, 1);
    while (atomic_load(&run->arrived) < 2 * times) {
    }
}

/* Goes to the drive and comes back. */
static zero_status move(zero_scratch *scratch) {
    static _Thread_local _Alignas(4096) unsigned char memory[4096];
    zero_status status = ZERO_OK;
    for (uint64_t place = 0; place < 3 && scratch && !status; place++) {
        status = zero_scratch_store(scratch, place, memory);
        if (!status) status = zero_scratch_fetch(scratch, place, memory);
        if (!status) status = zero_scratch_wait(scratch, place);
    }
    return status;
}

static zero_status one_step(struct plain *p, struct run *run, zero_scratch *scratch) {
    double loss = 1;
    zero_status status = move(scratch);
    if (!status) status = plain_pass(p, ZERO_TRAIN, 0);
    if (!status) status = plain_pass(p, ZERO_EVAL, 0);
    if (!status) status = plain_pass(p, ZERO_TRAIN, 1);
    if (!status) status = zero_engine_step(p->engine, NULL);
    if (!status) status = plain_pass(p, ZERO_EVAL, 0);
    if (!status) status = zero_engine_ema_begin(p->engine);
    if (!status) status = plain_pass(p, ZERO_EVAL, 0);
    if (!status) status = zero_engine_ema_end(p->engine);
    if (!status) status = zero_engine_sum(p->engine, &loss, 1);
    if (!status) status = zero_engine_set_lr(p->engine, 0, 0.01);
    zero_counters counters = {.struct_size = sizeof counters};
    if (!status) status = zero_engine_counters(p->engine, &counters);
    if (run->plant) {
        void *volatile memory = malloc(1);
        free(memory);
    }
    return status;
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    zero_scratch *scratch = NULL;
    const zero_scratch_needs needs = {
        .struct_size = sizeof needs, .name = "scratch", .place_bytes = 4096, .places = 3};
    zero_status status = engine ? ZERO_OK : ZERO_E_CONFIG;
    if (!status && run->drive) status = zero_engine_add_scratch(engine, &needs, &scratch);
    if (!status) status = plain_open(&p, engine, params, PARAMS, NULL);
    if (!status) status = one_step(&p, run, scratch);
    meet(run, 1);
    if (rank == 0) atomic_store(&counting, 1);
    meet(run, 2);
    for (int step = 2; step <= 5 && !status; step++) status = one_step(&p, run, scratch);
    meet(run, 3);
    if (rank == 0) atomic_store(&counting, 0);
    meet(run, 4);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

enum drive { NO_DRIVE, URING, NO_URING };
static const char *const drive_names[] = {"no drive", "nvme", "nvme, no io_uring"};

/* State on the drive, and at stage 3 parameters, in chunks that are smaller than a shard. */
static void configure(uint32_t stage, uint32_t depth, enum drive drive, char *json, size_t capacity) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    static const char *const types[] = {"", ", \"bf16\": {\"enabled\": true}",
                                        ", \"fp16\": {\"enabled\": true}"};
    char offload[2][1200] = {"", ""};
    for (int k = 0; k < 2; k++)
        if (drive && (k == 0 || stage == 3))
            snprintf(
                offload[k], sizeof offload[k],
                ", \"offload_%s\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\", \"buffer_count\": 2}",
                k ? "param" : "optimizer", directory);
    snprintf(json, capacity,
             "{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 2, \"threads\": 1, "
             "\"gradient_clipping\": 0.05, \"ema\": {\"decay\": 0.9}, \"optimizer\": {\"type\": \"AdamW\", "
             "\"params\": {\"lr\": 0.02}}, "
             "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": 10, "
             "\"sub_group_size\": 1024%s%s}, \"comm\": {\"prefetch_depth\": %u, \"timeout_s\": 20}, "
             "\"nvme\": {\"io_uring\": \"%s\"}%s}",
             stage, offload[0], offload[1], depth, drive == NO_URING ? "never" : "auto", types[stage % 3]);
}

static void run(uint32_t stage, uint32_t depth, enum drive drive, int plant) {
    char json[4096];
    struct run run = {.plant = plant, .drive = drive != NO_DRIVE};
    configure(stage, depth, drive, json, sizeof json);
    atomic_store(&calls, 0);
    ranks_run(2, json, train, &run);
    if (!plant && !CHECK_INT(atomic_load(&calls), 0))
        fprintf(stderr, "in stage %u, depth %u, %s; the first was %s\n", stage, depth, drive_names[drive],
                atomic_load(&first_call));
    /* The test can fail: a planted pair is seen, in each of 4 steps of 2 ranks. */
    if (plant) CHECK_INT(atomic_load(&calls), 2 * 4 * 2);
}

int main(void) {
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (uint32_t depth = 0; depth <= 2; depth += 2)
            for (enum drive drive = NO_DRIVE; drive <= NO_URING; drive++)
                for (int plant = 0; plant < 2; plant++) run(stage, depth, drive, plant);
    return check_end();
}
