/* Averaged weights ("ema"): after every step each rank reads weights and averages, and makes the averages serially from the weights. They
 * have the same bits at every stage, on every tier, in every type and mesh, with any optimizer, also where steps are skipped, and updates
 * made again or taken back. The training is that without averages. What is planned is taken. They are saved and loaded as state is, and come
 * back from a shadow. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define STATE "\"offload_optimizer\": " NVME ", \"sub_group_size\": 100"
#define ALL STATE ", \"offload_param\": " NVME
#define CPU "\"offload_optimizer\": {\"device\": \"cpu\"}"

enum { RANKS_MAX = 4, SIZE = TOY_VOCAB * TOY_WIDTH };

/* ---- the serial averages ---- */

struct keys {
    double decay;
    unsigned every, begin;
    int warmup;
};

static const char *text_of(const struct keys *k) {
    static char text[200];
    snprintf(text, sizeof text, ", \"ema\": {\"decay\": %.17g, \"every\": %u, \"begin\": %u, \"warmup\": %s}",
             k->decay, k->every, k->begin, k->warmup ? "true" : "false");
    return text;
}

/* The share of update `step`, from 1. */
static float share_of(const struct keys *k, uint64_t step) {
    if (step <= k->begin) return 1;
    if (step % k->every) return 0;
    double moves = (double)((step - k->begin - 1) / k->every), first = (1 + moves) / (10 + moves);
    return (float)(1 - (k->warmup && first < k->decay ? first : k->decay));
}

static float moved(float average, float weight, float share) {
    if (share == 0) return average;
    if (share < 0.5f) return fmaf(share, weight - average, average);
    return fmaf(share - 1, weight - average, weight);
}

struct watch {
    struct keys keys;
    uint64_t frozen;
    struct {
        uint64_t steps;
        float average[TOY_PARAMS][SIZE];
    } rank[RANKS_MAX];
};

static zero_status compare(zero_engine *engine, uint32_t steps, void *user) {
    struct watch *w = user;
    uint32_t rank = zero_engine_rank(engine);
    uint64_t updates = zero_engine_steps(engine);
    float share = updates == w->rank[rank].steps ? 0 : share_of(&w->keys, updates);
    float weight[SIZE], got[SIZE];
    zero_status status = ZERO_OK;
    w->rank[rank].steps = updates;
    for (uint32_t i = 0; i < TOY_PARAMS && !status; i++) {
        const struct toy_param *p = &toy_params[i];
        uint64_t count = p->rows * p->columns;
        if (p->tied_to || p->flags & ZERO_FROZEN || w->frozen >> i & 1) continue;
        status = zero_engine_get(engine, p->name, ZERO_PARAM, weight, 0, count);
        if (!status) status = zero_engine_get(engine, p->name, ZERO_EMA, got, 0, count);
        for (uint64_t k = 0; k < count && !status; k++) {
            float *average = &w->rank[rank].average[i][k];
            *average = steps ? moved(*average, weight[k], share) : weight[k];
        }
        if (!status && !CHECK_BYTES(got, w->rank[rank].average[i], count * sizeof *got))
            fprintf(stderr, "the average of %s after %u steps\n", p->name, steps);
    }
    return status;
}

static struct toy_result with, without;

static int train(struct toy_setup s, const struct keys *keys) {
    static struct watch watch;
    char extra[500];
    memset(&watch, 0, sizeof watch);
    watch.keys = *keys, watch.frozen = s.frozen;
    toy_train(&s, &without);
    snprintf(extra, sizeof extra, "%s%s", s.extra ? s.extra : "", text_of(keys));
    s.extra = extra, s.between = compare, s.user = &watch;
    toy_train(&s, &with);
    int good = CHECK_STRING(without.error, "") && CHECK_STRING(with.error, "") &&
               CHECK_STRING(with.hash, without.hash) && CHECK_INT(with.skipped, without.skipped);
    for (int t = 0; t < ZERO_TIERS; t++) good &= CHECK_INT(with.measured[t], with.planned[t]);
    /* A record on a drive has whole pages, and chunks are small here. */
    bool pages = s.tiers && strstr(s.tiers, "nvme");
    good &= CHECK(with.plan.state_bytes >= without.plan.state_bytes + !pages);
    if (!good)
        fprintf(stderr, "stage %u, %u ranks, type %d, %s%s\n", s.stage, s.ranks, (int)s.compute,
                s.tiers ? s.tiers : "no tiers", extra);
    return good;
}

static struct toy_setup setup(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 4, s.scale_power = 6;
    return s;
}

