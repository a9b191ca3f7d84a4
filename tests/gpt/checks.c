#include "tests/gpt/checks.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/gpt/fake_engine.h"
#include "tests/gpt/reference.h"

enum { SAMPLES = 6 };

static uint32_t random_below(uint64_t *state, uint32_t limit) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % limit);
}

static const double *value_of(void *user, const char *name) {
    struct fixture *f = user;
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++)
        if (strcmp(fake_engine_name(f->engine, i), name) == 0) return f->value[i];
    return NULL;
}

/* Norms and biases get values of their own, or mistakes in them would not show. */
static void set_params(struct fixture *f, uint64_t *random) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        float *value = fake_engine_param(f->engine, name);
        f->value[i] = malloc(count * sizeof(double));
        for (uint64_t e = 0; e < count; e++) {
            value[e] += (float)(random_below(random, 2001) * 1e-3 - 1) * 0.2f;
            f->value[i][e] = value[e];
        }
    }
}

void fixture_open_on(const struct fake_device *device, zero_dtype dtype, struct fixture *f,
                     struct gpt_config config, uint32_t batch, uint32_t threads, float loss_scale) {
    uint64_t random = 7;
    uint32_t rows = batch * config.context * (config.micros ? config.micros : 1);
    f->config = config, f->batch = batch;
    f->engine = fake_engine_create(dtype, threads, loss_scale);
    fake_engine_use_micros(f->engine, config.micros);
    fake_engine_on(f->engine, device);
    CHECK_INT(gpt_create(f->engine, &config, batch, &f->gpt), ZERO_OK);
    CHECK_INT(zero_engine_commit(f->engine, NULL), ZERO_OK);
    CHECK_INT(gpt_keep_outputs(f->gpt), ZERO_OK);
    struct gpt_init init = {.seed = 1, .config = config};
    zero_engine_fill(f->engine, gpt_fill, &init);
    set_params(f, &random);
    f->tokens = malloc(rows * sizeof(int32_t)), f->targets = malloc(rows * sizeof(int32_t));
    for (uint32_t i = 0; i < rows; i++)
        f->tokens[i] = (int32_t)random_below(&random, config.vocab),
        f->targets[i] = (int32_t)random_below(&random, config.vocab);
}

void fixture_open(zero_dtype dtype, struct fixture *f, struct gpt_config config, uint32_t batch,
                  uint32_t threads, float loss_scale) {
    fixture_open_on(NULL, dtype, f, config, batch, threads, loss_scale);
}

static void open(struct fixture *f, struct gpt_config config, uint32_t batch, uint32_t threads,
                 float loss_scale) {
    fixture_open(ZERO_F32, f, config, batch, threads, loss_scale);
}

void fixture_close(struct fixture *f) {
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) free(f->value[i]);
    gpt_destroy(f->gpt);
    zero_engine_destroy(f->engine);
    free(f->tokens), free(f->targets);
}

static double reference(struct fixture *f, double *logits) {
    return reference_loss(&f->config, value_of, f, f->batch, f->config.context, f->tokens, f->targets,
                          logits);
}

/* Central difference of the reference at one element, fourth order. */
static double slope(struct fixture *f, double *element) {
    double at = *element, h = 1e-3, loss[4], step[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *element = at + step[i] * h;
        loss[i] = reference(f, NULL);
    }
    *element = at;
    return (loss[0] - 8 * loss[1] + 8 * loss[2] - loss[3]) / (12 * h);
}

/* Copies the gradients of all parameters, one after another. */
static float *copy_gradients(struct fixture *f, uint64_t *out_count) {
    float *all = malloc(gpt_parameters(&f->config) * sizeof(float));
    *out_count = 0;
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        memcpy(all + *out_count, fake_engine_grad(f->engine, name), count * sizeof(float));
        *out_count += count;
    }
    CHECK_INT(*out_count, gpt_parameters(&f->config));
    return all;
}

static void check_tensor(struct fixture *f, uint32_t index, double scale, uint64_t *random) {
    const char *name = fake_engine_name(f->engine, index);
    const float *grad = fake_engine_grad(f->engine, name);
    uint64_t count = fake_engine_count(f->engine, name);
    for (int s = 0; s < SAMPLES; s++) {
        uint64_t e = s == 0 ? 0 : s == 1 ? count - 1 : random_below(random, (uint32_t)count);
        double expected = scale * slope(f, &f->value[index][e]);
        if (!(fabs(grad[e] - expected) <= 2e-6 * scale + 2e-4 * fabs(expected))) {
            check_fail(__FILE__, __LINE__);
            fprintf(stderr, "gradient of %s[%" PRIu64 "] is %.9g, expected %.9g\n", name, e, grad[e],
                    expected);
        }
    }
    for (uint64_t e = 0; e < count; e++)
        if (!isfinite(grad[e])) {
            check_fail(__FILE__, __LINE__);
            fprintf(stderr, "gradient of %s[%" PRIu64 "] was not written\n", name, e);
            break;
        }
}

