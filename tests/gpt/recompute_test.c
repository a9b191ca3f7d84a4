/* Recomputation of blocks: the same bits as without it, as many repeated forwards as there are blocks before the last
 * segment, and the bytes that the formula gives. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/gpt/checks.h"
#include "tests/gpt/fake_engine.h"

enum { LAYERS = 5, WIDTH = 24, INNER = 40, CONTEXT = 37, BATCH = 3, ROWS = BATCH * CONTEXT };

static const struct gpt_config gpt2 = {.layers = LAYERS,
                                       .width = WIDTH,
                                       .heads = 3,
                                       .context = CONTEXT,
                                       .vocab = 11,
                                       .inner = INNER,
                                       .tied = true,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2};

static struct gpt_config llama_of(struct gpt_config c) {
    c.architecture = GPT_LLAMA;
    c.kv_heads = 1, c.head_width = 6, c.rope.theta = 100;
    return c;
}

static void same_bits(zero_dtype dtype, struct gpt_config config) {
    uint64_t count;
    float *expected = check_train(dtype, config, BATCH, 2, &count);
    for (config.recompute = 1; config.recompute <= LAYERS + 1; config.recompute++) {
        config.checkpoints = (zero_tier)(config.recompute % ZERO_TIERS);
        float *got = check_train(dtype, config, BATCH, 2, &count);
        if (!CHECK_BYTES(got, expected, count * sizeof *got))
            fprintf(stderr, "with segments of %u\n", config.recompute);
        free(got);
    }
    free(expected);
}

static void forwards(struct gpt_config config) {
    static const uint64_t expected[] = {0, 4, 4, 3, 4, 0, 0}; /* all before the last segment: of 5 blocks */
    for (config.recompute = 0; config.recompute <= LAYERS + 1; config.recompute++) {
        struct fixture f;
        double loss;
        fixture_open(ZERO_F32, &f, config, BATCH, 1, 1);
        CHECK_INT(gpt_evaluate(f.gpt, f.tokens, f.targets, 0, &loss), ZERO_OK);
        CHECK_INT(fake_engine_recomputed(f.engine), 0);
        CHECK_INT(gpt_train(f.gpt, f.tokens, f.targets, &loss), ZERO_OK);
        CHECK_INT(fake_engine_recomputed(f.engine), expected[config.recompute]);
        fixture_close(&f);
    }
}

/* An array of fp32: on lines of its own, and five lines apart from the next. */
static uint64_t array(uint64_t elements) { return (elements * 4 + 63) / 64 * 64 + 5 * 64; }

/* The arrays that a block keeps besides the residual stream: the middle, attention's inputs and output, the MLP's, a
 * number per head and row, and each norm's statistics. */
static uint64_t left_by_block(const struct gpt_config *c) {
    bool llama = c->architecture == GPT_LLAMA;
    uint64_t query = llama ? 3 * 6 : WIDTH, key = llama ? 6 : WIDTH, statistics = llama ? 1 : 2;
    return array(ROWS * WIDTH) + array(ROWS * (query + 2 * key)) + array(ROWS * query) +
           array(ROWS * (llama ? 2 : 1) * INNER) + array(BATCH * 3 * CONTEXT) + 2 * statistics * array(ROWS);
}

static void reserved(struct gpt_config config, uint64_t out[ZERO_TIERS]) {
    struct fixture f;
    fixture_open(ZERO_F32, &f, config, BATCH, 1, 1);
    for (int t = 0; t < ZERO_TIERS; t++) out[t] = fake_engine_reserved(f.engine, (zero_tier)t);
    fixture_close(&f);
}

/* Without: the stream before each block and the head, and what all blocks leave. With segments of k: the stream before
 * each segment and the head, and within one segment; and what k blocks leave. */