static const zero_dtype types[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
static const struct keys each_step = {0.9, 1, 0, 0}, rarely = {0.75, 2, 1, 1}, early = {0.25, 1, 2, 0};
static const struct keys *const all_keys[] = {&each_step, &rarely, &early};

static void stages_and_tiers(void) {
    static const char *const tiers[] = {
        NULL,
        CPU,
        STATE,
        ALL,
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\", \"ratio\": 0.5}, "
        "\"sub_group_size\": 100",
        "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"};
    struct toy_setup s = setup();
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (uint32_t k = 0; k < sizeof tiers / sizeof *tiers; k++) {
            s.tiers =
                s.stage < 3 && k == 3 ? STATE ", \"offload_gradients\": {\"device\": \"none\"}" : tiers[k];
            s.compute = types[(s.stage + k) % 3], s.ranks = 1 + (s.stage + k) % 4;
            s.nan_step = k % 2 ? 1 : -1;
            train(s, all_keys[(s.stage + k / 2) % 3]);
        }
}

static void others(void) {
    struct toy_setup s = setup();
    s.ranks = 4, s.shard_ranks = 2, s.tiers = STATE ", \"mics_shard_size\": 2", s.stage = 2;
    s.extra = ", \"debug\": {\"compare_every\": 1}";
    train(s, &each_step);
    s.tiers = ALL ", \"zero_hpz_partition_size\": 2", s.stage = 3, s.shard_ranks = 0, s.compute = ZERO_BF16;
    train(s, &each_step);
    s = setup(), s.stage = 1, s.memory = TOY_SPANS, s.frozen = 1 << 5, s.kept = 1 << 4;
    train(s, &each_step);
    s.memory = TOY_SLOTS, s.tiers = STATE,
    s.compute = ZERO_BF16; /* split masters, and some parameters in fp32 */
    train(s, &rarely);
}

/* Optimizers of whole matrices and of whole tensors, beside AdamW: on a drive averages move with the weights. */
static void wholes(void) {
    static const char *const tiers[] = {NULL, CPU, STATE, ALL};
    struct toy_setup s = setup();
    for (uint32_t k = 0; k < 8; k++) {
        s.muon = k % 2, s.lamb = 2 * !s.muon, s.stage = k < 6 ? k % 4 : 3, s.ranks = 1 + (k + k / 4) % 4;
        s.tiers = s.stage < 3 && k / 2 == 3 ? STATE : tiers[k / 2], s.compute = types[(k + k / 2) % 3];
        train(s, all_keys[k % 3]);
    }
}

/* Averages and masters move with the weights, moments with the directions. The other optimizer has a state more. */
static void whole_matrices(void) {
    char shadow[400];
    const char *own = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_ema_test";
    snprintf(shadow, sizeof shadow,
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/matrices\"}, "
             "\"sub_group_size\": 100",
             own);
    struct toy_setup s = setup();
    s.muon = 1, s.nan_step = 2;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.ranks = 1 + s.stage % 3, s.compute = types[s.stage % 3];
        s.tiers = s.stage == 3 ? ALL
                  : s.stage    ? STATE
                               : STATE ", \"offload_gradients\": {\"device\": \"none\"}";
        train(s, all_keys[s.stage % 3]);
        s.tiers = "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\", \"ratio\": 0.5}, "
                  "\"sub_group_size\": 100";
        s.compute = types[(s.stage + 1) % 3];
        train(s, all_keys[(s.stage + 1) % 3]);
        s.tiers = shadow, s.shadow = 1, s.compute = types[(s.stage + 2) % 3];
        train(s, &each_step);
        s.shadow = 0;
    }
    s = setup(), s.muon = 1, s.stage = 2, s.tiers = STATE;
    s.compute = ZERO_F32, s.extra = ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}";
    train(s, &each_step);
    s = setup(), s.muon = 1, s.stage = 3, s.tiers = STATE, s.compute = ZERO_BF16, s.kept = 1 << 4 | 1 << 5;
    train(s, &rarely);
}

/* Of one state, of none, and of two; states in bf16, which averages are not. */
static void optimizers(void) {
    static const char *const optimizer[] = {
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.02}}",
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.02, \"momentum\": 0.9}}",
        "{\"type\": \"Lion\", \"params\": {\"lr\": 0.002}}", "{\"type\": \"Adagrad\"}"};
    struct toy_setup s = setup();
    for (uint32_t k = 0; k < sizeof optimizer / sizeof *optimizer; k++) {
        s.optimizer = optimizer[k], s.stage = k % 4, s.tiers = k % 2 ? NULL : STATE;
        train(s, &each_step);
    }
    s.compute = ZERO_F32, s.stage = 2, s.tiers = STATE;
    s.extra = ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}";
    s.optimizer = optimizer[0];
    train(s, &each_step);
    s.optimizer = NULL;
    train(s, &each_step);
}