/* A second micro-step of the same step adds: the gradients double. */
static void check_adds(struct fixture *f, double loss) {
    uint64_t count;
    double again = 0;
    float *once = copy_gradients(f, &count);
    CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    float *twice = copy_gradients(f, &count);
    for (uint64_t i = 0; i < count; i++)
        if (!CHECK_DOUBLE(twice[i], 2. * once[i], 1e-5)) break;
    free(once), free(twice);
}

void check_gradients(struct gpt_config config, uint32_t batch, uint32_t threads) {
    struct fixture f;
    uint64_t random = 99;
    double loss = 0;
    open(&f, config, batch, threads, 4);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    CHECK_DOUBLE(loss, reference(&f, NULL), 1e-6);
    for (uint32_t i = 0; fake_engine_name(f.engine, i); i++) check_tensor(&f, i, 4, &random);
    check_adds(&f, loss);
    double again = 0;
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    fixture_close(&f);
}

void check_logits(struct gpt_config config, uint32_t batch, uint32_t threads) {
    struct fixture f;
    open(&f, config, batch, threads, 1);
    double *expected = malloc(sizeof(double) * batch * config.context * config.vocab);
    float *logits = malloc(sizeof(float) * config.vocab), *again = malloc(sizeof(float) * config.vocab);
    reference(&f, expected);
    for (uint32_t b = 0; b < batch; b++) /* a shorter sequence gives the same as that row of the whole one */
        for (uint32_t length = 1; length <= config.context; length += 1 + config.context / 5) {
            CHECK_INT(gpt_next_logits(f.gpt, f.tokens + b * config.context, length, 0, logits), ZERO_OK);
            for (uint32_t v = 0; v < config.vocab; v++)
                if (!CHECK_DOUBLE(logits[v], expected[(b * config.context + length - 1) * config.vocab + v],
                                  1e-5))
                    break;
            if (length < 2) continue;
            /* so does one that goes on where it was shorter */
            uint32_t known = length > 2 ? length - 2 : 1;
            CHECK_INT(gpt_next_logits(f.gpt, f.tokens + b * config.context, known, 0, again), ZERO_OK);
            CHECK_INT(gpt_next_logits(f.gpt, f.tokens + b * config.context, length, known, again), ZERO_OK);
            CHECK(check_distance(again, logits, 1, config.vocab) < 1e-5);
        }
    CHECK_INT(gpt_next_logits(f.gpt, f.tokens, 0, 0, logits), ZERO_E_ARGUMENT);
    CHECK_INT(gpt_next_logits(f.gpt, f.tokens, config.context + 1, 0, logits), ZERO_E_ARGUMENT);
    CHECK_INT(gpt_next_logits(f.gpt, f.tokens, 1, 1, logits), ZERO_E_ARGUMENT);
    free(expected), free(logits), free(again);
    fixture_close(&f);
}

float *check_train(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                   uint64_t *out_count) {
    struct fixture f;
    double loss;
    fixture_open(dtype, &f, config, batch, threads, 1);
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    fake_engine_next_step(f.engine); /* a second time over used memory: nothing may remain of the first */
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
    float *all = copy_gradients(&f, out_count);
    fixture_close(&f);
    return all;
}

void check_bits(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                uint32_t other_threads) {
    uint64_t count;
    bool amx = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
    if (dtype == ZERO_BF16 && amx) other_threads = threads;
    float *once = check_train(dtype, config, batch, threads, &count);
    for (int i = 0; i < 3; i++) {
        float *again = check_train(dtype, config, batch, i == 2 ? other_threads : threads, &count);
        CHECK_BYTES(again, once, count * sizeof(float));
        free(again);
    }
    free(once);
}

double check_distance(const float *x, const float *y, double scale, uint64_t count) {
    double off = 0, size = 0;
    for (uint64_t e = 0; e < count; e++) {
        off += (x[e] - scale * y[e]) * (x[e] - scale * y[e]);
        size += scale * y[e] * scale * y[e];
    }
    return sqrt(off / size);
}

