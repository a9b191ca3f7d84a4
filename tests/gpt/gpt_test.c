/* GPT-2 as a whole (checks.h), and what is refused. Sizes are odd on purpose: no multiple of a vector, several strips of
 * attention, several tiles. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/numbers/convert.h"
#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/fake_engine.h"

static float *train_once(struct gpt_config config, uint32_t batch, uint32_t threads, uint64_t *out_count) {
    return check_train(ZERO_F32, config, batch, threads, out_count);
}

static float rounded(float x) { return f32_from_f16(f16_from_f32(x)); }

/* From weights that fp16 has, gradients are those of fp32, rounded once (a tied weight's once per use): what is beyond 65,519 is
 * infinite, never a large number or NaN, so that the engine sees it. */
static void fp16_rounds_once(struct gpt_config config, uint32_t batch, float scale) {
    struct fixture narrow, wide;
    double loss, expected;
    uint64_t infinite = 0;
    fixture_open(ZERO_F16, &narrow, config, batch, 1, scale);
    fixture_open(ZERO_F32, &wide, config, batch, 1, scale);
    for (uint32_t i = 0; fake_engine_name(wide.engine, i); i++) {
        const char *name = fake_engine_name(wide.engine, i);
        float *value = fake_engine_param(wide.engine, name);
        for (uint64_t e = 0; e < fake_engine_count(wide.engine, name); e++) value[e] = rounded(value[e]);
    }
    CHECK_INT(gpt_train(narrow.gpt, narrow.tokens, narrow.targets, &loss), ZERO_OK);
    CHECK_INT(gpt_train(wide.gpt, wide.tokens, wide.targets, &expected), ZERO_OK);
    CHECK_DOUBLE(loss, expected, 0);
    for (uint32_t i = 0; fake_engine_name(wide.engine, i); i++) {
        const char *name = fake_engine_name(wide.engine, i);
        const float *got = fake_engine_grad(narrow.engine, name),
                    *exact = fake_engine_grad(wide.engine, name);
        for (uint64_t e = 0; e < fake_engine_count(wide.engine, name); e++) {
            infinite += !isfinite(got[e]);
            if (!CHECK_DOUBLE(got[e], rounded(exact[e]), 0)) break;
        }
    }
    CHECK(infinite > 0 || scale < 0x1p16f);
    fixture_close(&narrow), fixture_close(&wide);
}

/* Ranks may be threads of one process: two at once leave each other's bits alone. */
struct rank {
    struct gpt_config config;
    const float *expected;
};

static void *run_rank(void *context) {
    struct rank *rank = context;
    uint64_t count;
    for (int i = 0; i < 3; i++) {
        float *all = train_once(rank->config, 2, 1, &count);
        CHECK_BYTES(all, rank->expected, count * sizeof(float));
        free(all);
    }
    return NULL;
}

static void ranks_are_apart(struct gpt_config a, struct gpt_config b) {
    uint64_t count;
    float *expected[2] = {train_once(a, 2, 1, &count), train_once(b, 2, 1, &count)};
    struct rank rank[2] = {{a, expected[0]}, {b, expected[1]}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) CHECK_INT(pthread_create(&thread[i], NULL, run_rank, &rank[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    free(expected[0]), free(expected[1]);
}

static void mistakes_are_refused(struct gpt_config config) {
    struct fixture f;
    double loss;
    fixture_open(ZERO_F32, &f, config, 2, 1, 1);
    CHECK(fake_engine_reserved(f.engine, ZERO_DEVICE) > 0);
    f.tokens[3] = (int32_t)config.vocab;
    CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_E_ARGUMENT);
    f.tokens[3] = 0, f.targets[0] = GPT_NEXT_DOCUMENT - 1;
    CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &loss), ZERO_E_ARGUMENT);
    fixture_close(&f);
    struct gpt *gpt = NULL;
    config.heads = 5;
    CHECK_CONTAINS(gpt_config_problem(&config), "multiple");
    CHECK_INT(gpt_create(NULL, &config, 1, &gpt), ZERO_E_ARGUMENT);
    CHECK(gpt == NULL);
}

int main(void) {
    struct gpt_config odd = {.layers = 2,
                             .width = 24,
                             .heads = 3,
                             .context = 7,
                             .vocab = 11,
                             .inner = 40,
                             .tied = true,
                             .layer_norm_epsilon = 1e-5,
                             .initializer_range = 0.2};
    struct gpt_config own = odd, strips = odd, cut = odd;
    own.tied = false;
    /* so wide that products of few rows are cut by columns */
    cut.width = 1024, cut.layers = 1, cut.heads = 16, cut.context = 2;
    /* three strips of attention; with batch 9, ten tiles: two groups in the head */
    strips.layers = 1, strips.width = 6, strips.inner = 10, strips.context = 141, strips.tied = false;
    check_gradients(odd, 2, 1);
    check_gradients(own, 2, 2);
    check_gradients(own, 1, 5); /* more threads than tiles */
    check_gradients(strips, 9, 2);
    check_frozen(ZERO_F32, odd, 2, 16);
    check_frozen(ZERO_F32, strips, 9, 16);
    check_logits(odd, 2, 2);
    check_logits(own, 2, 1);
    check_logits(strips, 1, 2);
    check_logits(cut, 1, 2);
    check_copies(cut, 300, 2); /* 600 rows are not cut */
    struct gpt_config wide = {.layers = 2,
                              .width = 192,
                              .heads = 3,
                              .context = 200,
                              .vocab = 256,
                              .inner = 768,
                              .tied = true,
                              .layer_norm_epsilon = 1e-5,
                              .initializer_range = 0.02};
    check_bits(ZERO_F32, wide, 9, 2, 5); /* 15 tiles: two groups in the head */
    check_bits(ZERO_F32, own, 2, 1, 1);
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    if (!gpt_engine_problem(engine)) { /* a processor that has bf16 */
        check_narrow(ZERO_BF16, odd, 2, 1);
        check_narrow(ZERO_BF16, own, 1, 5);
        check_narrow(ZERO_BF16, strips, 9, 2);
        check_frozen(ZERO_BF16, odd, 2, 16);
        check_bits(ZERO_BF16, wide, 9, 2, 5);
    }
    zero_engine_destroy(engine);
    check_narrow(ZERO_F16, odd, 2, 1);
    check_narrow(ZERO_F16, own, 1, 5);
    check_narrow(ZERO_F16, strips, 9, 2);
    check_frozen(ZERO_F16, odd, 2, 16);
    check_bits(ZERO_F16, wide, 9, 2, 5);
    fp16_rounds_once(own, 2, 0x1p22f);
    fp16_rounds_once(strips, 9, 4);
    ranks_are_apart(odd, wide);
    mistakes_are_refused(odd);
    struct gpt_config small = {
        .layers = 12, .width = 768, .heads = 12, .context = 1024, .vocab = 50257, .tied = true};
    small.inner = 3072;
    CHECK_INT(gpt_parameters(&small), 124439808); /* GPT-2 small */
    CHECK_DOUBLE(gpt_flops_per_token(&small), 6 * 123532032. + 12 * 12 * 512.5 * 768, 1e-3);
    return check_end();
}
