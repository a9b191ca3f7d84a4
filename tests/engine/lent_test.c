/* Parameters in the host program's memory rest there: the plan and the allocation have no second copy, and everything has the bits of
 * a training through slots. The spans are cut at random, so that blocks of a norm, shards and chunks lie across them. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/hash.h"
#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

/* ---- a model whose regions have many blocks, gaps and pieces ---- */

enum { UNITS = 3, PARAMS = 8, STEPS = 3, SPANS = 6, LARGE = 120, STAGING_MOST = 20 << 20 };

static const struct layer {
    uint32_t unit;
    const char *name, *tied_to;
    uint64_t count;
    uint32_t flags;
} layers[PARAMS] = {{0, "in.w", NULL, 9001, 0},
                    {0, "in.b", NULL, 5, ZERO_NO_DECAY},
                    {0, "in.c", NULL, 4096, 0},
                    {1, "mid.w", NULL, 13001, 0},
                    {1, "mid.f", NULL, 17000, ZERO_FROZEN},
                    {1, "mid.b", NULL, 777, ZERO_NO_DECAY},
                    {2, "out.w", "in.w", 9001, 0},
                    {2, "out.b", NULL, 63, 0}};

/* Where the host keeps its arrays. SHARED: its own, to which it adds; a tied parameter is in the owner's. */
enum memory { SLOTS, OWN, ADDED, SHARED, MEMORIES };

struct setup {
    uint32_t ranks, stage, micro_steps;
    enum memory memory;
    uint64_t scale; /* of all counts: LARGE regions are gathered in several rounds */
    uint64_t seed;
    const char *tier, *more; /* more: keys, each after a comma */
    const char *optimizer;   /* NULL: AdamW. Lamb and Muon need more than an element: nothing is lent */
};

struct outcome {
    char hash[33];
    double norm[STEPS];
    uint64_t gradient; /* hash */
    zero_plan plan;
    uint64_t planned, measured, staging;
};

struct host {
    const struct setup *setup;
    struct outcome out;
    zero_engine *engine;
    zero_unit *unit[UNITS];
    zero_slot slot[PARAMS];
    float *param[PARAMS], *grad[PARAMS], *copy;
};

static uint64_t count_of(const struct host *h, uint32_t i) { return layers[i].count * h->setup->scale; }

static uint64_t draw(uint64_t *seed) {
    return *seed = *seed * 6364136223846793005u + 1442695040888963407u, *seed >> 33;
}

static float start(uint32_t i, uint64_t k) {
    return (float)((k * 2654435761u + i * 40503u) % 1009) / 1009 - 0.5f;
}

static void fill(void *user, const char *name, uint64_t first, uint64_t count, float *out) {
    uint32_t i = 0;
    while (strcmp(layers[i].name, name)) i++;
    for (uint64_t k = 0; k < count; k++) out[k] = start(i, first + k);
}

/* The parameter in whose arrays the host computes. */
static uint32_t home(const struct host *h, uint32_t i) {
    uint32_t owner = 0;
    while (h->setup->memory == SHARED && layers[i].tied_to && strcmp(layers[owner].name, layers[i].tied_to))
        owner++;
    return h->setup->memory == SHARED && layers[i].tied_to ? owner : i;
}

static uint32_t cut(struct host *h, uint32_t i, uint64_t *seed, zero_span spans[SPANS]) {
    uint64_t at = 0, count = count_of(h, i);
    uint32_t n = 0, of = home(h, i);
    while (at < count) {
        uint64_t most = n + 1 < SPANS ? 1 + draw(seed) % count : count;
        if (most > count - at) most = count - at;
        spans[n++] = (zero_span){h->param[of] + at, h->grad[of] + at, most};
        at += most;
    }
    return n;
}

