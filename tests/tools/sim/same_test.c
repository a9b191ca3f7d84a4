/* A run and its simulation emit the same operations: the executor's trace hash of engines that train on ranks of
 * threads, against that of virtual ranks without data, over stages, tiers, types and accumulation; and plans of the same
 * bytes. The simulation is made from what a plan-only engine plans, as `zero sim` makes it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tools/sim/job.h"

enum { RANKS = 3 };

struct variant {
    const char *name, *tiers;
    zero_dtype compute;
    uint32_t stage, micro_steps, depth, threshold;
    const char *mode;
    int evaluate, skip_unit;
    uint32_t ranks; /* 0: three */
    const char *comm, *extra;
    uint32_t recompute; /* blocks together */
    int repeats;        /* each step is above the bound on the norm */
};

#define NVME_STATE "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
#define NVME_PARAMS "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"

#define UPDATES "\"update_in_backward\": true"   /* without clipping, or with `repeats` */
#define VERTICAL "\"micro_order\": \"vertical\""

static const struct variant variants[] = {
    {"stage 0", NULL, ZERO_F32, 0, 1, 1, 0, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 0, narrow, accumulating", NULL, ZERO_BF16, 0, 3, 2, 10, "every", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 1", NULL, ZERO_F32, 1, 2, 1, 0, "last", 1, -1, 0, NULL, NULL, 0, 0},
    {"stage 1 on a drive", NVME_STATE, ZERO_F32, 1, 2, 1, 10, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 2", NULL, ZERO_F16, 2, 2, 0, 0, "auto", 0, 2, 0, NULL, NULL, 0, 0},
    {"stage 2 on the host", "\"offload_optimizer\": {\"device\": \"cpu\"}", ZERO_F32, 2, 1, 1, 60, "auto", 1,
     -1, 0, NULL, NULL, 0, 0},
    {"stage 3", NULL, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 3, accumulating", NULL, ZERO_F32, 3, 3, 3, 10, "last", 1, 1, 0, NULL, NULL, 0, 0},
    {"stage 3, narrow", NULL, ZERO_BF16, 3, 2, 2, 0, "auto", 0, 3, 0, NULL, NULL, 0, 0},
    {"stage 3, state on a drive", NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 3, state on a drive, narrow", NVME_STATE, ZERO_BF16, 3, 2, 2, 0, "auto", 1, 2, 0, NULL, NULL, 0,
     0},
    {"stage 3, parameters on the host", "\"offload_param\": {\"device\": \"cpu\"}", ZERO_F32, 3, 1, 1, 0,
     "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"stage 3, all on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_F32, 3, 2, 1, 0, "auto", 1, -1, 0, NULL,
     NULL, 0, 0},
    {"HSDP", "\"mics_shard_size\": 2", ZERO_F32, 3, 2, 1, 0, "auto", 1, -1, 4, NULL, NULL, 0, 0},
    {"stage 1, HSDP", "\"mics_shard_size\": 2", ZERO_BF16, 1, 1, 1, 0, "auto", 0, 2, 4, NULL, NULL, 0, 0},
    {"hpZ", "\"zero_hpz_partition_size\": 2", ZERO_F32, 3, 2, 2, 10, "auto", 0, -1, 4, NULL, NULL, 0, 0},
    {"kept", NULL, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 4, ", \"reshard_after_forward\": false", NULL, 0, 0},
    {"coded", "\"zero_quantized_weights\": true, \"zero_quantized_gradients\": true", ZERO_F32, 3, 2, 1, 0,
     "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"coded by pattern", "\"zero_quantized_weights\": \"fp8_e4m3\"", ZERO_BF16, 3, 2, 1, 0, "auto", 0, -1, 0,
     NULL,
     ", \"param_groups\": [{\"match\": [\"in.w\", \"?.b\"], \"zero_quantized_weights\": false}, {\"match\": "
     "\"b.*\", \"zero_quantized_weights\": \"int4\"}]",
     0, 0},
    {"coded gradients, HSDP", "\"mics_shard_size\": 2, \"zero_quantized_gradients\": true", ZERO_BF16, 2, 1,
     1, 0, "auto", 0, -1, 4, ", \"quantized_gradient_bits\": 8", NULL, 0, 0},
    {"recomputed", NULL, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL, NULL, 1, 0},
    {"recomputed together", NULL, ZERO_BF16, 3, 2, 0, 0, "auto", 0, -1, 0, NULL, NULL, 3, 0},
    {"recomputed together, all on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_F32, 3, 1, 2, 0, "auto", 0, -1,
     0, NULL, NULL, 3, 0},
    {"shadow", NVME_STATE, ZERO_F32, 1, 2, 1, 0, "auto", 0, -1, 0, NULL, ", \"nvme\": {\"shadow\": true}", 0,
     0},
    {"shadow, parameters on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_BF16, 3, 1, 1, 0, "auto", 1, -1, 0,
     NULL, ", \"nvme\": {\"shadow\": true}", 0, 0},
    {"matrices, stage 0", NULL, ZERO_F32, 0, 1, 1, 0, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"matrices, stage 1 on a drive", NVME_STATE, ZERO_BF16, 1, 2, 1, 10, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"matrices, HSDP", "\"mics_shard_size\": 2", ZERO_F32, 2, 1, 1, 0, "auto", 1, -1, 4, NULL, NULL, 0, 0},
    {"matrices, all on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_F16, 3, 2, 1, 0, "auto", 1, -1, 0, NULL,
     NULL, 0, 0},
    {"matrices with averages, all on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_F32, 3, 2, 1, 0, "auto", 1,
     -1, 0, NULL, ", \"ema\": {\"decay\": 0.9}", 0, 0},
    {"matrices, shadow", NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL,
     ", \"nvme\": {\"shadow\": true}", 0, 0},
    {"vertical", VERTICAL, ZERO_F32, 3, 3, 1, 0, "every", 1, -1, 0, NULL, NULL, 0, 0},
    {"vertical, stage 1", VERTICAL, ZERO_BF16, 1, 2, 1, 10, "last", 0, -1, 0, NULL, NULL, 0, 0},
    {"vertical, recomputed together, all on a drive", VERTICAL ", " NVME_STATE ", " NVME_PARAMS, ZERO_BF16, 3,
     2, 2, 0, "every", 0, -1, 0, NULL, NULL, 3, 0},
    {"updated in the backward", UPDATES, ZERO_F32, 2, 2, 1, 0, "last", 0, 1, 0, NULL, NULL, 0, 0},
    {"updated in the backward, all on a drive", UPDATES ", " NVME_STATE ", " NVME_PARAMS, ZERO_BF16, 3, 2, 1,
     0, "auto", 0, -1, 0, NULL, NULL, 3, 0},
    {"updated in the backward, shadow", UPDATES ", " NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL,
     ", \"nvme\": {\"shadow\": true}", 0, 0},
    {"updated in the backward, matrices", UPDATES, ZERO_BF16, 1, 2, 1, 10, "last", 0, -1, 0, NULL, NULL, 0,
     0},
    {"updated again, shadow, matrices", UPDATES ", " NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL,
     ", \"nvme\": {\"shadow\": true}", 0, 1},
    {"updated again, shadow", UPDATES ", " NVME_STATE, ZERO_BF16, 2, 2, 1, 0, "every", 0, 1, 0, NULL,
     ", \"nvme\": {\"shadow\": true}", 0, 1},
    {"updated again, shadow, all on a drive", UPDATES ", " NVME_STATE ", " NVME_PARAMS, ZERO_F32, 3, 1, 1, 0,
     "auto", 0, -1, 4, NULL, ", \"nvme\": {\"shadow\": true}", 3, 1},
    {"updated in the backward, vertical", UPDATES ", " VERTICAL ", " NVME_STATE, ZERO_F32, 3, 2, 2, 10,
     "every", 0, -1, 4, NULL, NULL, 0, 0},
    {"tensors, stage 0", NULL, ZERO_BF16, 0, 2, 1, 10, "last", 0, -1, 0, NULL, NULL, 0, 0},
    {"tensors, stage 2 on the host", "\"offload_optimizer\": {\"device\": \"cpu\"}", ZERO_F32, 2, 1, 1, 60,
     "auto", 1, -1, 0, NULL, NULL, 0, 0},
    {"tensors, stage 1 on a drive", NVME_STATE, ZERO_BF16, 1, 2, 1, 10, "auto", 0, -1, 0, NULL, NULL, 0, 0},
    {"tensors, all on a drive", NVME_STATE ", " NVME_PARAMS, ZERO_F16, 3, 2, 1, 0, "auto", 1, -1, 0, NULL,
     NULL, 0, 0},
    {"tensors, shadow, averages", NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL,
     ", \"ema\": {\"decay\": 0.9}, \"nvme\": {\"shadow\": true}", 0, 0},
    {"updated in the backward, tensors", UPDATES ", " NVME_STATE, ZERO_BF16, 1, 2, 1, 10, "last", 0, -1, 0,
     NULL, NULL, 0, 0},
    {"updated again, shadow, tensors", UPDATES ", " NVME_STATE, ZERO_F32, 3, 1, 1, 0, "auto", 0, -1, 0, NULL,
     ", \"nvme\": {\"shadow\": true}", 0, 1},
    {"tensors, hpZ", "\"zero_hpz_partition_size\": 2", ZERO_F32, 3, 2, 2, 10, "auto", 0, -1, 4, NULL, NULL, 0,
     0},
};

static struct {
    struct toy_setup toy;
    uint64_t trace, planned[ZERO_TIERS];
} real;

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct toy_result *out = calloc(1, sizeof *out);
    if (CHECK(engine) && CHECK_INT(toy_train_rank(engine, &real.toy, out), ZERO_OK) && rank == 0) {
        real.trace = executor_trace(engine_running(engine)->executor);
        for (int t = 0; t < ZERO_TIERS; t++) real.planned[t] = out->plan.bytes[t];
    } else if (rank == 0) {
        fprintf(stderr, "%s\n", out->error);
    }
    free(out);
}

static zero_status declare(zero_engine *engine, uint32_t recompute) {
    static zero_slot slot;
    zero_status status = ZERO_OK;
    zero_unit *unit = NULL, *units[TOY_UNITS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < TOY_PARAMS && !status; i++) {
        const struct toy_param *p = &toy_params[i];
        if (!i || strcmp(p->unit, toy_params[i - 1].unit))
            status = zero_engine_add_unit(engine, p->unit, &unit), units[count++] = unit;
        zero_param param = {.struct_size = sizeof param,
                            .name = p->name,
                            .dims = 2,
                            .flags = p->flags,
                            .shape = {p->rows, p->columns},
                            .tied_to = toy_tied_to(&real.toy, i),
                            .slot = &slot};
        if (!status) status = zero_unit_add_param(unit, &param);
    }
    if (!status && recompute > 1) status = zero_engine_add_segment(units[1], units[TOY_BLOCKS]);
    return status;
}

static struct speeds speeds(void) {
    struct speeds_link link = {1000000000, 1000000000, 100};
    return (struct speeds){1000000000, 1000000000, 1000000000, 1000000000, 0, link,      link,
                           1000000000, 1000000000, 1000000000, 1000,       2, 1000000000};
}

static void simulate(const struct blueprint *b, const struct variant *v, struct sim_result *out) {
    static const uint64_t flops[TOY_UNITS] = {100, 2000, 2000, 2000, 10, 100};
    struct sim_model model = {0};
    struct sim_setup setup = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_model_of(b, flops, &model, &error), ZERO_OK);
    setup = sim_setup_of(b);
    setup.model = &model;
    setup.steps = real.toy.steps;
    setup.evaluate = v->evaluate;
    setup.skip_unit = v->skip_unit;
    setup.repeated = v->repeats ? UINT32_MAX : 0;
    setup.segments = (struct pass_segments){
        .first = 1, .end = TOY_BLOCKS + 2, .blocks = v->recompute}; /* the toy's last block, too */
    setup.seed = 7;
    setup.speeds = speeds();
    if (!CHECK_INT(sim_run(&setup, out, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    sim_model_free(&model);
}

static void compare(const struct variant *v, const char *json) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .threads = 1, .plan_ranks = real.toy.ranks};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    struct sim_result result = {0};
    if (!CHECK(engine) || !CHECK_INT(declare(engine, v->recompute), ZERO_OK) ||
        !CHECK_INT(zero_engine_plan(engine, NULL), ZERO_OK)) {
        fprintf(stderr, "%s: %s\n", v->name, zero_last_error());
        return;
    }
    struct blueprint *b = engine_blueprint(engine);
    simulate(b, v, &result);
    int same = CHECK_STRING(result.error.message, "") && CHECK(result.operations == real.trace);
    for (int t = 0; t < ZERO_TIERS; t++) same &= CHECK_INT(result.planned_bytes[t], real.planned[t]);
    if (!same)
        fprintf(stderr, "%s: a run %016" PRIx64 ", simulated %016" PRIx64 "\n", v->name, real.trace,
                result.operations);
    zero_engine_destroy(engine);
}

int main(void) {
    char directory[512], tiers[1200], json[4096];
    for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        real.toy = toy_setup_default();
        real.toy.ranks = v->ranks ? v->ranks : RANKS, real.toy.stage = v->stage, real.toy.steps = 3;
        real.toy.micro_steps = v->micro_steps, real.toy.depth = v->depth, real.toy.threshold = v->threshold;
        real.toy.muon = strstr(v->name, "matrices") != NULL;
        real.toy.lamb = strstr(v->name, "tensors") != NULL;
        real.toy.mode = v->mode, real.toy.compute = v->compute;
        real.toy.evaluate = v->evaluate, real.toy.skip_unit = v->skip_unit;
        real.toy.recompute = v->recompute, real.toy.comm = v->comm, real.toy.extra = v->extra;
        real.toy.shard_ranks = v->tiers && strstr(v->tiers, "mics") ? 2 : 0;
        if (v->tiers && strstr(v->tiers, UPDATES)) real.toy.clip = v->repeats ? 1e-6 : 0;
        snprintf(directory, sizeof directory, "%s/same.%u",
                 getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp", i);
        snprintf(tiers, sizeof tiers, v->tiers ? v->tiers : "", directory, directory);
        if (v->tiers) real.toy.tiers = tiers;
        toy_config(&real.toy, json, sizeof json);
        ranks_run(real.toy.ranks, json, train, NULL);
        compare(v, json);
    }
    return check_end();
}
