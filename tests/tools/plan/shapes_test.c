/* Shapes: parameters as published, arithmetic and memory as tools/gpt has them. */
#include "tools/plan/shapes.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/gpt/fake_engine.h"
#include "tools/gpt/gpt.h"

/* As transformers counts the models of these names; the others are in literature_test. */
static void parameters_are_as_published(void) {
    static const struct {
        const char *name;
        int64_t parameters;
    } rows[] = {{"gpt2", 124439808},          {"gpt2-medium", 354823168},   {"GPT2-Large", 774030080},
                {"gpt2-xl", 1557611200},      {"llama-2-7b", 6738415616},   {"llama-2-13b", 13015864320},
                {"llama-3.2-1b", 1235814400}, {"llama-3.2-3b", 3212749824}, {"llama-3.1-405b", 405853388800},
                {"smollm2-135m", 134515008},  {"smollm2-360m", 361821120},  {"smollm2-1.7b", 1711376384},
                {"mistral-7b", 7241732096},   {"qwen2.5-0.5b", 494032768},  {"qwen2.5-1.5b", 1543714304},
                {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},   {"qwen2.5-14b", 14770033664},
                {"qwen2.5-32b", 32763876352}, {"qwen2.5-72b", 72706203648}, {"qwen3-0.6b", 596049920},
                {"qwen3-1.7b", 1720574976},   {"qwen3-4b", 4022468096},     {"qwen3-8b", 8190735360},
                {"qwen3-14b", 14768307200},   {"qwen3-32b", 32762123264},   {"llama-3-8b", 8030261248},
                {"llama-3-70b", 70553706496}, {"70b", 68976648192},         {"mpt-7b", 6658859008},
                {"mpt-70b", 64862437376}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_INT(shapes_parameters(shapes_find(rows[i].name)), rows[i].parameters);
    CHECK(!shapes_find("gpt3"));
}

static struct gpt_config as_gpt(const struct shapes *s) {
    return (struct gpt_config){.architecture = s->architecture,
                               .kv_heads = (uint32_t)s->kv_heads,
                               .head_width = (uint32_t)s->head_width,
                               .rope = {.theta = 10000},
                               .inner = (uint32_t)s->inner,
                               .layers = (uint32_t)s->layers,
                               .width = (uint32_t)s->width,
                               .heads = (uint32_t)s->heads,
                               .context = (uint32_t)s->context,
                               .vocab = (uint32_t)s->vocab,
                               .tied = s->tied,
                               .vocab_block = s->vocab_block,
                               .window = s->window,
                               .window_from = s->window_from,
                               .layer_norm_epsilon = 1e-5,
                               .initializer_range = 0.02};
}

static const struct shapes small[] = {
    {"demo", "", GPT_GPT2, 6, 384, 6, 0, 256, 256, 0, true, 0, 0, 0, 0},
    {"wide", "", GPT_GPT2, 2, 512, 8, 0, 128, 5000, 0, false, 0, 0, 0, 0},
    {"llama", "", GPT_LLAMA, 6, 256, 8, 2, 256, 512, 704, false, 0, 0, 0, 0},
    {"cut", "", GPT_GPT2, 2, 512, 8, 0, 128, 5000, 0, true, 0, 1000, 0, 0},
    {"odd", "", GPT_LLAMA, 6, 256, 8, 2, 256, 513, 704, false, 0, 256, 0, 0},
    {"windows", "", GPT_QWEN3, 6, 256, 8, 2, 256, 512, 704, false, 40, 0, 64, 2},
    {"biases", "", GPT_QWEN2, 6, 256, 8, 2, 256, 512, 704, true, 0, 0, 0, 0},
    {"deep", "", GPT_GPT2, 12, 128, 4, 0, 512, 256, 0, true, 0, 0, 0, 0},
};

static void arithmetic_is_the_gpt_s(void) {
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        struct gpt_config config = as_gpt(&small[i]);
        double forward = 0;
        for (uint32_t u = 0; u < shapes_units(&small[i]); u++) forward += shapes_forward_flops(&small[i], u);
        CHECK_DOUBLE(3 * forward, gpt_flops_per_token(&config), 1e-12);
        CHECK_INT(shapes_parameters(&small[i]), gpt_parameters(&config));
    }
}

