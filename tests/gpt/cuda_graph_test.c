/* Training with the engine on a GPU whose units are replayed as CUDA graphs: every loss, logit and weight is, bit by bit, that of
 * training without, while all changes that a graph's arguments depend on: batches and lengths, the scale of the loss,
 * overwritten and added gradients, recomputation, weights put in between. On the stand-ins of tests/cuda it is counted what
 * was replayed. Runs there, or on a GPU. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/counts.h"
#include "tests/engine/ranks.h"
#include "tests/sanitized.h"
#include "tests/seeds.h"
#include "tools/gpt/gpt.h"

/* FEW_STEPS: where all that can differ does in the first step, and the second one goes on after it. */
enum {
    STEPS = 5,
    FEW_STEPS = 2,
    MICRO_STEPS = 3,
    BATCH = 2,
    CONTEXT = 8,
    VOCAB = 11,
    EXTRAS = 2,
    RANKS_MAX = 2
};

static const struct gpt_config gpt2 = {.layers = 2,
                                       .width = 16,
                                       .heads = 2,
                                       .context = CONTEXT,
                                       .vocab = VOCAB,
                                       .inner = 24,
                                       .tied = true,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2};

struct setup {
    const char *name, *keys;
    struct gpt_config config;
    uint32_t ranks;
};

struct result {
    double loss[STEPS][MICRO_STEPS + EXTRAS];
    float logits[STEPS][EXTRAS][VOCAB];
    float scale[STEPS];
    char hash[33];
    uint64_t graphs; /* launched in the last step's micro-steps, by all ranks */
};

struct trial {
    const struct setup *setup;
    bool no_graphs;
    uint32_t steps;
    struct result of[RANKS_MAX];
};

/* Rows of their own for each rank, step and micro-step. */
static void fill_tokens(int32_t tokens[BATCH * CONTEXT + 1], uint32_t seed) {
    for (uint32_t i = 0; i <= BATCH * CONTEXT; i++)
        tokens[i] = (int32_t)((i * i + 7 * seed + i * seed) % VOCAB);
}

static void train(struct gpt *gpt, uint32_t rank, uint32_t step, struct result *out) {
    int32_t tokens[BATCH * CONTEXT + 1];
    struct fake_cuda_counts before, after;
    counts_read(&before);
    for (uint32_t micro = 0; micro < MICRO_STEPS; micro++) {
        fill_tokens(tokens, rank + 3 * step + 31 * micro);
        CHECK_INT(gpt_train(gpt, tokens, tokens + 1, &out->loss[step][micro]), ZERO_OK);
    }
    counts_read(&after);
    out->graphs = after.graphs - before.graphs;
}

/* All but the last two steps are followed by evaluations of all and of some sequences, and by logits of other lengths; a
 * length comes again two steps later. */
static void evaluate(struct gpt *gpt, uint32_t step, struct result *out) {
    int32_t tokens[BATCH * CONTEXT + 1];
    fill_tokens(tokens, 5 + step);
    for (uint32_t e = EXTRAS; e-- > 0;)
        CHECK_INT(gpt_evaluate(gpt, tokens, tokens + 1, 1 + e, &out->loss[step][MICRO_STEPS + e]), ZERO_OK);
    for (uint32_t e = 0; e < EXTRAS; e++)
        CHECK_INT(gpt_next_logits(gpt, tokens, 3 + step % 2 + 2 * e, 0, out->logits[step][e]), ZERO_OK);
}

static void change_weights(zero_engine *engine) {
    float norm[16];
    CHECK_INT(zero_engine_get(engine, "h.1.ln_1.weight", ZERO_PARAM, norm, 0, 16), ZERO_OK);
    for (int i = 0; i < 16; i++) norm[i] *= 1 + 0.1f * (float)i;
    CHECK_INT(zero_engine_put(engine, "h.1.ln_1.weight", ZERO_PARAM, norm, 0, 16), ZERO_OK);
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct trial *t = user;
    struct result *out = &t->of[rank];
    struct gpt_config config = t->setup->config;
    struct gpt *gpt = NULL;
    config.no_graphs = t->no_graphs;
    struct gpt_init init = {.seed = 1, .config = config};
    if (!CHECK(engine) || !CHECK_INT(gpt_create(engine, &config, BATCH, &gpt), ZERO_OK)) {
        fprintf(stderr, "%s%s\n", zero_last_error(), gpt_last_error());
        return;
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, gpt_fill, &init), ZERO_OK);
    for (uint32_t step = 0; step < t->steps; step++) {
        out->scale[step] = zero_engine_loss_scale(engine);
        train(gpt, rank, step, out);
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
        if (step + 2 < STEPS) evaluate(gpt, step, out);
        if (step == 1 && config.architecture == GPT_GPT2) change_weights(engine);
    }
    CHECK_INT(zero_engine_hash(engine, out->hash), ZERO_OK);
    gpt_destroy(gpt);
}

