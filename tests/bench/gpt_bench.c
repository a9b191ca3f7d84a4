/* Tokens per second of the GPT's forward and backward, beside the bound that oneDNN's own rate sets: for each
 * shape of matrix product in the model, its rate as one whole product on all threads, measured between the
 * steps of the same run; the bound is the time that all products take at these rates. Fraction = bound / step,
 * of medians; as the GPT transposes weights first where that is faster, it could pass 1. Attention's products
 * are counted for the part below the diagonal, recomputed scores included, at the rate of whole strips.
 * Everything is measured on two clocks: on the wall's, and on the processor's, which tells more on a machine
 * that is busy with other work; there run with OMP_WAIT_POLICY=passive, as waiting threads would count.
 *
 *   gpt_bench [THREADS [ROUNDS [LAYERS WIDTH HEADS CONTEXT VOCAB BATCH]]] */
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "tests/gpt/fake_engine.h"
#include "tools/gpt/gpt.h"
#include "tools/gpt/math/parallel.h"

enum { SHAPES_MAX = 32, ROUNDS_MAX = 1000 };
enum clock { WALL, PROCESSOR, CLOCKS };

/* Processor seconds are the process's over its threads: the wall's if they had the machine to themselves. */
struct moment {
    double seconds[CLOCKS];
};

static struct moment now(uint32_t threads) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (struct moment){
        {(double)clock_now_ns() * 1e-9, ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / threads}};
}

static struct moment since(struct moment start, uint32_t threads) {
    struct moment end = now(threads);
    return (struct moment){
        {end.seconds[WALL] - start.seconds[WALL], end.seconds[PROCESSOR] - start.seconds[PROCESSOR]}};
}

struct shape {
    char name[32];
    char ta, tb;
    uint32_t m, n, k;
    double per_step; /* how many of them a step has */
    double seconds[CLOCKS][ROUNDS_MAX];
};

struct bench {
    struct gpt_config config;
    uint32_t batch, threads, rounds, shapes;
    struct shape shape[SHAPES_MAX];
    float *a, *b, *c;
    double step[CLOCKS][ROUNDS_MAX];
};

