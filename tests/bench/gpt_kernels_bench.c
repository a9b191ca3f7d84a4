/* How near the GPT's kernels come to the GPU memory's speed, and attention's rate, in bf16.
 *
 * Counted bytes are those that the arithmetic needs: what is read once and what is written once; the bound is the GPU's own copy in
 * the same run. Attention's operations are those of its products below the diagonal: 2 of them forward, 5 backward (Dao 2023,
 * FlashAttention-2, section 4.1), of which these kernels make 7; zeros that fill up heads of 80 do not count. Times are the GPU's
 * events around `rounds` launches, after one that is not timed; the median of five such. Arrays hold random numbers: on zeros
 * products take less power, and are faster.
 *   gpt_kernels_bench [--rows N] [--columns N] [--vocab N] [--rounds N] [--json FILE]
 *     16,384 rows (sequences of 1,024) of 1,600 columns in heads of 64, vocabulary 50,257, 20 rounds; JSON: an array, appended */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpt/cuda_device.h"
#include "tests/kernels/random.h"
#include "tools/gpt/cuda/state.h"

enum { TAKES = 5, ARRAYS = 4, HEAD = 64, LOGIT_ROWS = 2048, PATTERN = 1 << 20 };

static struct cuda_device cuda;
static struct cuda_gpt c;
static struct {
    uint64_t rows, columns, length, vocab;
    int rounds;
    FILE *json;
    bool any;
    void *array[ARRAYS];     /* each of rows * 8 * columns numbers, or of the logits */
    float *statistics[4];    /* [rows * heads] */
    void *scratch;           /* of attention by warpgroups */
    int32_t *tokens, *group; /* [rows] */
    uint32_t *order, *first, *groups;
    CUevent begin, end;
    double copy_bytes_per_second;
} b = {.rows = 16384, .columns = 1600, .length = 1024, .vocab = 50257, .rounds = 20};

static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS && c.error.code == ZERO_OK) return;
    fprintf(stderr, "gpt_kernels_bench: %s: %s\n", what,
            c.error.code ? c.error.message : "the driver refuses");
    exit(1);
}

/* ---- launches ---- */

static uint64_t logit_rows(void) { return b.rows < LOGIT_ROWS ? b.rows : LOGIT_ROWS; }
static uint64_t logit_stride(void) { return (b.vocab + 63) / 64 * 64; }
static uint32_t heads_of(uint32_t width) { return (uint32_t)(b.columns / width); }
static uint32_t heads(void) { return heads_of(HEAD); }

static void copy(void) { cuda_copy(&c, b.array[1], b.array[0], b.rows * b.columns * 2); }

