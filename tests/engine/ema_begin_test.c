/* Evaluations with the averaged weights (zero_engine_ema_begin and _end): what a pass reads are the averages, rounded to the type that
 * computes, at every stage, on every tier, in every type and mesh. Afterwards weights and averages are the same, to the last bit, also
 * where bf16 has no place for an average between two numbers; and the training goes on as without. A shadow has no averages in the place
 * of weights, whenever the run ends. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/device/discrete.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_number.h"

static const struct plain_param params[] = {{"a", "a.w", 5001, 0, NULL},
                                            {"a", "a.b", 33, ZERO_NO_DECAY, NULL},
                                            {"b", "b.w", 3007, 0, NULL},
                                            {"b", "b.k", 130, ZERO_KEEP_FP32, NULL},
                                            {"b", "b.f", 70, ZERO_FROZEN, NULL}};
static const uint64_t columns[] = {3, 0, 31, 0, 0}; /* of matrices, where they are such */
enum { PARAMS = sizeof params / sizeof *params, FROZEN = PARAMS - 1, COUNT_MAX = 5001, STEPS = 3 };

struct held {
    float weight[PARAMS][COUNT_MAX], average[PARAMS][COUNT_MAX];
};

struct life {
    const char *json;
    bool evaluates, matrices, recovers, discrete;
    bool leaves; /* the run ends between _begin and _end */
    char hash[33];
    float average; /* one, at the end */
};

static zero_status take(zero_engine *engine, struct held *out) {
    zero_status status = ZERO_OK;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < PARAMS && !status; i++) {
        const char *name = params[i].name;
        status = zero_engine_get(engine, name, ZERO_PARAM, out->weight[i], 0, params[i].count);
        if (!status && i != FROZEN)
            status = zero_engine_get(engine, name, ZERO_EMA, out->average[i], 0, params[i].count);
    }
    return status;
}

/* bf16 rounds what is halfway to the larger magnitude. */
static float rounded(zero_dtype dtype, float x) {
    return dtype == ZERO_BF16 ? float_of((bits_of(x) + 0x8000) & 0xffff0000u) : toy_round(dtype, x);
}

/* In the weights' place are `expected`. */
static int has(struct plain *p, uint32_t unit, const float expected[PARAMS][COUNT_MAX]) {
    bool discrete = engine_running(p->engine)->discrete;
    int good = 1;
    if (discrete) discrete_enter();
    for (uint32_t i = 0; i < PARAMS && good; i++) {
        zero_dtype dtype = zero_param_dtype(zero_engine_param(p->engine, params[i].name));
        for (uint64_t k = 0; k < params[i].count && p->unit_of[i] == unit && good; k++) {
            good = CHECK_INT(bits_of(toy_load(dtype, p->slot[i].param, k)),
                             bits_of(rounded(dtype, expected[i][k])));
            if (!good)
                fprintf(stderr, "element %d of %s, %a\n", (int)k, params[i].name, (double)expected[i][k]);
        }
    }
    if (discrete) discrete_leave();
    return good;
}

static zero_status evaluate(struct plain *p, const float expected[PARAMS][COUNT_MAX]) {
    zero_status status = zero_micro_begin(p->engine, ZERO_EVAL);
    for (uint32_t u = 0; u < p->units && !status; u++) {
        status = zero_forward_begin(p->unit[u]);
        if (!status) has(p, u, expected);
        if (!status) status = zero_forward_end(p->unit[u]);
    }
    return status;
}

/* Halfway between two numbers of bf16: above an even one and an odd one, of both signs; and others. */
static const float crafted[] = {0x1.01p+0f,     0x1.03p+0f,     -0x1.01p+0f, -0x1.03p-3f,
                                0x1.00fffep+0f, 0x1.010002p+0f, -0x1.05p-9f, 0x1.05p+9f,
                                0x0p+0f,        -0x0p+0f,       0x1p-140f,   -0x1.fffffep+3f};
enum { CRAFTED = sizeof crafted / sizeof *crafted };

static zero_status put_crafted(zero_engine *engine) {
    zero_status status = zero_engine_put(engine, "a.w", ZERO_EMA, crafted, 2495, CRAFTED);
    if (!status) status = zero_engine_put(engine, "b.w", ZERO_EMA, crafted, 0, CRAFTED);
    return status ? status : zero_engine_put(engine, "b.k", ZERO_EMA, crafted, 100, CRAFTED);
}