static zero_status declare(struct host *h) {
    zero_status status = ZERO_OK;
    uint64_t seed = h->setup->seed;
    bool adds = h->setup->memory >= ADDED;
    for (uint32_t i = 0; i < PARAMS && !status; i++) {
        const struct layer *l = &layers[i];
        zero_span spans[SPANS];
        zero_param param = {.struct_size = sizeof param,
                            .name = l->name,
                            .dims = h->setup->optimizer ? 2 : 1,
                            .shape = {count_of(h, i), 1},
                            .tied_to = l->tied_to};
        param.flags = l->tied_to ? 0 : l->flags | (adds && !(l->flags & ZERO_FROZEN) ? ZERO_ADDS_GRAD : 0);
        if (h->setup->memory == SLOTS) param.slot = &h->slot[i];
        if (h->setup->memory != SLOTS) param.spans = spans, param.span_count = cut(h, i, &seed, spans);
        if (!i || layers[i - 1].unit != l->unit) {
            char name[2] = {(char)('0' + l->unit), 0};
            status = zero_engine_add_unit(h->engine, name, &h->unit[l->unit]);
        }
        if (!status) status = zero_unit_add_param(h->unit[l->unit], &param);
    }
    return status;
}

static void backward(struct host *h, uint32_t unit, uint32_t number) {
    for (uint32_t i = 0; i < PARAMS; i++) {
        if (layers[i].unit != unit || layers[i].flags & ZERO_FROZEN) continue;
        bool slots = h->setup->memory == SLOTS;
        const float *param = slots ? h->slot[i].param : h->param[home(h, i)];
        float *grad = slots ? h->slot[i].grad : h->grad[home(h, i)];
        bool add = slots ? h->slot[i].add : h->setup->memory >= ADDED;
        for (uint64_t k = 0; k < count_of(h, i); k++) {
            float g = 0.1f * param[k] + (float)((int)((k * 7 + number * 13 + i) % 101) - 50) * 0.01f;
            grad[k] = add ? grad[k] + g : g;
        }
    }
}

static zero_status micro_step(struct host *h, uint32_t number) {
    zero_status status = zero_micro_begin(h->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < UNITS && !status; u++) {
        status = zero_forward_begin(h->unit[u]);
        if (!status) status = zero_forward_end(h->unit[u]);
    }
    for (uint32_t u = UNITS; u-- > 0 && !status;) {
        status = zero_backward_begin(h->unit[u]);
        if (!status) backward(h, u, number);
        if (!status) status = zero_backward_end(h->unit[u]);
    }
    return status;
}

/* After a step the host's arrays are the weights, without a begin; those that the engine copies, after a flush. */
static void check_weights(struct host *h) {
    for (uint32_t i = 0; i < PARAMS && h->setup->memory != SLOTS; i++) {
        if (layers[i].tied_to) continue;
        CHECK_INT(zero_engine_get(h->engine, layers[i].name, ZERO_PARAM, h->copy, 0, count_of(h, i)),
                  ZERO_OK);
        CHECK_BYTES(h->param[i], h->copy, count_of(h, i) * sizeof *h->copy);
    }
}

/* A checkpoint is read into the host's arrays. */
static zero_status save_and_load(struct host *h) {
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoint", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    zero_status status = zero_engine_save(h->engine, path);
    for (uint32_t i = 0; i < PARAMS && h->setup->memory != SLOTS; i++)
        memset(h->param[i], 0xff, count_of(h, i) * sizeof(float));
    return status ? status : zero_engine_load(h->engine, path);
}

static zero_status train(struct host *h) {
    zero_status status = ZERO_OK;
    for (uint32_t step = 0; step < STEPS && !status; step++) {
        zero_step_info info = {.struct_size = sizeof info};
        for (uint32_t m = 0; m < h->setup->micro_steps && !status; m++)
            status = micro_step(h, (step * h->setup->micro_steps + m) * h->setup->ranks +
                                       zero_engine_rank(h->engine));
        if (!status) status = zero_engine_get(h->engine, "in.w", ZERO_GRAD, h->copy, 0, count_of(h, 0));
        h->out.gradient = hash_bytes(h->out.gradient, h->copy, count_of(h, 0) * sizeof *h->copy);
        if (!status) status = zero_engine_step(h->engine, &info);
        h->out.norm[step] = info.grad_norm;
        if (!status && h->setup->optimizer) status = zero_engine_flush(h->engine);
        if (!status) check_weights(h);
    }
    return status;
}

