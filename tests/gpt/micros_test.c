/* Several micro-batches in each use of a unit: losses and gradients are those of passes of their own, with every way of recomputation, for
 * several architectures, with a vocabulary in blocks, in every type. What waits between units takes memory for each of them, and the
 * rest once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/fake_engine.h"

enum {
    LAYERS = 3,
    WIDTH = 24,
    INNER = 40,
    CONTEXT = 21,
    BATCH = 2,
    ROWS = BATCH * CONTEXT,
    MICROS = 3,
    THREADS = 2
};

static const struct gpt_config gpt2 = {.layers = LAYERS,
                                       .width = WIDTH,
                                       .heads = 3,
                                       .context = CONTEXT,
                                       .vocab = 11,
                                       .inner = INNER,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2};

static struct gpt_config llama_of(struct gpt_config c) {
    c.architecture = GPT_LLAMA;
    c.kv_heads = 1, c.head_width = 6, c.rope.theta = 100;
    return c;
}

static struct gpt_config qwen3_of(struct gpt_config c) {
    c = llama_of(c);
    c.architecture = GPT_QWEN3, c.window = 5, c.window_from = 1;
    return c;
}

/* Two steps: nothing may remain of the first. */
static void train_in_uses(struct fixture *f, double loss[MICROS]) {
    for (int step = 0; step < 2; step++) {
        fake_engine_next_step(f->engine);
        CHECK_INT(gpt_train(f->gpt, f->tokens, f->targets, loss), ZERO_OK);
    }
}

static void train_in_passes(struct fixture *f, const struct fixture *tokens, double loss[MICROS]) {
    fake_engine_next_step(f->engine);
    for (int m = 0; m < MICROS; m++)
        CHECK_INT(gpt_train(f->gpt, tokens->tokens + m * ROWS, tokens->targets + m * ROWS, &loss[m]),
                  ZERO_OK);
}

static int same_gradients(const struct fixture *a, const struct fixture *b) {
    int same = 1;
    const char *name;
    for (uint32_t i = 0; same && (name = fake_engine_name(a->engine, i)); i++)
        same = CHECK_BYTES(fake_engine_grad(a->engine, name), fake_engine_grad(b->engine, name),
                           fake_engine_count(a->engine, name) * sizeof(float));
    return same;
}

static void same_bits(zero_dtype dtype, struct gpt_config config) {
    static const zero_tier tiers[] = {ZERO_DEVICE, ZERO_CPU, ZERO_DEVICE, ZERO_NVME, ZERO_NVME};
    for (int way = 0; way < 5; way++) {
        struct fixture uses, passes;
        double loss[MICROS], expected[MICROS], evaluated;
        config.recompute = way < 3 ? (uint32_t)way : (uint32_t)way - 2;
        config.checkpoints = tiers[way];
        config.micros = 0;
        fixture_open(dtype, &passes, config, BATCH, THREADS, 4);
        config.micros = MICROS;
        fixture_open(dtype, &uses, config, BATCH, THREADS, 4);
        train_in_uses(&uses, loss);
        train_in_passes(&passes, &uses, expected);
        int same = same_gradients(&uses, &passes);
        for (int m = 0; m < MICROS; m++) same &= CHECK_DOUBLE(loss[m], expected[m], 0);
        /* of tokens whose loss is not in the memory that is read */
        CHECK_INT(gpt_evaluate(uses.gpt, uses.tokens + ROWS, uses.targets + ROWS, 0, &evaluated), ZERO_OK);
        same &= CHECK_DOUBLE(evaluated, expected[1], 0);
        uses.tokens[MICROS * ROWS - 1] =
            11; /* outside of the vocabulary: found before any call of the engine */
        CHECK_INT(gpt_train(uses.gpt, uses.tokens, uses.targets, loss), ZERO_E_ARGUMENT);
        if (!same)
            fprintf(stderr, "in %s, type %d, segments of %u, tier %d, blocks of %u\n", gpt_title(&config),
                    dtype, config.recompute, config.checkpoints, config.vocab_block);
        fixture_close(&uses);
        fixture_close(&passes);
    }
}

static void models(zero_dtype dtype) {
    struct gpt_config blocks = gpt2;
    blocks.vocab_block = 4;
    same_bits(dtype, gpt2);
    same_bits(dtype, llama_of(blocks));
    if (dtype != ZERO_F32) return;
    same_bits(dtype, qwen3_of(gpt2));
    same_bits(dtype, llama_of(gpt2));
    same_bits(dtype, blocks);
}

/* ---- memory ---- */

/* An array of fp32: on lines of its own, and five lines apart from the next. */
static uint64_t array(uint64_t elements) { return (elements * 4 + 63) / 64 * 64 + 5 * 64; }

static uint64_t bytes_of(struct gpt_config config, uint32_t micros, uint64_t *out_cpu) {
    config.micros = micros;
    return gpt_activation_bytes(&config, BATCH, THREADS, ZERO_F32, out_cpu);
}

/* A micro-batch more: the residual stream before each block that is kept and before the head, the stream's gradient, the loss; what
 * blocks leave, but not if each is computed again in its backward. */
static void memory(void) {
    struct gpt_config c = gpt2;
    uint64_t cpu[3], stream = array(ROWS * WIDTH), pointers = array((LAYERS + 1) * 2),
                     gradient = array(64 * WIDTH);
    uint64_t left = 2 * stream + array(ROWS * 3 * WIDTH) + array(ROWS * INNER) + array(BATCH * 3 * CONTEXT) +
                    4 * array(ROWS);
    for (c.recompute = 0; c.recompute <= 2; c.recompute++)
        for (int on_cpu = 0; on_cpu <= (c.recompute > 0); on_cpu++) {
            c.checkpoints = on_cpu ? ZERO_CPU : ZERO_DEVICE;
            uint64_t one = bytes_of(c, 1, &cpu[0]), two = bytes_of(c, 2, &cpu[1]),
                     three = bytes_of(c, 3, &cpu[2]);
            uint32_t blocks = c.recompute == 0 ? LAYERS : c.recompute == 1 ? 0 : 2;
            uint64_t more = three - two, rest = array(2 * ROWS) + 2 * array(ROWS);
            CHECK_INT(two - one, more);
            more -= blocks * left + (LAYERS + 1) * stream + gradient + rest + pointers;
            CHECK(more < 4096); /* lists of addresses */
            for (int m = 0; m < 3; m++)
                CHECK_INT(cpu[m], on_cpu ? (m + 1) * (c.recompute == 1 ? 3 : 2) * stream : 0);
        }
}

int main(void) {
    models(ZERO_F32);
    models(ZERO_F16);
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    if (!gpt_engine_problem(engine)) models(ZERO_BF16); /* a processor that has bf16 */
    zero_engine_destroy(engine);
    memory();
    return check_end();
}