void check_copies(struct gpt_config config, uint32_t copies, uint32_t threads) {
    struct fixture one, many;
    double loss = 0, expected = 0;
    open(&one, config, 1, threads, 1);
    open(&many, config, copies, threads, 1);
    for (uint32_t i = 0; i < copies * config.context; i++)
        many.tokens[i] = one.tokens[i % config.context], many.targets[i] = one.targets[i % config.context];
    CHECK_INT(gpt_train(one.gpt, one.tokens, one.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(many.gpt, many.tokens, many.targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 1e-5);
    for (uint32_t i = 0; fake_engine_name(one.engine, i); i++) {
        const char *name = fake_engine_name(one.engine, i);
        double off = check_distance(fake_engine_grad(one.engine, name), fake_engine_grad(many.engine, name),
                                    1, fake_engine_count(one.engine, name));
        if (off <= 1e-4) continue; /* fp32 sums in another order: 1.3e-5 on a processor that has SSE4.1 alone */
        check_fail(__FILE__, __LINE__);
        fprintf(stderr, "gradient of %s is off by %.3g\n", name, off);
    }
    fixture_close(&one), fixture_close(&many);
}

/* A gradient differs from the fp32 one only by rounding: in bf16 to 8 bits in each factor of each product, in fp16 to
 * 11 bits in the engine's numbers. */
static void check_rounded(struct fixture *f, struct fixture *wide, uint32_t index, double most) {
    const char *name = fake_engine_name(f->engine, index);
    double off = check_distance(fake_engine_grad(f->engine, name), fake_engine_grad(wide->engine, name), 1,
                                fake_engine_count(f->engine, name));
    if (off > 0 && off <= most) return;
    check_fail(__FILE__, __LINE__);
    fprintf(stderr, "gradient of %s is off by %.3g\n", name, off);
}

void check_narrow(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads) {
    double bits = dtype == ZERO_BF16 ? 0x1p-7 : 0x1p-10;
    struct fixture narrow, wide;
    double loss = 0, expected = 0, again = 0;
    uint64_t count;
    fixture_open(dtype, &narrow, config, batch, threads, 4);
    open(&wide, config, batch, threads, 4);
    CHECK_INT(gpt_train(narrow.gpt, narrow.tokens, narrow.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(wide.gpt, wide.tokens, wide.targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 1.28 * bits);
    CHECK(loss != expected);
    for (uint32_t i = 0; fake_engine_name(narrow.engine, i); i++) check_rounded(&narrow, &wide, i, 8 * bits);
    /* A second micro-step adds the same; once and twice are rounded. */
    float *once = copy_gradients(&narrow, &count);
    CHECK_INT(gpt_train(narrow.gpt, narrow.tokens, narrow.targets, &again), ZERO_OK);
    float *twice = copy_gradients(&narrow, &count);
    CHECK(check_distance(twice, once, 2, count) < bits);
    free(once), free(twice);
    CHECK_INT(gpt_evaluate(narrow.gpt, narrow.tokens, narrow.targets, 0, &again), ZERO_OK);
    CHECK_DOUBLE(again, loss, 0);
    fixture_close(&narrow), fixture_close(&wide);
}

/* Gradients of trained parameters have the same bits whatever is frozen; gradients of frozen parameters are not
 * written. */
static void compare_frozen(struct fixture *f, const struct fixture *whole, const bool *frozen) {
    double loss = 0, expected = 0;
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++)
        if (frozen[i]) fake_engine_freeze(f->engine, fake_engine_name(f->engine, i));
    CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(whole->gpt, whole->tokens, whole->targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 0);
    for (uint32_t i = 0; fake_engine_name(f->engine, i); i++) {
        const char *name = fake_engine_name(f->engine, i);
        uint64_t count = fake_engine_count(f->engine, name);
        const float *grad = fake_engine_grad(f->engine, name);
        if (!frozen[i] && !CHECK_BYTES(grad, fake_engine_grad(whole->engine, name), count * sizeof(float)))
            fprintf(stderr, "of %s\n", name);
        for (uint64_t e = 0; e < count && frozen[i]; e++)
            if (!CHECK_DOUBLE(grad[e], 0, 0)) break;
    }
}

void check_frozen(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t top) {
    enum { ALTERNATE, OTHERS, FIRST_UNITS, ALL_BUT_LAST, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        struct fixture f, whole;
        bool frozen[PARAMS_MAX] = {0};
        uint32_t params = 0;
        fixture_open(dtype, &f, config, batch, 2, 4);
        fixture_open(dtype, &whole, config, batch, 2, 4);
        while (fake_engine_name(f.engine, params)) params++;
        for (uint32_t i = 0; i < params; i++)
            frozen[i] = kind == ALTERNATE     ? i % 2 == 0
                        : kind == OTHERS      ? i % 2 == 1
                        : kind == FIRST_UNITS ? i < params - top
                                              : i + 1 < params;
        compare_frozen(&f, &whole, frozen);
        fixture_close(&f), fixture_close(&whole);
    }
}