static void run_norm_forward(void) {
    struct norm_forward_argument a = {b.array[1],       b.array[0],          b.array[2],
                                      b.array[2],       b.statistics[0],     b.statistics[1],
                                      (uint32_t)b.rows, (uint32_t)b.columns, 1e-5f};
    cuda_launch_rows(&c, KERNEL_norm_forward, b.rows, &a);
}
static void run_norm_backward(void) {
    uint64_t each = cuda_norm_parts_most(b.rows, b.columns, c.widest) * b.columns;
    float *sums = (float *)b.array[1] + b.rows * b.columns; /* behind dx */
    struct norm_backward_argument a = {.dx = b.array[1],
                                       .skip = b.array[3],
                                       .dy = b.array[0],
                                       .x = b.array[2],
                                       .gain = b.array[2],
                                       .mean = b.statistics[0],
                                       .rstd = b.statistics[1],
                                       .rows = (uint32_t)b.rows,
                                       .columns = (uint32_t)b.columns,
                                       .gain_sums = sums,
                                       .bias_sums = sums + each,
                                       .dx_sums = sums + 2 * each};
    if (cuda_norm_back(&c, a.columns) == GPT_KERNELS)
        cuda_launch_rows(&c, KERNEL_norm_backward, b.rows, &a);
    else
        cuda_launch_norm_back(&c, &a);
}
static struct grid sum_blocks(void) {
    return (struct grid){(uint32_t)(b.columns + SUM_COLUMNS - 1) / SUM_COLUMNS,
                         (uint32_t)(b.rows + SUM_ROWS - 1) / SUM_ROWS, 1};
}
static const struct grid sum_threads = {WARP, SUM_LANES, 1};
static void run_norm_sums(void) {
    float *sums = b.array[3];
    struct norm_sums_argument a = {sums,
                                   sums + sum_blocks().y * b.columns,
                                   b.array[0],
                                   b.array[1],
                                   b.statistics[0],
                                   b.statistics[1],
                                   (uint32_t)b.rows,
                                   (uint32_t)b.columns};
    cuda_launch(&c, KERNEL_norm_sums, sum_blocks(), sum_threads, &a);
}
static void run_bias_sums(void) {
    struct bias_sums_argument a = {b.array[3], b.array[0], (uint32_t)b.rows, (uint32_t)b.columns};
    cuda_launch(&c, KERNEL_bias_sums, sum_blocks(), sum_threads, &a);
}
static void run_round_sums(void) {
    struct round_sums_argument a = {b.array[0], b.array[1], b.rows * b.columns, 1};
    cuda_launch_flat(&c, KERNEL_round_sums, a.count / c.widest, &a);
}
static void run_gelu_forward(void) {
    struct gelu_forward_argument a = {b.array[1], b.array[0], 4 * b.rows * b.columns};
    cuda_launch_flat(&c, KERNEL_gelu_forward, a.count / c.widest, &a);
}
static void run_gelu_backward(void) {
    struct gelu_backward_argument a = {b.array[1], b.array[1], b.array[0], 4 * b.rows * b.columns};
    cuda_launch_flat(&c, KERNEL_gelu_backward, a.count / c.widest, &a);
}
static void run_swiglu_forward(void) {
    struct swiglu_forward_argument a = {b.array[1], b.array[0], 4 * b.rows * b.columns,
                                        (uint32_t)(4 * b.columns)};
    cuda_launch_flat(&c, KERNEL_swiglu_forward, a.count / c.widest, &a);
}
static void run_swiglu_backward(void) {
    struct swiglu_backward_argument a = {b.array[0], b.array[1], b.array[0], 4 * b.rows * b.columns,
                                         (uint32_t)(4 * b.columns)};
    cuda_launch_flat(&c, KERNEL_swiglu_backward, a.count / c.widest, &a);
}
static void run_rotary(void) {
    struct rotary_argument a = {.x = b.array[0],
                                .cosine = b.array[2],
                                .sine = b.array[2],
                                .stride = (uint32_t)b.columns,
                                .heads = heads(),
                                .half = HEAD / 2,
                                .length = (uint32_t)b.length,
                                .sign = 1};
    cuda_launch_blocks(&c, KERNEL_rotary, (uint32_t)b.rows, &a);
}
static void run_embedding_forward(void) {
    struct embedding_forward_argument a = {b.array[1],       b.array[0],          b.array[2],
                                           b.tokens,         (uint32_t)b.columns, (uint32_t)b.length,
                                           (uint32_t)b.rows, .count = UINT32_MAX};
    cuda_launch_rows(&c, KERNEL_embedding_forward, a.rows, &a);
}
static void run_embedding_backward(void) {
    struct embedding_backward_argument a = {
        b.array[0], b.array[1],         b.order, b.first, b.group, b.groups, (uint32_t)b.columns,
        0,          .count = UINT32_MAX};
    cuda_launch_blocks(&c, KERNEL_embedding_backward, (uint32_t)b.rows, &a);
}
static void run_cross_entropy(void) {
    struct cross_entropy_argument a = {
        b.array[0],        b.statistics[0],          b.tokens, (uint32_t)logit_rows(),
        (uint32_t)b.vocab, (uint32_t)logit_stride(), 1,        0};
    cuda_launch_cross_entropy(&c, &a);
}

static struct attention_argument attention(uint32_t width) {
    return (struct attention_argument){b.array[0],
                                       b.array[1],
                                       b.statistics[0],
                                       b.statistics[1],
                                       b.array[2],
                                       b.array[3],
                                       (uint32_t)(b.rows / b.length),
                                       (uint32_t)b.length,
                                       heads_of(width),
                                       heads_of(width),
                                       width,
                                       0.125f,
                                       .scratch = b.scratch};
}
static void attend(uint32_t width, uint32_t tile, bool back) {
    struct attention_argument a = attention(width);
    (back ? cuda_attention_backward : cuda_attention_forward)(&c, tile, &a);
}
static void run_attention_forward(void) { attend(HEAD, 64, false); }
static void run_attention_backward(void) { attend(HEAD, 64, true); }
static void run_forward_80(void) { attend(80, 96, false); }
static void run_backward_80(void) { attend(80, 96, true); }
static void run_forward_128(void) { attend(128, 128, false); }
static void run_backward_128(void) { attend(128, 128, true); }
static void by_warpgroups(uint32_t width, bool back) {
    c.warpgroups = true;
    attend(width, width, back);
    c.warpgroups = false;
}
static void run_warpgroups_64(void) { by_warpgroups(64, false); }
static void run_warpgroups_128(void) { by_warpgroups(128, false); }
static void run_back_warpgroups_64(void) { by_warpgroups(64, true); }
static void run_back_warpgroups_128(void) { by_warpgroups(128, true); }

/* ---- what is measured ---- */

struct measured {
    const char *name;
    void (*launch)(void);
    double bytes; /* of one launch; 0: operations are what counts */
    double operations;
};

