/* The out-of-core step through zero.h, with made-up gradients: how fast state moves, and what stays in memory.
 *
 *   offload_bench [--params N] [--units U] [--steps S] [--tier device|cpu|nvme] [--path DIR] [--more JSON]
 *
 * One rank, stage 1, AdamW with clipping, fp32 or (--more) bf16; a step is timed from zero_engine_step to the end of flush, so that
 * nothing hides under a forward. One line per step after the first: seconds, bytes per second that the drive
 * read and wrote, parameters per second. The last line has medians, and the most memory that was resident
 * beside what the plan names. --more: members of the configuration, each with a comma before it. --bound yes: also the
 * fraction of the step's time that the memory alone would take for its bytes, measured after each step. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/zero.h"
#include "tests/bench/stream.h"

enum {
    UNITS_MAX = 256,
    STEPS_MAX = 64,
    STAGGER_BYTES = 832 * 64 /* no two arrays start alike modulo 4,096 */
};

struct bench {
    uint64_t params;
    uint32_t units, steps;
    const char *tier, *path, *more;
    bool bound;
    zero_engine *engine;
    zero_unit *unit[UNITS_MAX];
    zero_slot slot[UNITS_MAX];
    zero_plan plan;
};

static int fail(const char *what) {
    fprintf(stderr, "offload_bench: %s: %s\n", what, zero_last_error());
    return 1;
}

static void say(void *user, zero_log_level level, const char *line) { fprintf(stderr, "# %s\n", line); }

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 0.02f * (float)((first + i) % 101) - 1;
}

static uint64_t unit_params(const struct bench *b) { return b->params / b->units; }

static zero_status open_engine(struct bench *b) {
    char json[2048];
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = say};
    snprintf(
        json, sizeof json,
        "{\"train_batch_size\": 1, \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\"}, "
        "\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": "
        "\"%s\"}}%s}",
        b->tier, b->path, b->more);
    b->engine = zero_engine_init_with(json, &runtime);
    if (!b->engine) return ZERO_E_CONFIG;
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u < b->units && !status; u++) {
        char name[32];
        snprintf(name, sizeof name, "u%u", u);
        zero_param param = {.struct_size = sizeof param,
                            .name = name,
                            .dims = 1,
                            .shape = {unit_params(b)},
                            .slot = &b->slot[u]};
        status = zero_engine_add_unit(b->engine, name, &b->unit[u]);
        if (!status) status = zero_unit_add_param(b->unit[u], &param);
    }
    b->plan.struct_size = sizeof b->plan;
    if (!status) status = zero_engine_commit(b->engine, &b->plan);
    return status ? status : zero_engine_fill(b->engine, fill, NULL);
}

/* Near 1e-3, 2e-3 or 4e-3, in fp32 or bf16. */
static void fill_gradient(const struct bench *b, void *grad, uint32_t step) {
    float *wide = grad;
    uint16_t *narrow = grad, bf16 = (uint16_t)(0x3a83 + 0x80 * (step % 3));
    bool fp32 = zero_engine_dtype(b->engine) == ZERO_F32;
    for (uint64_t i = 0; i < unit_params(b); i++) {
        if (fp32)
            wide[i] = 1e-3f * (float)(1 << step % 3);
        else
            narrow[i] = bf16;
    }
}