/* The step is clipped, and updated again; or skipped, and taken back. */
static void updates_in_the_backward(void) {
    char tiers[1000];
    struct toy_setup s = setup();
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_ema_test";
    snprintf(tiers, sizeof tiers,
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/updates\"}, "
             "\"sub_group_size\": 100",
             directory);
    s.tiers = tiers, s.shadow = s.updates = 1, s.nan_step = 2;
    uint64_t repeated = 0;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.compute = types[s.stage % 3], s.muon = s.stage == 1, s.lamb = s.stage > 1 ? 2 : 0;
        if (!train(s, &each_step)) continue;
        repeated += with.repeated;
        CHECK_INT(with.skipped, 1);
    }
    CHECK(repeated > 0);
}

/* Of a device whose memory the host cannot touch. */
static void discrete(void) {
    static const char *const tiers[] = {NULL, CPU, ALL,
                                        "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"};
    struct toy_setup s = setup();
    s.device = "sim", s.seed = 7, s.stage = 3;
    for (uint32_t k = 0; k < sizeof tiers / sizeof *tiers; k++) {
        s.tiers = tiers[k], s.compute = types[k % 2];
        train(s, all_keys[k % 3]);
    }
}

/* ---- checkpoints ---- */

static const struct plain_param params[] = {{"a", "a.w", 5001, 0, NULL},
                                            {"a", "a.b", 33, ZERO_NO_DECAY, NULL},
                                            {"b", "b.w", 3007, 0, NULL},
                                            {"b", "b.f", 70, ZERO_FROZEN, NULL}};
static const uint64_t columns[] = {3, 0, 31, 0}; /* of matrices, where they are such */
enum { PARAMS = sizeof params / sizeof *params, ELEMENTS = 5001 + 33 + 3007 };

struct held {
    float weight[ELEMENTS], average[ELEMENTS];
};

static void take(zero_engine *engine, struct held *out) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < PARAMS; i++) {
        if (params[i].flags & ZERO_FROZEN) continue;
        CHECK_INT(zero_engine_get(engine, params[i].name, ZERO_PARAM, out->weight + at, 0, params[i].count),
                  0);
        CHECK_INT(zero_engine_get(engine, params[i].name, ZERO_EMA, out->average + at, 0, params[i].count),
                  0);
        at += params[i].count;
    }
}

static struct held saved, ended; /* at the save, and two steps later */

struct life {
    const char *saved, *json;
    zero_status (*load)(zero_engine *engine, const char *dir); /* NULL: fills */
    int steps, saves, recovers, matrices;
    void (*check)(zero_engine *engine, const struct held *held);
};

static void live(zero_engine *engine, uint32_t rank, void *user) {
    struct life *life = user;
    struct plain p;
    struct held held;
    if (!CHECK_STRING(engine ? "" : zero_last_error(), "")) return;
    zero_status status = plain_declare_matrices(&p, engine, params, PARAMS, life->matrices ? columns : NULL);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status && life->recovers)
        status = zero_engine_recover(engine, toy_fill, NULL, NULL);
    else if (!status)
        status = life->load ? life->load(engine, life->saved) : zero_engine_fill(engine, toy_fill, NULL);
    for (int k = 0; k < life->steps && !status; k++) status = plain_step(&p, 1, NULL);
    if (!status && life->saves) status = zero_engine_save(engine, life->saved);
    if (!status && life->saves) status = zero_engine_save_wait(engine);
    if (!status) status = zero_engine_flush(engine);
    if (!CHECK_INT(status, ZERO_OK)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    if (!life->check) return;
    take(engine, &held);
    if (rank == 0) life->check(engine, &held);
}