static int ascending(const void *a, const void *d) {
    double x = *(const double *)a, y = *(const double *)d;
    return (x > y) - (x < y);
}

static double median_seconds(const struct measured *m) {
    const struct cuda_driver *d = &cuda.driver;
    double seconds[TAKES];
    m->launch();
    for (int t = 0; t < TAKES; t++) {
        float milliseconds = 0;
        must(d->cuEventRecord(b.begin, cuda.stream), "an event");
        for (int r = 0; r < b.rounds; r++) m->launch();
        must(d->cuEventRecord(b.end, cuda.stream), "an event");
        must(d->cuEventSynchronize(b.end), m->name);
        must(d->cuEventElapsedTime(&milliseconds, b.begin, b.end), "the time between events");
        seconds[t] = (double)milliseconds * 1e-3 / b.rounds;
    }
    qsort(seconds, TAKES, sizeof *seconds, ascending);
    return seconds[TAKES / 2];
}

static void measure(const struct measured *m) {
    double s = median_seconds(m), rate = m->bytes / s;
    if (m->launch == copy) b.copy_bytes_per_second = rate;
    if (m->bytes > 0)
        printf("%-20s %8.1f MB %10.1f us %9.1f GB/s  %.3f of a copy\n", m->name, m->bytes * 1e-6, s * 1e6,
               rate * 1e-9, rate / b.copy_bytes_per_second);
    else
        printf("%-20s %8.1f GFLOP %7.1f us %9.1f TFLOP/s\n", m->name, m->operations * 1e-9, s * 1e6,
               m->operations / s * 1e-12);
    if (!b.json) return;
    fprintf(b.json,
            "%s{\"name\": \"%s\", \"seconds\": %.9f, \"bytes_per_second\": %.6g, \"fraction_of_copy\": %.4f, "
            "\"flops\": %.6g}",
            b.any ? ",\n  " : "[", m->name, s, rate, rate / b.copy_bytes_per_second, m->operations / s);
    b.any = true;
}

/* The operations of queries times keys, or of weights times values. */
static double product_of(uint32_t width) {
    return 2 * (double)(b.rows * heads_of(width) * width) * (double)b.length / 2;
}

static void measure_all(void) {
    double each = (double)(b.rows * b.columns), inner = 4 * each, logits = (double)(logit_rows() * b.vocab);
    double product = product_of(HEAD), warpgroups = cuda_attention_fits(&c, HEAD) ? 1 : 0;
    const struct measured all[] = {
        /* Attention before others leave their results, which are less random, in its arrays. */
        {"copy", copy, 4 * each, 0},
        {"attention forward", run_attention_forward, 0, 2 * product},
        {"forward by warpgroups", run_warpgroups_64, 0, warpgroups * 2 * product},
        {"attention backward", run_attention_backward, 0, 5 * product},
        {"backward by warpgroups", run_back_warpgroups_64, 0, warpgroups * 5 * product},
        {"forward, heads 80", run_forward_80, 0, 2 * product_of(80)},
        {"backward, heads 80", run_backward_80, 0, 5 * product_of(80)},
        {"forward, heads 128", run_forward_128, 0, 2 * product_of(128)},
        {"forward 128, warpgroups", run_warpgroups_128, 0, warpgroups * 2 * product_of(128)},
        {"backward, heads 128", run_backward_128, 0, 5 * product_of(128)},
        {"backward 128, warpgroups", run_back_warpgroups_128, 0, warpgroups * 5 * product_of(128)},
        {"norm forward", run_norm_forward, 4 * each, 0},
        {"norm backward, sums", run_norm_backward, 10 * each, 0},
        {"norm sums", run_norm_sums, 6 * each, 0},
        {"bias sums", run_bias_sums, 2 * each, 0},
        {"round sums", run_round_sums, 8 * each, 0},
        {"GELU forward", run_gelu_forward, 4 * inner, 0},
        {"GELU backward", run_gelu_backward, 6 * inner, 0},
        {"SwiGLU forward", run_swiglu_forward, 6 * inner, 0},
        {"SwiGLU backward", run_swiglu_backward, 10 * inner, 0},
        {"rotary", run_rotary, 4 * (double)(b.rows * heads() * HEAD), 0},
        {"embedding forward", run_embedding_forward, 4 * each, 0},
        {"embedding backward", run_embedding_backward, 4 * each, 0},
        {"cross-entropy", run_cross_entropy, 4 * logits, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].bytes > 0 || all[i].operations > 0)
            measure(&all[i]); /* else no head is so narrow, or there are no warpgroups */
}

/* ---- the program ---- */