static void check_memory(const struct shapes *s, uint32_t batch, uint32_t threads, zero_dtype dtype,
                         struct shapes_recompute recompute) {
    struct gpt_config config = as_gpt(s);
    config.recompute = recompute.blocks, config.checkpoints = recompute.tier;
    zero_engine *engine = fake_engine_create(dtype, threads, 1);
    struct gpt *gpt = NULL;
    bool refused = gpt_engine_problem(engine);
    if (!refused && CHECK_INT(gpt_create(engine, &config, batch, &gpt), ZERO_OK)) {
        enum dtype type = dtype == ZERO_BF16 ? DTYPE_BF16 : DTYPE_F32;
        uint64_t host, all = shapes_activation_bytes(s, true, type, batch, threads, recompute, &host);
        CHECK_INT(all - host, fake_engine_reserved(engine, ZERO_DEVICE));
        CHECK_INT(host, fake_engine_reserved(engine, ZERO_CPU));
        const zero_scratch_needs *needs = fake_engine_scratch(engine);
        CHECK_INT(shapes_checkpoint_bytes(s, type, batch, recompute), needs ? needs->place_bytes : 0);
    }
    gpt_destroy(gpt);
    zero_engine_destroy(engine);
}

static void memory_is_the_gpt_s(void) {
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (uint32_t threads = 1; threads <= 2; threads++)
            for (uint32_t batch = 4; batch <= 16; batch *= 2)
                for (uint32_t blocks = 0; blocks <= 3; blocks++)
                    check_memory(&small[i], batch, threads, blocks % 2 ? ZERO_F32 : ZERO_BF16,
                                 (struct shapes_recompute){.blocks = blocks,
                                                           .tier = (zero_tier)(blocks % ZERO_TIERS)});
}

static uint64_t on_gpu(const struct shapes *s, struct shapes_recompute recompute, uint64_t *out_host) {
    return shapes_activation_bytes(s, false, DTYPE_BF16, 3, 1, recompute, out_host);
}

/* A block of GPT-2 leaves the stream, the middle, q k v, attention's output and what enters GELU, 10 widths of 2 bytes; a sum
 * per head; and of two norms two numbers. Korthikanti et al. 2022, equation 1, has 16 widths without masks and scores: what
 * the norms and GELU give is made again here. cuda_shapes_test holds all of it to what is reserved. */
static void gpus_are_counted_by_hand(void) {
    enum { ROWS = 3000, WIDTH = 1024 };
    struct shapes s = {"x", "", GPT_GPT2, 10, WIDTH, 16, 0, 1000, 512, 0, true, 0, 0, 0, 0};
    const struct shapes_recompute none = {0}, every = {.blocks = 1}, four = {.blocks = 4},
                                  far = {.blocks = 4, .tier = ZERO_CPU};
    uint64_t host, plain = on_gpu(&s, none, &host), stream = 2ull * ROWS * WIDTH, near_host;
    uint64_t numbers = (4ull * ROWS + 255) / 256 * 256; /* one per row, in whole lines */
    uint64_t left = 10 * stream + 4ull * ROWS * 16 + 4 * numbers;
    s.layers = 11;
    CHECK_INT(on_gpu(&s, none, &host) - plain, left);
    uint64_t recomputed = on_gpu(&s, every, &host);
    s.layers = 12;
    CHECK_INT(on_gpu(&s, every, &host) - recomputed, stream);
    /* Three inputs in place of twelve, and four blocks' in place of one's, whose inputs within share three places. */
    uint64_t one = on_gpu(&s, every, &host), all = on_gpu(&s, four, &near_host);
    CHECK_INT(all - one, 3 * (left - stream) - 6 * stream);
    /* The first of the three is in host memory, the others in two slots. */
    CHECK_INT(on_gpu(&s, far, &host), all);
    CHECK_INT(host - near_host, stream);
}