static void is_saved(zero_engine *engine, const struct held *h) { CHECK_BYTES(h, &saved, sizeof saved); }
static void is_ended(zero_engine *engine, const struct held *h) { CHECK_BYTES(h, &ended, sizeof ended); }
static void keep_saved(zero_engine *engine, const struct held *h) { saved = *h; }
static void keep_ended(zero_engine *engine, const struct held *h) { ended = *h; }
static void begins(zero_engine *engine, const struct held *h) {
    CHECK_BYTES(h->average, saved.weight, sizeof saved.weight);
    CHECK_BYTES(h->weight, saved.weight, sizeof saved.weight);
    CHECK_INT(zero_engine_steps(engine), 0);
}
static void is_averaged(zero_engine *engine, const struct held *h) {
    CHECK_BYTES(h->weight, saved.average, sizeof saved.average);
    CHECK_BYTES(h->average, saved.average, sizeof saved.average);
    CHECK_INT(zero_engine_steps(engine), 0);
}
static void goes_on_without(zero_engine *engine, const struct held *h) {
    CHECK_BYTES(h->average, saved.weight, sizeof saved.weight);
    CHECK_INT(zero_engine_steps(engine), 3);
}

static const char *directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static void run(uint32_t ranks, uint32_t stage, const char *tiers, const char *more, struct life life) {
    char json[2000], dir[1000];
    int failures = atomic_load(&check_failures);
    snprintf(dir, sizeof dir, "%s/ema_%s", directory(), life.saved);
    life.saved = dir;
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": %u, "
             "\"stage3_param_persistence_threshold\": 100, %s}%s}",
             stage, tiers, more);
    ranks_run(ranks, json, live, &life);
    if (atomic_load(&check_failures) > failures)
        fprintf(stderr, "%u ranks, stage %u, %s%s, in %s\n", ranks, stage, tiers, more, dir);
}

#define EMA ", \"ema\": {\"decay\": 0.9}"
#define SMALL "\"offload_optimizer\": " NVME ", \"sub_group_size\": 2048"

/* The ranks of a run add in one order: those that go on are as many as those that saved. */
static void checkpoints(const char *type) {
    char ema[200], async[300], save[40], plain[40];
    snprintf(ema, sizeof ema, "%s" EMA, type);
    snprintf(save, sizeof save, "%zu", strlen(type));
    run(2, 1, CPU, ema, (struct life){.saved = save, .steps = 3, .saves = 1, .check = keep_saved});
    run(2, 1, CPU, ema, (struct life){.saved = save, .steps = 5, .check = keep_ended});
    snprintf(plain, sizeof plain, "background%zu", strlen(type));
    snprintf(async, sizeof async, "%s, \"checkpoint\": {\"async\": true}", ema);
    run(2, 3, SMALL, async, (struct life){.saved = plain, .steps = 3, .saves = 1, .check = is_saved});
    run(1, 2, CPU, ema, (struct life){.saved = plain, .load = zero_engine_load, .check = is_saved});
    CHECK(memcmp(saved.average, ended.average, sizeof saved.average) != 0);
    run(3, 3, SMALL, ema, (struct life){.saved = save, .load = zero_engine_load, .check = is_saved});
    run(1, 0, "\"offload_optimizer\": {\"device\": \"none\"}", ema,
        (struct life){.saved = save, .load = zero_engine_load, .check = is_saved});
    run(2, 3, SMALL ", \"offload_param\": " NVME, ema,
        (struct life){.saved = save, .load = zero_engine_load, .steps = 2, .check = is_ended});
    run(3, 2, SMALL, ema, (struct life){.saved = save, .load = zero_engine_load_weights, .check = begins});
    /* The averages of a bf16 run need not be numbers that masters keep. */
    if (!*type)
        run(3, 3, SMALL, ema,
            (struct life){.saved = save, .load = zero_engine_load_ema, .check = is_averaged});
    /* Through a run without averages, and one that begins them. */
    snprintf(plain, sizeof plain, "plain%zu", strlen(type));
    run(2, 1, SMALL, type, (struct life){.saved = plain, .steps = 3, .saves = 1});
    run(2, 3, SMALL, ema, (struct life){.saved = plain, .load = zero_engine_load, .check = goes_on_without});
    run(2, 2, SMALL, type, (struct life){.saved = save, .load = zero_engine_load, .steps = 2});
}

/* ---- a shadow ---- */

static void shadow(void) {
    char nvme[1500];
    const char *more = ", \"nvme\": {\"shadow\": true}, \"bf16\": {\"enabled\": true}" EMA;
    snprintf(nvme, sizeof nvme,
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/shadow\"}, "
             "\"sub_group_size\": 2048",
             directory());
    run(2, 3, nvme, more, (struct life){.saved = "none", .steps = 3, .check = keep_saved});
    run(2, 3, nvme, more, (struct life){.saved = "none", .recovers = 1, .check = is_saved});
    run(2, 3, nvme, more, (struct life){.saved = "none", .recovers = 1, .steps = 2, .check = keep_ended});
    run(2, 1, CPU, ", \"bf16\": {\"enabled\": true}" EMA,
        (struct life){.saved = "none", .steps = 5, .check = is_ended});
}