static void refused(zero_status got, const char *call) {
    CHECK_INT(got, ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), call);
    CHECK_CONTAINS(zero_last_error(), "call zero_engine_ema_end first");
}

static void check_refusals(zero_engine *e) {
    float x[1] = {0};
    char hash[33];
    refused(zero_micro_begin(e, ZERO_TRAIN), "zero_micro_begin");
    refused(zero_engine_get(e, "a.w", ZERO_PARAM, x, 0, 1), "zero_engine_get");
    refused(zero_engine_put(e, "a.w", ZERO_EMA, x, 0, 1), "zero_engine_put");
    refused(zero_param_get_owned(zero_engine_param(e, "a.w"), ZERO_PARAM, x, 0, 0), "zero_param_get_owned");
    refused(zero_engine_hash(e, hash), "zero_engine_hash");
    refused(zero_engine_fill(e, toy_fill, NULL), "zero_engine_fill");
    refused(zero_engine_save(e, "/nowhere"), "zero_engine_save");
    refused(zero_engine_load(e, "/nowhere"), "zero_engine_load");
    refused(zero_engine_park(e, ZERO_CPU), "zero_engine_park");
    refused(zero_engine_written(e), "zero_engine_written");
    refused(zero_engine_ema_begin(e), "zero_engine_ema_begin");
}

/* What reads no weights. */
static void check_allowed(zero_engine *e) {
    const char *dir = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char path[512];
    snprintf(path, sizeof path, "%s/trace.json", dir);
    CHECK_INT(zero_engine_flush(e), ZERO_OK);
    CHECK_INT(zero_engine_prune(e, "/nowhere", 1), ZERO_E_IO); /* it looks for the checkpoints */
    CHECK_INT(zero_engine_write_trace(e, path), ZERO_OK);
}

static zero_status exchange(struct plain *p, const struct life *life) {
    struct held *before = malloc(sizeof *before), *after = malloc(sizeof *after);
    zero_status status = CHECK(before && after) ? take(p->engine, before) : ZERO_E_MEMORY;
    if (!status) memcpy(before->average[FROZEN], before->weight[FROZEN], sizeof before->average[FROZEN]);
    CHECK_INT(zero_engine_ema_end(p->engine), ZERO_E_ORDER);
    if (!status) status = zero_engine_ema_begin(p->engine);
    for (int k = 0; k < 2 && !status; k++) status = evaluate(p, before->average);
    if (!status) check_refusals(p->engine), check_allowed(p->engine);
    if (!status && !life->leaves) {
        status = zero_engine_ema_end(p->engine);
        if (!status) status = evaluate(p, before->weight);
        if (!status) status = take(p->engine, after);
        memcpy(after->average[FROZEN], after->weight[FROZEN], sizeof after->average[FROZEN]);
        if (!status) CHECK_BYTES(after, before, sizeof *before);
    }
    free(before), free(after);
    return status;
}

static zero_status train(struct plain *p, struct life *life, uint32_t rank) {
    float got[CRAFTED];
    zero_status status = ZERO_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        status = plain_step(p, 1, NULL);
        if (!status && step == 1) status = put_crafted(p->engine);
        if (!status && life->leaves && step == STEPS - 1) break;
        if (!status && life->evaluates) status = exchange(p, life->leaves ? &(struct life){0} : life);
    }
    if (!status) status = zero_engine_flush(p->engine);
    char hash[33];
    if (!status) status = zero_engine_hash(p->engine, hash);
    if (!status) status = zero_engine_get(p->engine, "a.w", ZERO_EMA, got, 2495, CRAFTED);
    if (!status && rank == 0) memcpy(life->hash, hash, sizeof hash), life->average = got[0];
    return status || !life->leaves ? status : exchange(p, life);
}

