/* The embedding and the head by blocks of the vocabulary: losses, logits and gradients are those of whole units, up to the
 * rounding of sums in another order. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/fake_engine.h"

/* The parameter of the whole model that `name` is, or is a block of; *out_first: the block's first element. */
static const char *whole_name(const struct gpt_config *c, const char *name, char out[128],
                              uint64_t *out_first) {
    const char *end = strstr(name, "weight.");
    snprintf(out, 128, "%.*s", end ? (int)(end + 6 - name) : 127, name);
    *out_first = end ? strtoull(end + 7, NULL, 10) * c->vocab_block * c->width : 0;
    return out;
}

static void open_both(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                      struct fixture *blocks, struct fixture *whole) {
    char name[128];
    uint64_t first;
    fixture_open(dtype, blocks, config, batch, threads, 4);
    config.vocab_block = 0;
    fixture_open(dtype, whole, config, batch, threads, 4);
    memcpy(blocks->tokens, whole->tokens, batch * config.context * sizeof(int32_t));
    memcpy(blocks->targets, whole->targets, batch * config.context * sizeof(int32_t));
    for (uint32_t i = 0; fake_engine_name(blocks->engine, i); i++) {
        const char *part = fake_engine_name(blocks->engine, i);
        const float *from = fake_engine_param(whole->engine, whole_name(&blocks->config, part, name, &first));
        if (!CHECK(from)) return;
        memcpy(fake_engine_param(blocks->engine, part), from + first,
               fake_engine_count(blocks->engine, part) * sizeof(float));
    }
}

static void check_grads(struct fixture *blocks, struct fixture *whole, double most) {
    char name[128];
    uint64_t first, parts = 0;
    for (uint32_t i = 0; fake_engine_name(blocks->engine, i); i++) {
        const char *part = fake_engine_name(blocks->engine, i);
        const float *expected =
            fake_engine_grad(whole->engine, whole_name(&blocks->config, part, name, &first));
        const float *grad = fake_engine_grad(blocks->engine, part);
        uint64_t count = fake_engine_count(blocks->engine, part);
        double off = check_distance(grad, expected + first, 1, count);
        bool same = !memcmp(grad, expected + first, count * sizeof *grad); /* of rows without a token: 0 */
        if (!CHECK(same || off <= most)) fprintf(stderr, "gradient of %s is off by %.3g\n", part, off);
        parts += first > 0;
    }
    CHECK_INT(parts, (gpt_vocab_blocks(&blocks->config) - 1) * (blocks->config.tied ? 1 : 2));
}

/* `most`: of a gradient's distance. A second micro-step adds. */
static void same_training(zero_dtype dtype, struct gpt_config config, uint32_t batch, uint32_t threads,
                          double most_loss, double most) {
    struct fixture blocks, whole;
    double loss = 0, expected = 0;
    open_both(dtype, config, batch, threads, &blocks, &whole);
    for (int micro = 0; micro < 2; micro++) {
        CHECK_INT(gpt_train(blocks.gpt, blocks.tokens, blocks.targets, &loss), ZERO_OK);
        CHECK_INT(gpt_train(whole.gpt, whole.tokens, whole.targets, &expected), ZERO_OK);
        CHECK_DOUBLE(loss, expected, most_loss);
        check_grads(&blocks, &whole, most);
    }
    CHECK_INT(gpt_evaluate(blocks.gpt, blocks.tokens, blocks.targets, 0, &expected), ZERO_OK);
    CHECK_DOUBLE(expected, loss, 0);
    fixture_close(&blocks), fixture_close(&whole);
}

static void same_logits(struct gpt_config config) {
    struct fixture blocks, whole;
    float logits[64], expected[64];
    open_both(ZERO_F32, config, 2, 1, &blocks, &whole);
    for (uint32_t length = 1; length <= config.context; length += 3) {
        CHECK_INT(gpt_next_logits(blocks.gpt, blocks.tokens, length, 0, logits), ZERO_OK);
        CHECK_INT(gpt_next_logits(whole.gpt, whole.tokens, length, 0, expected), ZERO_OK);
        for (uint32_t v = 0; v < config.vocab; v++) CHECK_DOUBLE(logits[v], expected[v], 1e-5);
    }
    fixture_close(&blocks), fixture_close(&whole);
}

/* Activations shrink with the block, and the last block may be a single row. */
static void less_memory(struct gpt_config config) {
    uint64_t host, whole = gpt_activation_bytes(&config, 4, 2, ZERO_BF16, &host);
    config.vocab = 100001, config.vocab_block = 10000;
    CHECK_INT(gpt_vocab_blocks(&config), 11);
    uint64_t blocks = gpt_activation_bytes(&config, 4, 2, ZERO_BF16, &host);
    config.vocab_block = 0;
    CHECK_INT(gpt_vocab_blocks(&config), 1);
    CHECK(blocks - whole < (gpt_activation_bytes(&config, 4, 2, ZERO_BF16, &host) - whole) / 8);
}

static void all(struct gpt_config config, bool bf16) {
    same_training(ZERO_F32, config, 2, 1, 1e-6, 1e-6);
    same_training(ZERO_F32, config, 3, 2, 1e-6, 1e-6);
    same_training(ZERO_F16, config, 2, 1, 1e-6,
                  0x1p-9); /* a head's gradient is rounded at the end of each use */
    if (bf16) same_training(ZERO_BF16, config, 2, 2, 1e-6, 0x1p-6);
    check_bits(ZERO_F32, config, 2, 2, 2);
    check_frozen(ZERO_F32, config, 2, 7);
    same_logits(config);
    less_memory(config);
}

int main(void) {
    struct gpt_config gpt2 = {.layers = 2,
                              .width = 24,
                              .heads = 3,
                              .context = 7,
                              .vocab = 11,
                              .inner = 40,
                              .tied = true,
                              .vocab_block = 4,
                              .layer_norm_epsilon = 1e-5,
                              .initializer_range = 0.2};
    struct gpt_config own = gpt2, llama, strips = gpt2;
    own.tied = false, own.vocab_block = 5; /* the last block has one row */
    llama = own;
    llama.architecture = GPT_LLAMA, llama.kv_heads = 1, llama.rope.theta = 1e4, llama.heads = 4;
    strips.layers = 1, strips.width = 6, strips.inner = 10, strips.context = 141, strips.tied = false;
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    bool bf16 = !gpt_engine_problem(engine);
    zero_engine_destroy(engine);
    all(gpt2, bf16);
    all(own, bf16);
    all(llama, bf16);
    same_training(ZERO_F32, strips, 9, 2, 1e-6, 1e-6); /* ten tiles: two groups */
    return check_end();
}