/* Random numbers of bf16 in [-1, 1), the same again and again. */
static void fill(void *array, uint64_t bytes) {
    static uint16_t pattern[PATTERN];
    uint64_t seed = 1;
    for (int i = 0; i < PATTERN; i++) {
        float x = random_uniform(&seed);
        memcpy(&pattern[i], (char *)&x + 2, 2); /* the upper half */
    }
    for (uint64_t at = 0; at < bytes; at += sizeof pattern)
        cuda_copy(&c, (char *)array + at, pattern, bytes - at < sizeof pattern ? bytes - at : sizeof pattern);
    must(cuda.driver.cuStreamSynchronize(cuda.stream), "filling memory");
}

static void *allocate(uint64_t bytes) {
    CUdeviceptr at = 0;
    must(cuda.driver.cuMemAlloc(&at, bytes), "memory");
    must(cuda.driver.cuMemsetD8Async(at, 0, bytes, cuda.stream), "clearing it");
    return (void *)(uintptr_t)at;
}

/* Each row has a token of its own, as far as the table goes. */
static void fill_tokens(void) {
    int32_t *numbers = malloc((b.rows + 1) * sizeof *numbers);
    uint64_t limit = b.vocab < b.rows ? b.vocab : b.rows, bytes = (b.rows + 1) * sizeof *numbers;
    for (uint64_t i = 0; i <= b.rows; i++) numbers[i] = (int32_t)(i % limit);
    cuda_copy(&c, b.tokens, numbers, bytes);
    for (uint64_t i = 0; i <= b.rows; i++)
        numbers[i] = (int32_t)i; /* groups of one row, as far as there are tokens */
    cuda_copy(&c, b.group, numbers, bytes), cuda_copy(&c, b.order, numbers, bytes),
        cuda_copy(&c, b.first, numbers, bytes);
    int32_t groups = (int32_t)limit;
    cuda_copy(&c, b.groups, &groups, sizeof groups);
    must(cuda.driver.cuStreamSynchronize(cuda.stream), "tokens");
    free(numbers);
}

static void allocate_all(void) {
    uint64_t numbers = 8 * b.rows * b.columns, logits = logit_rows() * logit_stride(),
             table = b.vocab * b.columns;
    if (logits > numbers) numbers = logits;
    if (table > numbers) numbers = table;
    for (int i = 0; i < ARRAYS; i++) fill(b.array[i] = allocate(numbers * 2), numbers * 2);
    for (int i = 0; i < 4; i++) b.statistics[i] = allocate(b.rows * (heads() + 1) * sizeof(float));
    uint64_t sequences = b.rows / b.length * heads(), narrow = cuda_attention_floats(HEAD, sequences, b.length),
             wide = cuda_attention_floats(HEAD_WIDTH_MAX, sequences / 2, b.length);
    b.scratch = allocate((narrow > wide ? narrow : wide) * sizeof(float));
    b.tokens = allocate((b.rows + 1) * 4), b.group = allocate((b.rows + 1) * 4),
    b.order = allocate((b.rows + 1) * 4);
    b.first = allocate((b.rows + 1) * 4), b.groups = allocate(4);
    fill_tokens();
}

static bool read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        uint64_t number = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--json") == 0) {
            if (!(b.json = fopen(value, "a"))) return false;
            continue;
        }
        if (!number) return false;
        if (strcmp(argv[i], "--rows") == 0)
            b.rows = number;
        else if (strcmp(argv[i], "--columns") == 0)
            b.columns = number;
        else if (strcmp(argv[i], "--vocab") == 0)
            b.vocab = number;
        else if (strcmp(argv[i], "--rounds") == 0)
            b.rounds = (int)number;
        else
            return false;
    }
    if (b.length > b.rows) b.length = b.rows;
    return b.columns % HEAD == 0 && b.rows % b.length == 0;
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv)) {
        fprintf(stderr, "usage: gpt_kernels_bench [--rows N] [--columns N] [--vocab N] [--rounds N] [--json "
                        "FILE]: columns are a multiple "
                        "of 64, rows of 1,024 or fewer\n");
        return 2;
    }
    cuda_device_open(&cuda);
    c.driver = cuda.driver, c.device = cuda.device, c.stream = cuda.stream;
    c.type = ZERO_BF16, c.number_bytes = 2, c.widest = 8;
    cuda_kernels_open(&c);
    if (cuda_attention_fits(&c, HEAD)) cuda_warpgroup_kernels_open(&c);
    must(CUDA_SUCCESS, "kernels");
    must(cuda.driver.cuEventCreate(&b.begin, 0), "an event");
    must(cuda.driver.cuEventCreate(&b.end, 0), "an event");
    allocate_all();
    measure_all();
    must(CUDA_SUCCESS, "a launch");
    if (b.json) fprintf(b.json, "]\n"), fclose(b.json);
    cuda_kernels_close(&c);
    cuda_device_close(&cuda);
    return 0;
}