static void live(zero_engine *engine, uint32_t rank, void *user) {
    struct life *life = user;
    struct plain p;
    float got[CRAFTED];
    char hash[33];
    if (!CHECK_STRING(engine ? "" : zero_last_error(), "")) return;
    zero_status status = plain_declare_matrices(&p, engine, params, PARAMS, life->matrices ? columns : NULL);
    if (!status) status = zero_engine_trace(engine, 1, 1);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status && !life->recovers) status = zero_engine_fill(engine, toy_fill, NULL);
    if (!status && !life->recovers) status = train(&p, life, rank);
    if (!status && life->recovers) {
        status = zero_engine_recover(engine, toy_fill, NULL, NULL);
        if (!status) status = zero_engine_hash(engine, hash);
        if (!status) CHECK_STRING(hash, life->hash);
        if (!status) status = zero_engine_get(engine, "a.w", ZERO_EMA, got, 2495, CRAFTED);
        if (!status) CHECK_INT(bits_of(got[0]), bits_of(life->average));
    }
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define SMALL "\"offload_optimizer\": " NVME ", \"sub_group_size\": 2048"
#define CPU "\"offload_optimizer\": {\"device\": \"cpu\"}"
#define NONE "\"offload_optimizer\": {\"device\": \"none\"}"
static const char *const types[] = {"", ", \"bf16\": {\"enabled\": true}", ", \"fp16\": {\"enabled\": true}"};

static void write_json(uint32_t stage, const char *tiers, const char *more, char *out, size_t bytes) {
    snprintf(out, bytes,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"ema\": {\"decay\": 0.9}, "
             "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": 100, %s}%s}",
             stage, tiers, more);
}

/* Trains with evaluations and without. */
static void compare(uint32_t ranks, uint32_t stage, const char *tiers, const char *more, struct life life) {
    char json[3000];
    struct life without = life;
    int failures = atomic_load(&check_failures);
    void (*run)(uint32_t, const char *, ranks_fn, void *) = life.discrete ? ranks_run_discrete : ranks_run;
    write_json(stage, tiers, more, json, sizeof json);
    life.evaluates = true;
    run(ranks, json, live, &life);
    run(ranks, json, live, &without);
    CHECK_STRING(life.hash, without.hash);
    CHECK_INT(bits_of(life.average), bits_of(without.average));
    if (atomic_load(&check_failures) > failures)
        fprintf(stderr, "%u ranks, stage %u, %s%s%s\n", ranks, stage, tiers, more,
                life.discrete ? ", discrete" : "");
}

static void stages_and_tiers(void) {
    static const char *const tiers[] = {NONE, CPU, SMALL,
                                        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
                                        "\"/tmp\", \"ratio\": 0.5}, \"sub_group_size\": 1024",
                                        SMALL ", \"offload_param\": " NVME};
    for (uint32_t type = 0; type < 3; type++)
        for (uint32_t k = 0; k < sizeof tiers / sizeof *tiers; k++) {
            uint32_t stage = k == 4 ? 3 : (k + type) % 4;
            bool whole = stage == 0 && k;
            char all[500];
            snprintf(all, sizeof all, "%s%s", tiers[k],
                     whole ? ", \"offload_gradients\": {\"device\": \"none\"}" : "");
            compare(1 + (k + type) % 3, stage, all, types[type], (struct life){0});
        }
}

static void others(void) {
    compare(4, 2, SMALL ", \"mics_shard_size\": 2", types[1], (struct life){0});
    compare(4, 3, CPU ", \"zero_hpz_partition_size\": 2", types[1], (struct life){0});
    compare(2, 3, NONE ", \"update_in_backward\": true", ", \"gradient_clipping\": 0", (struct life){0});
    compare(2, 1, SMALL, ", \"bf16\": {\"enabled\": true}, \"nvme\": {\"masters\": \"fp32\"}",
            (struct life){0});
    static const char matrices[] = ", \"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}, "
                                   "\"param_groups\": [{\"match\": [\"a.b\", \"b.k\", \"b.f\"], "
                                   "\"optimizer\": \"AdamW\"}], \"bf16\": {\"enabled\": true}";
    compare(3, 3, SMALL, matrices, (struct life){.matrices = true});
    for (uint32_t k = 0; k < 2; k++) {
        compare(2, 3, NONE, types[k], (struct life){.discrete = true});
        compare(2, 3, SMALL ", \"offload_param\": " NVME, types[1 - k], (struct life){.discrete = true});
        compare(2, 1, SMALL, types[1 - k], (struct life){.discrete = true});
    }
}

