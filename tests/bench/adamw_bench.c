/* How near the optimizers' updates come to the memory's speed.
 *
 * Counted bytes per parameter are those that the arithmetic needs: the gradient is read (4, or 2 when bf16),
 * the weights and each state are read and written (8 each), the cast-out is written (2). AdamW in fp32: 28.
 * Reads that a cache makes before it writes a line (the cast-out's) are not counted, in neither of the two.
 * The bound is measured in the same run: a plain loop over the same arrays with the same reads and writes
 * (stream.h) alternates with the update; the fraction is the median over the rounds of stream time / update
 * time of neighbours. */
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "tests/bench/stream.h"

enum {
    ROUNDS_MAX = 101,
    ARRAYS = 5,
    STAGGER_BYTES = 832 /* 13 lines: no two arrays start alike modulo 4,096 */
};

static struct {
    uint64_t count;
    int rounds;
    char *memory;
    float *master, *state[OPTIMIZER_STATES_MAX], *gradient;
    uint16_t *out;
} bench = {.count = 100000000, .rounds = 11};

struct shape {
    const char *title;
    enum dtype gradient;
    bool out, norm; /* norm: a separate pass of norm_more over the gradient before the update, as peers do */
};

static const struct shape shapes[] = {
    {"fp32", DTYPE_F32, false, false},
    {"fp32, bf16 out", DTYPE_F32, true, false},
    {"bf16 gradient, bf16 out", DTYPE_BF16, true, false},
    {"fp32, norm pass", DTYPE_F32, false, true},
};

struct result {
    double seconds, fraction, gigabytes_per_second, gparams_per_second;
};

static uint32_t bytes_per_param(const struct optimizer *optimizer, const struct shape *shape) {
    return dtype_bytes(shape->gradient) + 8 * (1 + optimizer->state_count) + (shape->out ? 2 : 0);
}

static bool allocate(void) {
    uint64_t each = (bench.count * sizeof(float) + (4u << 20)) &
                    ~(uint64_t)((2u << 20) - 1) /* 2 MiB pages, and room for the stagger */;
    bench.memory = mmap(NULL, ARRAYS * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench.memory == MAP_FAILED) return false;
    madvise(bench.memory, ARRAYS * each, MADV_HUGEPAGE);
    float *arrays[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = (float *)(bench.memory + (uint64_t)i * (each + STAGGER_BYTES));
    bench.master = arrays[0], bench.state[0] = arrays[1], bench.state[1] = arrays[2],
    bench.gradient = arrays[3];
    bench.out = (uint16_t *)arrays[4];
    return true;
}

/* Values as in training: weights around 0.02, gradients around 1e-3, moments small and v positive. */
static void fill(enum dtype gradient_dtype) {
    uint32_t x = 1;
    for (uint64_t i = 0; i < bench.count; i++) {
        x = x * 1664525 + 1013904223;
        float u = (float)(int32_t)x * 0x1p-31f;
        bench.master[i] = 0.02f * u, bench.state[0][i] = 1e-3f * u, bench.state[1][i] = 1e-6f + 1e-6f * u * u;
        if (gradient_dtype == DTYPE_F32)
            bench.gradient[i] = 1e-3f * u;
        else
            ((uint16_t *)bench.gradient)[i] = (uint16_t)(0x3a80 | (x >> 16 & 0x807f));
        bench.out[i] = 0;
    }
}

static double norm_pass(uint32_t threads) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        uint64_t parts = (uint64_t)omp_get_num_threads(), me = (uint64_t)omp_get_thread_num();
        uint64_t blocks = bench.count / 4096, first = blocks * me / parts * 4096;
        uint64_t end = me + 1 == parts ? bench.count : blocks * (me + 1) / parts * 4096;
        sum += norm_more(0, bench.gradient + first, DTYPE_F32, end - first);
    }
    return sum;
}

static double seconds_of_update(const struct optimizer *optimizer, const struct shape *shape,
                                uint32_t threads, uint64_t step) {
    struct optimizer_params params = optimizer->defaults;
    params.weight_decay = 0.01;
    if (!params.beta1) params.momentum = 0.9; /* SGD with its state */
    struct optimizer_scalars scalars;
    uint64_t start = clock_now_ns();
    double norm = shape->norm ? norm_pass(threads) : 4.0;
    optimizer_prepare(optimizer, &params, step, &scalars);
    optimizer_update(optimizer, &(struct optimizer_args){.count = bench.count,
                                                         .master = bench.master,
                                                         .state = {bench.state[0], bench.state[1]},
                                                         .gradient = bench.gradient,
                                                         .gradient_dtype = shape->gradient,
                                                         .gradient_scale = norm > 1e30 ? 0.1f : 0.5f,
                                                         .out = shape->out ? bench.out : NULL,
                                                         .out_dtype = DTYPE_BF16,
                                                         .scalars = &scalars,
                                                         .threads = threads});
    return (double)(clock_now_ns() - start) * 1e-9;
}