static void run(const struct setup *s, uint32_t steps, bool no_graphs, struct trial *out) {
    char json[1024];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"device\": {\"type\": "
        "\"cuda\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, %s}",
        MICRO_STEPS, s->keys);
    *out = (struct trial){.setup = s, .no_graphs = no_graphs, .steps = steps};
    ranks_run(s->ranks, json, body, out);
}

/* Units of a micro-step of training: embedding, blocks and head forward and back, without the head's forward, and what is
 * computed again. */
static uint32_t phases_of(const struct gpt_config *c) {
    uint32_t again = c->recompute ? (c->layers - 1) / c->recompute * c->recompute : 0;
    return 3 + 2 * c->layers + again;
}

static void check_equal(const struct setup *s, const struct trial *expected_of, const struct trial *got_of) {
    for (uint32_t r = 0; r < s->ranks; r++) {
        const struct result *expected = &expected_of->of[r], *got = &got_of->of[r];
        CHECK_BYTES(got->loss, expected->loss, sizeof got->loss);
        CHECK_BYTES(got->logits, expected->logits, sizeof got->logits);
        CHECK_BYTES(got->scale, expected->scale, sizeof got->scale);
        CHECK_STRING(got->hash, expected->hash);
        CHECK_INT(expected->graphs, 0);
    }
}

/* A short run only repeats the training of two ranks without graphs, which has fp16, offload and recomputation; under a sanitizer it
 * repeats none. */
static bool is_compared(const struct setup *s) {
    return seeds_divisor() == 1 || (!SANITIZED && s->ranks > 1);
}

static void same(const struct setup *s) {
    static struct trial plain, graphs;
    struct fake_cuda_counts ignored;
    bool counted = counts_read(&ignored);
    int failures = check_failures;
    run(s, STEPS, false, &graphs);
    if (is_compared(s)) {
        run(s, STEPS, true, &plain);
        check_equal(s, &plain, &graphs);
    }
    if (counted && s->ranks == 1) /* all that recurs is replayed, as one graph a phase */
        CHECK_INT(graphs.of[0].graphs, MICRO_STEPS * phases_of(&s->config));
    if (counted && s->ranks > 1) CHECK(graphs.of[0].graphs > 0);
    if (check_failures != failures) fprintf(stderr, "in %s\n", s->name);
}

/* Weights that adjoin are multiplied together: a layout that is the same at every stage and tier, and so are the bits. With this
 * threshold keys and values adjoin, and queries are apart from them. */
static void same_at_the_extremes(struct gpt_config config, uint32_t ranks) {
    static const char *const places[] = {"\"stage\": 0",
                                         "\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}, "
                                         "\"offload_param\": {\"device\": \"cpu\"}"};
    static struct trial first, other;
    char keys[256];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(keys, sizeof keys,
                 "\"gradient_accumulation_mode\": \"every\", \"zero_optimization\": {%s, "
                 "\"stage3_param_persistence_threshold\": 200}",
                 places[i]);
        struct setup s = {places[i], keys, config, ranks};
        run(&s, FEW_STEPS, false, i ? &other : &first);
        if (i) CHECK_STRING(other.of[0].hash, first.of[0].hash);
    }
}

/* Without graphs from where none can be made: variables of the stand-in refuse them. */
static void go_on(const struct setup *s) {
    static const struct {
        const char *variable, *value;
    } refused[] = {{"FAKE_CUDA_CAPTURES", "0"}, {"FAKE_CUDA_CAPTURES", "2"}, {"FAKE_CUDA_GRAPHS", "3"}};
    static struct trial plain, without;
    struct fake_cuda_counts ignored;
    if (!counts_read(&ignored)) return; /* a GPU */
    run(s, FEW_STEPS, true, &plain);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int failures = check_failures;
        setenv(refused[i].variable, refused[i].value, 1);
        run(s, FEW_STEPS, false, &without);
        unsetenv(refused[i].variable);
        check_equal(s, &plain, &without);
        CHECK_INT(without.of[0].graphs, 0);
        if (check_failures != failures)
            fprintf(stderr, "with %s=%s\n", refused[i].variable, refused[i].value);
    }
}

static struct gpt_config recomputed(struct gpt_config c) {
    c.recompute = 1;
    return c;
}

int main(void) {
    struct gpt_config llama = gpt2;
    llama.architecture = GPT_LLAMA, llama.rope.theta = 100, llama.kv_heads = 1, llama.tied = false;
    const struct setup setups[] = {
        {"bf16", "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 0}", gpt2, 1},
        {"fp32, Llama, again", "\"zero_optimization\": {\"stage\": 1}", recomputed(llama), 1},
        {"fp16, a scale that grows, stage 3, offload, again",
         "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, \"loss_scale_window\": 2}, "
         "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
         "\"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}}",
         recomputed(gpt2), 2},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) same(&setups[i]);
    same_at_the_extremes(llama, 2);
    go_on(&setups[0]);
    return check_end();
}