static void add_shape(struct bench *x, const char *name, char ta, char tb, uint32_t m, uint32_t n, uint32_t k,
                      double per_step) {
    struct shape *s = &x->shape[x->shapes++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->ta = ta, s->tb = tb, s->m = m, s->n = n, s->k = k, s->per_step = per_step;
}

/* Forward, gradient of the input, gradient of the weight. */
static void add_linear(struct bench *x, const char *name, uint32_t in, uint32_t out, double per_step,
                       int head) {
    uint32_t rows = x->batch * x->config.context;
    char full[32];
    snprintf(full, sizeof full, "%s forward", name),
        add_shape(x, full, 'N', head ? 'T' : 'N', rows, out, in, per_step);
    snprintf(full, sizeof full, "%s input", name),
        add_shape(x, full, 'N', head ? 'N' : 'T', rows, in, out, per_step);
    snprintf(full, sizeof full, "%s weight", name);
    add_shape(x, full, 'T', 'N', head ? out : in, head ? in : out, rows, per_step);
}

static void list_shapes(struct bench *x) {
    const struct gpt_config *c = &x->config;
    add_linear(x, "qkv", c->width, 3 * c->width, c->layers, 0);
    add_linear(x, "project", c->width, c->width, c->layers, 0);
    add_linear(x, "widen", c->width, c->inner, c->layers, 0);
    add_linear(x, "narrow", c->inner, c->width, c->layers, 0);
    add_linear(x, "head", c->width, c->vocab, 1, 1);
    /* Of one head: 64 queries against all keys; (context + 1) / 2 keys on average are needed. */
    uint32_t size = c->width / c->heads;
    double heads =
        (double)x->batch * c->heads * c->layers * (c->context / 64.) * ((c->context + 1) / 2. / c->context);
    add_shape(x, "scores, dP", 'N', 'T', 64, c->context, size, 3 * heads); /* forward, again, gradient of P */
    add_shape(x, "mix, dQ", 'N', 'N', 64, size, c->context, 2 * heads);
    add_shape(x, "dK, dV", 'T', 'N', c->context, size, 64, 2 * heads);
}

static int is_attention(const struct shape *s) { return s->m == 64 || s->k == 64; }

static void product(const struct shape *s, const float *a, const float *b, float *c) {
    dnnl_sgemm(s->ta, s->tb, s->m, s->n, s->k, 1, a, s->ta == 'N' ? s->k : s->m, b,
               s->tb == 'N' ? s->n : s->k, 0, c, s->n);
}

struct repeat {
    const struct bench *x;
    const struct shape *s;
};

static void repeat_task(void *context, uint32_t index, uint32_t thread) {
    struct repeat *r = context;
    uint64_t apart = (uint64_t)thread << 18;
    for (int i = 0; i < 50; i++) product(r->s, r->x->a + apart, r->x->b + apart, r->x->c + apart);
}

/* Large products with all threads inside; attention's with one product per thread, as they are used. */
static void time_shape(struct bench *x, struct shape *s, uint32_t round) {
    struct repeat r = {x, s};
    double products = is_attention(s) ? 50. * x->threads : 1;
    struct moment start = now(x->threads);
    if (is_attention(s))
        parallel_run(x->threads, x->threads, repeat_task, &r);
    else
        product(s, x->a, x->b, x->c);
    struct moment spent = since(start, x->threads);
    for (int c = 0; c < CLOCKS; c++) s->seconds[c][round] = spent.seconds[c] / products;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double report_shape(struct bench *x, struct shape *s, enum clock clock) {
    double seconds = median(s->seconds[clock], x->rounds), flops = 2. * s->m * s->n * s->k;
    if (clock == WALL)
        printf("%-16s %c%c %5u x %5u x %5u  %6.1f GFLOP/s, %6.1f ms of a step\n", s->name, s->ta, s->tb, s->m,
               s->n, s->k, flops / seconds * 1e-9, seconds * s->per_step * 1e3);
    return seconds * s->per_step;
}

static void report(struct bench *x, enum clock clock) {
    double bound = 0, attention = 0, tokens = (double)x->batch * x->config.context;
    for (uint32_t i = 0; i < x->shapes; i++) {
        double seconds = report_shape(x, &x->shape[i], clock);
        bound += seconds;
        if (is_attention(&x->shape[i])) attention += seconds;
    }
    double step = median(x->step[clock], x->rounds), flops = gpt_flops_per_token(&x->config) * tokens;
    printf("%s: step %.1f ms (least %.1f), bound %.1f ms (attention's part %.1f), fraction %.3f; "
           "%.0f tokens/s (best %.0f), %.1f GFLOP/s\n",
           clock == WALL ? "wall" : "processor", step * 1e3, x->step[clock][0] * 1e3, bound * 1e3,
           attention * 1e3, bound / step, tokens / step, tokens / x->step[clock][0], flops / step * 1e-9);
}

static void run(struct bench *x, struct gpt *gpt, zero_engine *engine, const int32_t *tokens) {
    double loss = 0;
    for (uint32_t round = 0; round < x->rounds + 2; round++) {
        fake_engine_next_step(engine);
        struct moment start = now(x->threads);
        if (gpt_train(gpt, tokens, tokens + 1, &loss)) exit(1);
        uint32_t slot = round < 2 ? 0 : round - 2; /* two rounds of warming up */
        struct moment spent = since(start, x->threads);
        for (int c = 0; c < CLOCKS; c++) x->step[c][slot] = spent.seconds[c];
        for (uint32_t i = 0; i < x->shapes; i++) time_shape(x, &x->shape[i], slot);
    }
    printf("loss %.6f of an untrained model\n", loss);
}

static void *buffer(uint64_t bytes) {
    float *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) exit(1);
    for (uint64_t i = 0; i < bytes / 4; i++) p[i] = (float)(i % 97) * 1e-2f;
    return p;
}

static uint32_t number(int argc, char **argv, int index, uint32_t otherwise) {
    return argc > index ? (uint32_t)strtoul(argv[index], NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    static struct bench x;
    x.threads = number(argc, argv, 1, 2), x.rounds = number(argc, argv, 2, 9);
    if (x.rounds > ROUNDS_MAX) x.rounds = ROUNDS_MAX;
    x.config = (struct gpt_config){.layers = number(argc, argv, 3, 6),
                                   .width = number(argc, argv, 4, 384),
                                   .heads = number(argc, argv, 5, 6),
                                   .context = number(argc, argv, 6, 256),
                                   .vocab = number(argc, argv, 7, 256),
                                   .tied = true,
                                   .layer_norm_epsilon = 1e-5,
                                   .initializer_range = 0.02};
    x.config.inner = 4 * x.config.width;
    x.batch = number(argc, argv, 8, 16);
    parallel_limit(x.threads);
    list_shapes(&x);

    zero_engine *engine = fake_engine_create(ZERO_F32, x.threads, 1);
    struct gpt *gpt = NULL;
    if (gpt_create(engine, &x.config, x.batch, &gpt)) return 1;
    zero_engine_commit(engine, NULL);
    struct gpt_init init = {.seed = 1, .config = x.config};
    zero_engine_fill(engine, gpt_fill, &init);
    uint64_t rows = (uint64_t)x.batch * x.config.context;
    uint32_t widest = x.config.inner > x.config.vocab ? x.config.inner : x.config.vocab;
    x.a = buffer(rows * widest * 4 + (1 << 22)), x.b = buffer(rows * widest * 4 + (1 << 22)),
    x.c = buffer(rows * widest * 4 + (1 << 22));
    int32_t *tokens = malloc((rows + 1) * sizeof *tokens);
    for (uint64_t i = 0; i <= rows; i++) tokens[i] = (int32_t)((i * 2654435761u >> 7) % x.config.vocab);
    run(&x, gpt, engine, tokens);
    report(&x, WALL);
    report(&x, PROCESSOR);
    printf("activations %.0f MiB, %u threads, %u rounds\n",
           (double)fake_engine_reserved(engine, ZERO_DEVICE) / (1 << 20), x.threads, x.rounds);
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
    free(x.a), free(x.b), free(x.c), free(tokens);
    return 0;
}