static void bytes(struct gpt_config config) {
    static const uint64_t segments[] = {0, 5, 3, 2, 2, 1, 1}, within[] = {0, 0, 1, 2, 3, 4, 4};
    uint64_t all[ZERO_TIERS], some[ZERO_TIERS], residual = array(ROWS * WIDTH);
    reserved(config, all);
    for (config.recompute = 1; config.recompute <= LAYERS + 1; config.recompute++)
        for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
            uint32_t k = config.recompute, places = k < LAYERS ? k : LAYERS;
            config.checkpoints = on_cpu ? ZERO_CPU : ZERO_DEVICE;
            reserved(config, some);
            CHECK_INT(some[ZERO_CPU], on_cpu ? segments[k] * residual : 0);
            CHECK_INT(all[ZERO_DEVICE] - some[ZERO_DEVICE] - some[ZERO_CPU],
                      (LAYERS - places) * left_by_block(&config) +
                          (LAYERS - segments[k] - within[k]) * residual);
        }
    CHECK_INT(all[ZERO_CPU], 0);
}

/* On the drive: the stream before each segment but the last. Each is stored once and fetched once per pass; below the lowest trained
 * block, and in evaluations, none is. */
static uint64_t page(uint64_t elements) { return (elements * 4 + 4095) / 4096 * 4096; }

static void drive(struct gpt_config config, uint32_t trained) {
    static const uint64_t segments[] = {0, 5, 3, 2, 2, 1, 1};
    static const int32_t tokens[ROWS];
    config.checkpoints = ZERO_NVME;
    for (config.recompute = 1; config.recompute <= LAYERS + 1; config.recompute++) {
        zero_engine *engine = fake_engine_create(ZERO_F32, 1, 1);
        struct gpt *gpt;
        double loss;
        uint64_t lowest = (LAYERS - trained) / config.recompute, last = segments[config.recompute] - 1,
                 moved = lowest < last ? last - lowest : 0;
        if (trained < LAYERS) fake_engine_freeze_units(engine, 1 + LAYERS - trained);
        CHECK_INT(gpt_create(engine, &config, BATCH, &gpt), ZERO_OK);
        CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
        CHECK_INT(fake_engine_reserved(engine, ZERO_NVME), last * page(ROWS * WIDTH));
        if (last) CHECK_INT(fake_engine_scratch(engine)->step_stores, moved);
        if (last) CHECK_INT(fake_engine_scratch(engine)->step_fetches, moved);
        for (uint64_t step = 1; step < 3; step++) {
            CHECK_INT(gpt_evaluate(gpt, tokens, tokens, 0, &loss), ZERO_OK);
            fake_engine_next_step(engine);
            CHECK_INT(gpt_train(gpt, tokens, tokens, &loss), ZERO_OK);
            CHECK_INT(fake_engine_stores(engine), step * moved);
            CHECK_INT(fake_engine_fetches(engine), step * moved);
        }
        gpt_destroy(gpt);
        zero_engine_destroy(engine);
    }
}

/* The memory does not grow with the layers, but for lists of addresses. */
static void any_depth(struct gpt_config config) {
    uint64_t cpu;
    config.recompute = 1, config.checkpoints = ZERO_NVME;
    for (config.micros = 1; config.micros <= 4; config.micros += 3) {
        config.layers = 8;
        uint64_t few = gpt_activation_bytes(&config, BATCH, 1, ZERO_F32, &cpu);
        CHECK_INT(cpu, 0);
        config.layers = 64;
        uint64_t many = gpt_activation_bytes(&config, BATCH, 1, ZERO_F32, &cpu),
                 lists = 56 * config.micros * (sizeof(void *) + 20 * sizeof(void *));
        CHECK(many > few && many - few < lists);
    }
}

int main(void) {
    same_bits(ZERO_F32, gpt2);
    same_bits(ZERO_F32, llama_of(gpt2));
    same_bits(ZERO_F16, gpt2);
    same_bits(ZERO_F16, llama_of(gpt2));
    zero_engine *engine = fake_engine_create(ZERO_BF16, 1, 1);
    if (!gpt_engine_problem(engine)) { /* a processor that has bf16 */
        same_bits(ZERO_BF16, gpt2);
        same_bits(ZERO_BF16, llama_of(gpt2));
    }
    zero_engine_destroy(engine);
    forwards(gpt2);
    drive(gpt2, LAYERS);
    drive(gpt2, 3);
    drive(gpt2, 0);
    any_depth(gpt2);
    bytes(gpt2);
    bytes(llama_of(gpt2));
    return check_end();
}