static struct host *host_create(const struct setup *setup) {
    struct host *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->setup = setup;
    for (uint32_t i = 0; i < PARAMS; i++) {
        h->param[i] = calloc(count_of(h, i), sizeof(float));
        h->grad[i] = calloc(count_of(h, i), sizeof(float));
    }
    h->copy = calloc(count_of(h, 4), sizeof(float)); /* the largest */
    return h;
}

static void host_destroy(struct host *h) {
    for (uint32_t i = 0; i < PARAMS && h; i++) free(h->param[i]), free(h->grad[i]);
    if (h) free(h->copy);
    free(h);
}

struct cell {
    const struct setup *setup;
    struct outcome out; /* of rank 0 */
};

static void run(zero_engine *engine, uint32_t rank, void *user) {
    struct cell *cell = user;
    struct host *h = host_create(cell->setup);
    if (!CHECK(engine && h)) {
        fprintf(stderr, "%s\n", zero_last_error());
        host_destroy(h);
        return;
    }
    h->engine = engine;
    h->out.plan.struct_size = sizeof h->out.plan;
    zero_status status = declare(h);
    if (!status) status = zero_engine_commit(engine, &h->out.plan);
    for (uint32_t i = 0; i < PARAMS; i++) fill(NULL, layers[i].name, 0, count_of(h, i), h->param[i]);
    if (!status) status = zero_engine_discard_shadow(engine);
    if (!status) status = zero_engine_fill(engine, h->setup->memory == ADDED ? NULL : fill, NULL);
    if (!status) status = train(h);
    if (!status && h->setup->scale == 1 && h->setup->seed % 4 == 1) status = save_and_load(h);
    if (!status) status = zero_engine_hash(engine, h->out.hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; !zero_engine_memory(engine, i, &row); i++) {
        h->out.planned += row.planned, h->out.measured += row.measured;
        h->out.staging += strcmp(row.name, "reduction staging") ? 0 : row.planned;
    }
    if (rank == 0) cell->out = h->out;
    host_destroy(h);
}