/* The run ends with its weights in their place, or between _begin and _end. */
static void shadows(void) {
    char tiers[1500], more[300], json[3000];
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_ema_begin_test";
    for (int k = 0; k < 4; k++) {
        snprintf(tiers, sizeof tiers,
                 "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/shadow%d\"}, "
                 "\"sub_group_size\": 2048",
                 directory, k);
        snprintf(more, sizeof more, ", \"nvme\": {\"shadow\": true}%s", types[k % 2]);
        struct life life = {.evaluates = true, .leaves = k > 1};
        write_json(2, tiers, more, json, sizeof json);
        ranks_run(2, json, live, &life);
        life.recovers = true;
        ranks_run(2, json, live, &life);
    }
}

/* ---- weights in the host's own memory, with gaps between them ---- */

enum { OWN = 2, OWN_COUNT = 100 };

struct own {
    zero_unit *unit;
    uint16_t param[OWN][OWN_COUNT], grad[OWN][OWN_COUNT];
};

static const char *const own_name[OWN] = {"w", "b"};

static zero_status declare_own(zero_engine *engine, struct own *o) {
    zero_status status = zero_engine_add_unit(engine, "u", &o->unit);
    CHECK_INT(zero_engine_dtype(engine), ZERO_BF16);
    for (int i = 0; i < OWN && !status; i++) {
        zero_span span = {o->param[i], o->grad[i], OWN_COUNT};
        zero_param p = {.struct_size = sizeof p,
                        .name = own_name[i],
                        .dims = 1,
                        .shape = {OWN_COUNT},
                        .spans = &span,
                        .span_count = 1};
        status = zero_unit_add_param(o->unit, &p);
    }
    return status;
}

/* What an evaluation finds in the host's memory. */
static zero_status check_own(zero_engine *engine, const struct own *o, float expected[OWN][OWN_COUNT]) {
    zero_status status = zero_micro_begin(engine, ZERO_EVAL);
    if (!status) status = zero_forward_begin(o->unit);
    for (int i = 0; i < OWN && !status; i++)
        for (int k = 0; k < OWN_COUNT; k++)
            CHECK_INT(bits_of(toy_load(ZERO_BF16, o->param[i], (uint64_t)k)),
                      bits_of(rounded(ZERO_BF16, expected[i][k])));
    return status ? status : zero_forward_end(o->unit);
}

static void exchange_own(zero_engine *engine, uint32_t rank, void *user) {
    float weight[OWN][OWN_COUNT], average[OWN][OWN_COUNT];
    struct own own;
    if (!CHECK_STRING(engine ? "" : zero_last_error(), "")) return;
    zero_status status = declare_own(engine, &own);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_fill(engine, toy_fill, NULL);
    for (int i = 0; i < OWN && !status; i++) {
        status = zero_engine_put(engine, own_name[i], ZERO_EMA, crafted, OWN_COUNT - CRAFTED, CRAFTED);
        if (!status) status = zero_engine_get(engine, own_name[i], ZERO_PARAM, weight[i], 0, OWN_COUNT);
        if (!status) status = zero_engine_get(engine, own_name[i], ZERO_EMA, average[i], 0, OWN_COUNT);
    }
    if (!status) status = zero_engine_ema_begin(engine);
    if (!status) status = check_own(engine, &own, average);
    if (!status) status = zero_engine_ema_end(engine);
    if (!status) status = check_own(engine, &own, weight);
    for (int i = 0; i < OWN && !status; i++) {
        float got[OWN_COUNT];
        status = zero_engine_get(engine, own_name[i], ZERO_EMA, got, 0, OWN_COUNT);
        if (!status) CHECK_BYTES(got, average[i], sizeof got);
    }
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void own_memory(void) {
    static const char *const more[] = {"", ", \"nvme\": {\"masters\": \"fp32\"}"};
    char json[3000], keys[300];
    for (uint32_t k = 0; k < 6; k++) {
        snprintf(keys, sizeof keys, "%s%s", types[1], more[k / 3]);
        write_json(k % 3, SMALL ", \"offload_gradients\": {\"device\": \"none\"}", keys, json, sizeof json);
        ranks_run(1 + k % 2, json, exchange_own, NULL);
    }
}

static void without_averages(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(zero_engine_ema_begin(engine), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "set ema.decay in the configuration");
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
}

int main(void) {
    stages_and_tiers();
    others();
    shadows();
    own_memory();
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1}", without_averages, NULL);
    return check_end();
}