static zero_status pass(struct bench *b, uint32_t step) {
    zero_status status = zero_micro_begin(b->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < b->units && !status; u++) {
        status = zero_forward_begin(b->unit[u]);
        if (!status) status = zero_forward_end(b->unit[u]);
    }
    for (uint32_t u = b->units; u-- > 0 && !status;) {
        status = zero_backward_begin(b->unit[u]);
        if (!status) fill_gradient(b, b->slot[u].grad, step);
        if (!status) status = zero_backward_end(b->unit[u]);
    }
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static uint64_t resident_bytes(void) {
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %" SCNu64, &kib) == 1) break;
    if (file) fclose(file);
    return kib * 1024;
}

/* Arrays as large as the step's, in memory of their own. All of it is written: pages that only were read would all be one
 * page of zeros, in the cache. */
static bool open_bound(const struct bench *b, struct stream_args *out) {
    uint64_t count = unit_params(b) * b->units, wide = count * sizeof(float) + STAGGER_BYTES,
             narrow = count * sizeof(uint16_t) + STAGGER_BYTES, bytes = 3 * wide + 2 * narrow;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    madvise(memory, bytes, MADV_HUGEPAGE);
    *out = (struct stream_args){.count = count,
                                .array_count = 3,
                                .source_bytes = 2,
                                .keep = 1,
                                .threads = zero_engine_threads(b->engine)};
    for (int k = 0; k < 3; k++) out->array[k] = (float *)(void *)(memory + (uint64_t)k * wide);
    uint16_t *source = (uint16_t *)(void *)(memory + 3 * wide);
    out->source = source;
    out->target = (uint16_t *)(void *)(memory + 3 * wide + narrow);
    for (uint64_t i = 0; i < count; i++) {
        for (int k = 0; k < 3; k++) out->array[k][i] = 0.02f * (float)(i % 101) - 1;
        source[i] = out->target[i] = (uint16_t)(i % 127);
    }
    return true;
}

/* The seconds in which the memory moves what a step with fp32 state must, bf16 in and out: a plain loop over arrays of the
 * same size, right after the step. */
static double bound_seconds(const struct bench *b) {
    static struct stream_args args;
    if (!args.count && !open_bound(b, &args)) return 0;
    uint64_t began = clock_now_ns();
    stream_run(&args);
    return (double)(clock_now_ns() - began) * 1e-9;
}

static int run(struct bench *b) {
    double seconds[STEPS_MAX], rates[STEPS_MAX], fractions[STEPS_MAX];
    uint64_t all = unit_params(b) * b->units;
    for (uint32_t s = 0; s <= b->steps; s++) {
        zero_counters before = {.struct_size = sizeof before}, after = before;
        if (pass(b, s)) return fail("pass");
        zero_engine_counters(b->engine, &before);
        uint64_t began = clock_now_ns();
        if (zero_engine_step(b->engine, NULL) || zero_engine_flush(b->engine)) return fail("step");
        double took = (double)(clock_now_ns() - began) * 1e-9;
        zero_engine_counters(b->engine, &after);
        double read = (double)(after.drive_read_bytes - before.drive_read_bytes),
               written = (double)(after.drive_write_bytes - before.drive_write_bytes);
        if (s == 0) continue; /* its state is zero, and is not read */
        seconds[s - 1] = took;
        rates[s - 1] = (read + written) / took;
        fractions[s - 1] = b->bound ? bound_seconds(b) / took : 0;
        printf("step %u: %.3f s, read %.3f GB, wrote %.3f GB, %.3f GB/s, %.4f Gparam/s, update %.3f s\n", s,
               took, read * 1e-9, written * 1e-9, rates[s - 1] * 1e-9, (double)all / took * 1e-9,
               after.update_s - before.update_s);
    }
    uint64_t planned = b->plan.bytes[ZERO_DEVICE] + b->plan.bytes[ZERO_CPU];
    double step = median(seconds, b->steps);
    if (b->bound) printf("bound: %.3f\n", median(fractions, b->steps));
    printf(
        "%s: %.3f s, %.3f GB/s, %.4f Gparam/s; memory planned %.1f MiB, resident %.1f MiB, drive %.1f MiB\n",
        b->tier, step, median(rates, b->steps) * 1e-9, (double)all / step * 1e-9, (double)planned / 1048576,
        (double)resident_bytes() / 1048576, (double)b->plan.bytes[ZERO_NVME] / 1048576);
    return 0;
}

int main(int argc, char **argv) {
    static struct bench b = {.params = 100000000,
                             .units = 40,
                             .steps = 5,
                             .tier = "nvme",
                             .path = "/tmp/offload_bench",
                             .more = ""};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--params")) b.params = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--units")) b.units = (uint32_t)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--steps")) b.steps = (uint32_t)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--tier")) b.tier = argv[i + 1];
        if (!strcmp(argv[i], "--path")) b.path = argv[i + 1];
        if (!strcmp(argv[i], "--more")) b.more = argv[i + 1];
        if (!strcmp(argv[i], "--bound")) b.bound = !strcmp(argv[i + 1], "yes");
    }
    if (b.units < 1 || b.units > UNITS_MAX || b.steps < 1 || b.steps > STEPS_MAX || b.params < b.units) {
        fprintf(stderr, "offload_bench: 1 to %d units, 1 to %d steps, at least one parameter per unit\n",
                UNITS_MAX, STEPS_MAX);
        return 2;
    }
    int status = open_engine(&b) ? fail("open") : run(&b);
    zero_engine_destroy(b.engine);
    return status;
}