static void trained(const struct setup *s, struct cell *cell) {
    char json[2048];
    char path[512]; /* a stage's files have sizes of their own */
    snprintf(path, sizeof path, "%s/%u", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp", s->stage);
    mkdir(path, 0777);
    int length = snprintf(json, sizeof json,
                          "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %u, "
                          "\"gradient_clipping\": 0.5, "
                          "\"gradient_accumulation_mode\": \"last\", \"optimizer\": {\"type\": \"%s\", "
                          "\"params\": {\"lr\": 0.01, \"weight_decay\": "
                          "0.1}}, \"threads\": 1, "
                          "\"zero_optimization\": {\"stage\": %u",
                          s->micro_steps, s->optimizer ? s->optimizer : "AdamW", s->stage);
    if (s->tier)
        length +=
            snprintf(json + length, sizeof json - (size_t)length,
                     ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}", s->tier, path);
    snprintf(json + length, sizeof json - (size_t)length, "}%s}", s->more ? s->more : "");
    *cell = (struct cell){.setup = s};
    ranks_run(s->ranks, json, run, cell);
}

/* The engine has a place for gradients where a tied parameter is in another array, where the host overwrites those of another
 * micro-step, and where the update goes on after the step. */
static void check_plan(const struct setup *s, const struct outcome *got) {
    uint64_t in = 4 * (9008 + 16 + 4096);
    bool drive = s->tier && !strcmp(s->tier, "nvme");
    CHECK_INT(got->plan.param_bytes, 0);
    CHECK_INT(got->measured, got->planned);
    if ((s->micro_steps > 1 && s->memory == OWN) || drive) return;
    if (s->memory == SHARED) CHECK_INT(got->plan.gathered_bytes, 0);
    if (s->ranks > 1 && (s->stage || s->memory != SHARED)) return; /* shards, and padding */
    CHECK_INT(got->plan.grad_bytes, s->memory == SHARED ? 0 : s->stage && s->micro_steps > 1 ? 2 * in : in);
}

static void compare(const struct setup *s, const struct outcome *expected) {
    static struct cell got;
    trained(s, &got);
    check_plan(s, &got.out);
    CHECK(got.out.staging <= STAGING_MOST);
    if (!(CHECK_STRING(got.out.hash, expected->hash) &
          CHECK_BYTES(got.out.norm, expected->norm, sizeof got.out.norm) &
          CHECK_INT(got.out.gradient, expected->gradient)))
        fprintf(stderr, "stage %u, %u ranks, %u micro-steps, memory %d, tier %s\n", s->stage, s->ranks,
                s->micro_steps, s->memory, s->tier);
}

static void copies_are_fresh_after_a_flush(void) {
    static const char *const optimizers[] = {"Lamb", "Muon"}, *const tiers[] = {NULL, "cpu", "nvme"};
    static struct cell slots, got;
    for (uint32_t c = 0; c < 2 * 3 * 3; c++) {
        struct setup s = {.ranks = 1 + c % 2,
                          .stage = c % 3,
                          .tier = tiers[c / 3 % 3],
                          .optimizer = optimizers[c / 9],
                          .micro_steps = 1,
                          .scale = 1,
                          .seed = c};
        if (c / 9) s.more = ", \"param_groups\": [{\"match\": [\"*.b\"], \"optimizer\": \"AdamW\"}]";
        trained(&s, &slots);
        s.memory = OWN;
        trained(&s, &got);
        if (!CHECK_STRING(got.out.hash, slots.out.hash))
            fprintf(stderr, "%s, stage %u, tier %s\n", s.optimizer, s.stage, s.tier);
    }
}

static void same_bits_as_slots(void) {
    static const struct {
        const char *tier, *more;
    } places[] = {{0}, {"cpu", NULL}, {"nvme", NULL}, {"nvme", ", \"nvme\": {\"shadow\": true}"}};
    static struct cell slots;
    uint64_t number = 0;
    for (uint32_t ranks = 1; ranks <= 3; ranks++)
        for (uint32_t micro = 1; micro <= 2; micro++) {
            struct setup s = {.ranks = ranks, .micro_steps = micro, .scale = 1};
            trained(&s, &slots);
            for (uint32_t c = 0; c < 3 * 4 * MEMORIES; c++, number++) {
                s.stage = c % 3, s.memory = c / 3 % MEMORIES, s.seed = number;
                s.tier = places[c / 3 / MEMORIES].tier, s.more = places[c / 3 / MEMORIES].more;
                if (s.memory != SLOTS && seeds_take(number) && number % (s.tier ? 5 : ranks) == 0)
                    compare(&s, &slots.out);
            }
        }
}

/* Regions of more than 4 MiB, and the ranks compare what they have. In a short run, at one stage. */
static void many_rounds(void) {
    static struct cell slots;
    for (uint32_t stage = seeds_divisor() > 1 ? 2 : 0; stage < 3; stage++) {
        struct setup s = {.ranks = 2 + stage % 2, .micro_steps = 1, .scale = LARGE};
        trained(&s, &slots);
        s.stage = stage, s.memory = stage == 2 ? SHARED : OWN, s.more = ", \"debug\": {\"compare_every\": 1}";
        compare(&s, &slots.out);
    }
}

/* ---- the toy, which has more types and orders ---- */

static void one_toy(uint64_t seed) {
    static struct toy_result got, expected;
    struct toy_setup s = toy_setup_default();
    s.ranks = seed % 3 ? 1 : 2 + (uint32_t)(seed / 3 % 3);
    s.steps = 6;
    s.memory = seed % 2 ? TOY_SPANS : TOY_SPANS_ADD;
    s.stage = (uint32_t)(seed / 2 % 3);
    s.compute = (zero_dtype)(seed / 6 % 3);
    s.kept = s.compute && seed % 5 < 3 ? (uint32_t)(seed * 0x9e3779b9u) : 0;
    s.micro_steps = 1 + (seed % 5 == 0);
    s.mode = seed % 7 % 2 ? "last" : "every";
    s.communication = s.compute == ZERO_BF16 && seed % 4 == 0 ? "fp32" : NULL;
    s.recompute = (uint32_t)(seed / 5 % 3);
    s.interrupt = seed % 3 == 0;
    s.evaluate = seed % 4 == 1;
    s.cancels = seed % 7 ? 0 : seed;
    s.free_order = seed % 11 == 0;
    s.skip_unit = s.recompute || s.free_order || seed % 5 == 1 ? -1 : 1 + (int)(seed % 3);
    if (seed & 8) s.offload = "cpu";
    if (s.ranks == 4) s.tiers = "\"mics_shard_size\": 2", s.shard_ranks = 2;
    toy_train(&s, &got);
    toy_oracle(&s, &expected);
    CHECK_INT(got.plan.param_bytes, 0);
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(got.measured[t], got.planned[t]);
    CHECK_STRING(got.error, "");
    CHECK_BYTES(got.weights, expected.weights, sizeof got.weights);
}

/* ---- one array for the gradients of all units, as a program without the engine may have ---- */

static void one_scratch(bool shared, char out_hash[33]) {
    enum { COUNT = 1000 };
    static float w[2][COUNT], g[2][COUNT];
    zero_unit *unit[2];
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    for (int u = 0; u < 2; u++) {
        zero_span span = {w[u], g[shared ? 0 : u], COUNT};
        zero_param param = {.struct_size = sizeof param, .name = u ? "b" : "a", .dims = 1, .shape = {COUNT}};
        param.spans = &span, param.span_count = 1;
        for (int i = 0; i < COUNT; i++) w[u][i] = 1 / (float)(1 + i + u);
        CHECK_INT(zero_engine_add_unit(e, param.name, &unit[u]), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit[u], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(e, NULL, NULL), ZERO_OK);
    for (int step = 0; step < 2; step++) {
        CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
        for (int u = 0; u < 2; u++) {
            CHECK_INT(zero_forward_begin(unit[u]), ZERO_OK);
            CHECK_INT(zero_forward_end(unit[u]), ZERO_OK);
        }
        for (int u = 2; u-- > 0;) {
            CHECK_INT(zero_backward_begin(unit[u]), ZERO_OK);
            for (int i = 0; i < COUNT; i++) g[shared ? 0 : u][i] = w[u][i] + (float)u - 0.5f;
            CHECK_INT(zero_backward_end(unit[u]), ZERO_OK);
        }
        CHECK_INT(zero_engine_step(e, NULL), ZERO_OK);
    }
    CHECK_INT(zero_engine_hash(e, out_hash), ZERO_OK);
    zero_engine_destroy(e);
}

static void gradients_in_one_array(void) {
    char own[33] = "", shared[33] = "";
    one_scratch(false, own);
    one_scratch(true, shared);
    CHECK_STRING(shared, own);
}

int main(void) {
    gradients_in_one_array();
    copies_are_fresh_after_a_flush();
    same_bits_as_slots();
    many_rounds();
    for (uint64_t seed = 0; seed < seeds_count(90); seed++) {
        check_seed(seed);
        one_toy(seed);
    }
    return check_end();
}