static double seconds_of_stream(const struct optimizer *optimizer, const struct shape *shape,
                                uint32_t threads) {
    uint64_t start = clock_now_ns();
    stream_run(&(struct stream_args){.count = bench.count,
                                     .array = {bench.master, bench.state[0], bench.state[1]},
                                     .array_count = 1 + optimizer->state_count,
                                     .source = bench.gradient,
                                     .source_bytes = dtype_bytes(shape->gradient),
                                     .target = shape->out ? bench.out : NULL,
                                     .keep = 1,
                                     .add = 0,
                                     .threads = threads});
    return (double)(clock_now_ns() - start) * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static struct result measure(const struct optimizer *optimizer, const struct shape *shape, uint32_t threads) {
    double times[ROUNDS_MAX], fractions[ROUNDS_MAX];
    fill(shape->gradient);
    seconds_of_update(optimizer, shape, threads, 1); /* pages and the thread pool */
    for (int i = 0; i < bench.rounds; i++) {
        times[i] = seconds_of_update(optimizer, shape, threads, 2 + (uint64_t)i);
        fractions[i] = seconds_of_stream(optimizer, shape, threads) / times[i];
    }
    struct result result = {.seconds = median(times, bench.rounds),
                            .fraction = median(fractions, bench.rounds)};
    result.gparams_per_second = (double)bench.count / result.seconds * 1e-9;
    result.gigabytes_per_second = result.gparams_per_second * bytes_per_param(optimizer, shape);
    return result;
}

static void report(const struct optimizer *optimizer, const struct shape *shape, uint32_t threads,
                   struct result *out) {
    struct result r = measure(optimizer, shape, threads);
    printf("%-8s %-24s %7u %9u %10.3f %8.1f %10.1f %9.3f\n", optimizer->title, shape->title, threads,
           bytes_per_param(optimizer, shape), r.gparams_per_second, r.gigabytes_per_second,
           r.gigabytes_per_second / r.fraction, r.fraction);
    fflush(stdout);
    *out = r;
}

static int usage(void) {
    fprintf(stderr,
            "usage: adamw_bench [--count N] [--rounds N] [--threads N (1 to N; default 2)] [--adamw-only]\n"
            "  --adamw-only: AdamW, and with N threads only\n");
    return 2;
}

int main(int argc, char **argv) {
    uint32_t threads_max = 2;
    bool adamw_only = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--adamw-only") == 0)
            adamw_only = true;
        else if (i + 1 == argc)
            return usage();
        else if (strcmp(argv[i], "--count") == 0)
            bench.count = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            bench.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0)
            threads_max = (uint32_t)atoi(argv[++i]);
        else
            return usage();
    }
    if (!bench.count || bench.rounds < 1 || bench.rounds > ROUNDS_MAX || !threads_max) return usage();
    if (!allocate()) return perror("adamw_bench: memory"), 1;
    printf("%.1f M parameters, %s, median of %d rounds; bytes counted as said at the head of adamw_bench.c\n",
           (double)bench.count * 1e-6, kernel_isa_name(kernel_isa()), bench.rounds);
    printf("%-8s %-24s %7s %9s %10s %8s %10s %9s\n", "", "", "threads", "B/param", "Gparam/s", "GB/s",
           "bound GB/s", "fraction");
    struct result adamw[sizeof shapes / sizeof *shapes] = {0}, other;
    for (uint32_t threads = adamw_only ? threads_max : 1; threads <= threads_max; threads++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            report(optimizers[0], &shapes[i], threads, &adamw[i]);
        for (const struct optimizer *const *each = optimizers + 1; *each && !adamw_only; each++)
            report(*each, &shapes[1], threads, &other);
    }
    printf(
        "{\"bench\": \"adamw\", \"count\": %llu, \"threads\": %u, \"isa\": \"%s\", \"gparam_per_s\": %.4f, "
        "\"bound_fraction\": %.4f, \"gparam_per_s_bf16_out\": %.4f, \"gparam_per_s_with_norm_pass\": %.4f}\n",
        (unsigned long long)bench.count, threads_max, kernel_isa_name(kernel_isa()),
        adamw[0].gparams_per_second, adamw[0].fraction, adamw[1].gparams_per_second,
        adamw[3].gparams_per_second);
    return 0;
}