static void shadow_of_matrices(void) {
    static const char more[] =
        ", \"nvme\": {\"shadow\": true}, \"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}, "
        "\"param_groups\": [{\"match\": [\"a.b\", \"b.f\"], \"optimizer\": \"AdamW\"}]" EMA;
    char nvme[1500];
    snprintf(nvme, sizeof nvme,
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/shadow_of_matrices\"}, "
             "\"sub_group_size\": 2048",
             directory());
    struct life life = {.saved = "none", .matrices = 1, .steps = 3, .check = keep_saved};
    run(2, 3, nvme, more, life);
    life.recovers = 1, life.steps = 0, life.check = is_saved;
    run(2, 3, nvme, more, life);
    life.steps = 2, life.check = keep_ended;
    run(2, 3, nvme, more, life);
    life.recovers = 0, life.steps = 5, life.check = is_ended;
    run(2, 1, CPU, strchr(more + 1, ','), life);
}

/* As many bytes per element, of another meaning: the momentum of one run, and the averages of the other. */
static void finds_another(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_declare(&p, engine, params, PARAMS), ZERO_OK)) return;
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_shadow(engine, NULL), ZERO_SHADOW_OTHER);
    CHECK_CONTAINS(zero_engine_shadow_text(engine), "or its averages (ema)");
}

static void shadow_of_another(void) {
    char json[2][2500];
    static const char *const more[] = {", \"momentum\": 0.9}}", "}}" EMA};
    for (int k = 0; k < 2; k++)
        snprintf(
            json[k], sizeof json[k],
            "{\"train_micro_batch_size_per_gpu\": 1, \"nvme\": {\"shadow\": true}, \"zero_optimization\": {"
            "\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/other\"}}, "
            "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.01%s}",
            directory(), more[k]);
    ranks_run(2, json[0], live, &(struct life){.saved = "none", .steps = 1});
    ranks_run(2, json[1], finds_another, NULL);
}

/* ---- calls ---- */

static void refused(zero_status got, const char *says) {
    CHECK_INT(got, ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), says);
}

static void calls(zero_engine *engine, uint32_t rank, void *user) {
    const char *dir = user;
    static const float values[] = {1, 2, 3};
    struct plain p;
    float got[5];
    uint64_t first, count, all = 0;
    double sum;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    refused(zero_engine_get(engine, "b.f", ZERO_EMA, got, 0, 1), "it is frozen, so take its weights");
    refused(zero_engine_get(engine, "a.w", (zero_kind)(ZERO_EMA + 1), got, 0, 1), "no such optimizer state");
    CHECK_INT(zero_engine_put(engine, "a.w", ZERO_EMA, values, 2499, 3), ZERO_OK);
    CHECK_INT(zero_engine_get(engine, "a.w", ZERO_EMA, got, 2499, 3), ZERO_OK);
    CHECK_BYTES(got, values, sizeof values);
    const zero_handle *handle = zero_engine_param(engine, "a.w");
    CHECK_INT(zero_param_owned(handle, ZERO_EMA, &first, &count), ZERO_OK);
    sum = (double)count;
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK);
    all = (uint64_t)sum;
    CHECK_INT(all, 5001);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_park(engine, ZERO_CPU), ZERO_OK);
    CHECK_INT(zero_engine_unpark(engine), ZERO_OK);
    memset(got, 0, sizeof got);
    CHECK_INT(zero_engine_get(engine, "a.w", ZERO_EMA, got, 2499, 3), ZERO_OK);
    CHECK_BYTES(got, values, sizeof values);
}

static void calls_without(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    float got[5];
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    refused(zero_engine_get(engine, "a.w", ZERO_EMA, got, 0, 1), "set ema.decay in the configuration");
    CHECK_INT(zero_engine_save(engine, user), ZERO_OK);
    refused(zero_engine_load_ema(engine, user), "has no averaged weights");
}

static void interface(void) {
    char dir[1000];
    snprintf(dir, sizeof dir, "%s/calls", directory());
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3}" EMA "}",
              calls, dir);
    snprintf(dir, sizeof dir, "%s/calls_without", directory());
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1}", calls_without, dir);
}

int main(void) {
    stages_and_tiers();
    others();
    wholes();
    optimizers();
    whole_matrices();
    updates_in_the_backward();
    discrete();
    checkpoints("");
    checkpoints(", \"bf16\": {\"enabled\": true}");
    shadow();
    shadow_of_matrices();
    shadow_of_another();
    interface();
    return check_end();
}