/* In vertical order every further micro-batch adds, where checkpoints are, the streams before each block and before the head, and at
 * most a gradient; and in pinned memory a batch and the losses of its rows. What a block leaves exists once, because its backward computes
 * it again; without recomputation each micro-batch has its own. */
static void micro_batches_are_counted(void) {
    enum { ROWS = 3000, WIDTH = 1024, LAYERS = 10 };
    struct shapes s = {"x", "", GPT_LLAMA, LAYERS, WIDTH, 16, 0, 1000, 512, 0, false, 0, 0, 0, 0};
    const uint64_t stream = 2ull * ROWS * WIDTH, line = (4ull * ROWS + 255) / 256 * 256, fed = 6 * line + 256,
                   streams = (LAYERS + 1) * stream;
    struct shapes_recompute few = {.blocks = 1, .gpu = true, .micros = 6, .tier = ZERO_CPU}, many = few;
    uint64_t few_host, many_host;
    many.micros = 7;
    CHECK_INT(on_gpu(&s, few, &few_host) - few_host, on_gpu(&s, many, &many_host) - many_host);
    CHECK(many_host - few_host >= streams + fed && many_host - few_host <= streams + stream + fed);
    uint64_t waiting = many_host - few_host - fed;
    few.tier = many.tier = ZERO_DEVICE;
    uint64_t device = on_gpu(&s, many, &many_host) - on_gpu(&s, few, &few_host);
    CHECK_INT(many_host - few_host, fed);
    CHECK_INT(device - fed, waiting);
    few.blocks = many.blocks = 0;
    uint64_t left = 2ull * ROWS * (13 * WIDTH) + 4ull * ROWS * 16 + 2 * line;
    device = on_gpu(&s, many, &many_host) - on_gpu(&s, few, &few_host) - fed;
    CHECK(device >= LAYERS * left + streams && device <= LAYERS * left + streams + stream);
}

/* Heads are filled up to tiles of 64, 96 and 128, if they are multiples of 8; wider ones are for hosts alone. */
static void heads_are_filled_up(void) {
    static const struct {
        uint64_t width;
        double fill;
    } heads[] = {{64, 1}, {40, 1.6}, {80, 1.2}, {96, 1}, {112, 128. / 112}, {128, 1}, {20, 0}, {256, 0}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct shapes s = {"x", "", GPT_LLAMA, 2, 1024, 8, 0, 64, 512, 0, true, heads[i].width, 0, 0, 0};
        struct shapes_recompute whole = {.micros = 1};
        bool refused = heads[i].width > 128;
        CHECK_DOUBLE(shapes_attention_fill(&s, DTYPE_BF16), heads[i].fill, 1e-12);
        CHECK_DOUBLE(shapes_attention_fill(&s, DTYPE_F32), 0, 0);
        CHECK(!shapes_problem(&s, true, whole));
        if (CHECK((shapes_problem(&s, false, whole) != NULL) == refused) && refused)
            CHECK_CONTAINS(shapes_problem(&s, false, whole), "heads wider than 128");
    }
}

/* Each architecture of the configuration is one of the GPT. */
static void architectures_are_the_configuration_s(void) {
    uint32_t count = 0;
    for (; config_architecture(count); count++) {
        struct config_model model = {.type = (int)count};
        if (!CHECK(shapes_of(&model).architecture < GPT_ARCHITECTURES))
            fprintf(stderr, "%s\n", config_architecture(count));
    }
    CHECK_INT(count, GPT_ARCHITECTURES);
    struct gpt_config unknown = {.architecture = gpt_architecture_of("mamba")};
    CHECK_CONTAINS(gpt_config_problem(&unknown), "architecture");
}

int main(void) {
    heads_are_filled_up();
    architectures_are_the_configuration_s();
    parameters_are_as_published();
    arithmetic_is_the_gpt_s();
    memory_is_the_gpt_s();
    gpus_are_counted_by_hand();
    micro_batches_are_counted();
    return check_end();
}
