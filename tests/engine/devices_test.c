/* The toy model on a device whose memory the host cannot touch. Weights, norms and losses equal the host's byte for
 * byte, at every stage, number of ranks, tier and type, and the allocated memory equals the plan. devices_test sim|cuda
 * PART */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tcp_ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/sanitized.h"
#include "tests/seeds.h"

#define CPU "\"offload_optimizer\": {\"device\": \"cpu\"}"
#define CPU_FP32 "\"offload_optimizer\": {\"device\": \"cpu\", \"masters\": \"fp32\"}"
#define ON_NVME                                                                                              \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, \"sub_group_size\": 1024"
#define NVME ON_NVME ", \"offload_gradients\": {\"device\": \"none\"}"
#define SHARED "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"
#define TIERED                                                                                               \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\", \"ratio\": 0.5}, "               \
    "\"sub_group_size\": 1024"
#define PARAM_CPU ", \"offload_param\": {\"device\": \"cpu\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define SGD "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}"
#define LION "{\"type\": \"Lion\", \"params\": {\"lr\": 0.001}}"

static const char *device;

/* In a short run, each way of a list at one or two stages, and in one mode. */
static bool is_taken(const char *name, const struct toy_setup *s) {
    return seeds_divisor() == 1 || (strlen(name) + s->stage + s->ranks + (size_t)s->mode[0]) % 3 == 0;
}

static void run_always(const char *name, struct toy_setup s) {
    static struct toy_result expected, got;
    s.steps = 3;
    toy_train(&s, &expected);
    s.device = device;
    if (s.device_comm) s.comm = s.device_comm;
    s.seed = SANITIZED ? 2 : 1; /* of sim: CI makes both */
    toy_train(&s, &got);
    int same = CHECK_STRING(expected.error, "") && CHECK_STRING(got.error, "") &&
               CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
               CHECK_STRING(got.hash, expected.hash) && CHECK_INT(got.skipped, expected.skipped);
    for (uint32_t i = 0; i < s.steps && same; i++)
        same =
            CHECK_DOUBLE(got.norm[i], expected.norm[i], 0) & CHECK_DOUBLE(got.loss[i], expected.loss[i], 0);
    for (int t = 0; t < ZERO_TIERS && same; t++)
        same = CHECK_INT(got.measured[t], got.planned[t]) & CHECK_INT(got.planned[t], got.plan.bytes[t]);
    if (!same)
        fprintf(stderr, "in %s: stage %u, %u ranks, seed %u\n", name, s.stage, s.ranks, (unsigned)s.seed);
}

static void run(const char *name, struct toy_setup s) {
    if (is_taken(name, &s)) run_always(name, s);
}

static struct toy_setup setup(uint32_t stage, uint32_t ranks) {
    struct toy_setup s = toy_setup_default();
    s.stage = stage, s.ranks = ranks;
    return s;
}

static void plain(void) {
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) run("plain", setup(stage, ranks));
}

/* A step that is updated again, and one that is taken back: the old weights reach the device, too. */
static void updates_with_a_shadow(uint32_t stage, int muon, int lamb) {
    static const char format[] =
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/shadow\"}, "
        "\"sub_group_size\": 1024%s%s%s";
    const char *own = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_devices_test";
    char tiers[2400];
    for (int narrow = 0; narrow < 2; narrow++) {
        struct toy_setup s = setup(stage, 2);
        bool params = stage == 3 && narrow;
        snprintf(tiers, sizeof tiers, format, own,
                 params ? ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"" : "",
                 params ? own : "", params ? "/shadow\"}" : "");
        s.updates = s.shadow = 1, s.nan_step = 1, s.tiers = tiers, s.muon = muon, s.lamb = lamb;
        s.compute = !narrow ? ZERO_F32 : stage % 2 ? ZERO_F16 : ZERO_BF16, s.scale_power = 6;
        run("updates in the backward, with a shadow", s);
    }
}

static void types(void) {
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.compute = ZERO_BF16;
        run("bf16", s);
        s.tiers = CPU;
        run("bf16, cpu", s);
        s.tiers = NVME;
        run("bf16, split masters on nvme", s);
        s = setup(stage, 2);
        s.compute = ZERO_F16, s.scale_power = 6, s.nan_step = 1;
        run("fp16, a step skipped", s);
        s = setup(stage, 2);
        s.communication = "bf16";
        run("fp32, sent as bf16", s);
        static const char *const tiers[] = {CPU, NULL, NVME, NVME PARAM_NVME};
        s = setup(stage, 2);
        s.compute = stage % 2 ? ZERO_F16 : ZERO_BF16, s.scale_power = 6;
        s.kept = 1 << 0 | 1 << 4 | 1 << 5, s.tiers = tiers[stage], s.micro_steps = 2;
        run("in.w, a.g and b.w stay fp32", s);
        s = setup(stage, 2);
        s.vertical = 1, s.micro_steps = 3, s.mode = stage % 2 ? "every" : "last", s.tiers = tiers[stage];
        run("micro-steps in each use", s);
        static const char *const waits[] = {CPU, CPU, ON_NVME, ON_NVME PARAM_NVME};
        s.mode = "every", s.tiers = waits[stage], s.nan_step = 1;
        s.compute = stage ? ZERO_BF16 : ZERO_F32;
        run_always("micro-steps in each use, whose sum waits on the device", s);
        s.tiers = stage > 1 ? ON_NVME ", \"mics_shard_size\": 2" : CPU, s.ranks = 4, s.clip = 1;
        run_always("the same, two copies", s);
        s = setup(stage, 2);
        s.vertical = 1, s.micro_steps = 3, s.tiers = tiers[stage];
        s.updates = 1, s.clip = 0, s.mode = "every";
        run("micro-steps in each use, updates in the backward", s);
        s = setup(stage, 2);
        s.updates = 1, s.clip = 0, s.compute = ZERO_BF16, s.tiers = tiers[stage];
        run("updates in the backward", s);
        s.waits = 0.5;
        run_always("updates in the backward and under the next forward", s);
        updates_with_a_shadow(stage, 0, 0);
    }
}

static void tiers(void) {
    static const char *const all[] = {CPU,
                                      NVME,
                                      SHARED,
                                      TIERED,
                                      CPU PARAM_CPU,
                                      NVME PARAM_CPU,
                                      NVME PARAM_NVME,
                                      SHARED PARAM_CPU,
                                      TIERED PARAM_NVME};
    for (uint32_t stage = 0; stage < 4; stage++)
        for (int t = 0; t < (stage == 3 ? 9 : 4); t++) {
            struct toy_setup s = setup(stage, 2);
            s.tiers = all[t], s.compute = t == 3 && stage ? ZERO_BF16 : ZERO_F32;
            (t < 4 ? run : run_always)(all[t], s);
        }
}

static void ways(void) {
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.micro_steps = 2, s.mode = "every", s.evaluate = 1, s.tiers = CPU;
        run("every micro-step reduces", s);
        s.mode = "last", s.tiers = NULL, s.extra = ", \"prescale_gradients\": true", s.skip_unit = 2;
        run("the last micro-step reduces", s);
        s = setup(stage, 2);
        s.memory = stage == 3 ? TOY_UNIT_GIVEN : stage == 2 ? TOY_SPANS_ADD : TOY_SPANS;
        (s.memory == TOY_UNIT_GIVEN ? run_always : run)("memory of the host program's", s);
        s = setup(stage, 2);
        s.tiers = CPU ", \"zero_quantized_gradients\": true", s.optimizer = stage % 2 ? SGD : LION;
        run("codes for gradients", s);
        s = setup(stage, 2);
        s.interrupt = 1, s.cancels = 1 + stage, s.hold = 1 << 1;
        run("interrupted passes, a held unit", s);
        s = setup(stage, 2);
        s.free_order = 1, s.cancels = 5 + stage, s.recompute = 2;
        run("free order", s);
        s.bound = 2, s.compute = ZERO_BF16;
        run("free order within a bound", s);
    }
    struct toy_setup s = setup(3, 4);
    s.tiers = CPU ", \"mics_shard_size\": 2";
    run_always("two copies", s);
    s.tiers = CPU ", \"zero_hpz_partition_size\": 2";
    run_always("a second shard", s);
    s.tiers = CPU PARAM_CPU ", \"zero_quantized_weights\": true";
    run_always("codes for parameters", s);
    s = setup(3, 2);
    s.recompute = 2;
    run_always("recomputation", s);
}

static const char *const whole_tiers[] = {NULL,
                                          CPU,
                                          NVME,
                                          ON_NVME,
                                          SHARED,
                                          TIERED,
                                          CPU PARAM_CPU,
                                          NVME PARAM_CPU,
                                          ON_NVME PARAM_NVME,
                                          SHARED PARAM_CPU,
                                          TIERED PARAM_NVME};

/* An optimizer of whole matrices or tensors: the host's bits, wherever the state is. */
static void whole(int muon, int lamb) {
    static const char *const *all = whole_tiers;
    static const zero_dtype types[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t t = 0; t < (stage == 3 ? 11 : 6); t++) {
            if (stage < 3 && (stage + t) % 2 != (lamb > 0)) continue;
            if (t == 3 && !stage) continue; /* whole gradients */
            struct toy_setup s = setup(stage, 1 + (stage + t) % 3);
            s.muon = muon, s.lamb = lamb ? 1 + t % 2 : 0;
            s.tiers = all[t], s.compute = types[(stage + t) % 3], s.scale_power = 6;
            s.nan_step = t % 2 ? 1 : -1, s.micro_steps = 1 + t % 2;
            s.communication = t == 4 && s.compute == ZERO_F32 ? "bf16" : NULL;
            s.extra = t % 3 == 1 ? ", \"ema\": {\"decay\": 0.9}" : NULL;
            run(all[t] ? all[t] : "whole matrices or tensors", s);
        }
}

static void matrices(void) {
    whole(1, 0);
    for (uint32_t stage = 1; stage < 4; stage += 2) updates_with_a_shadow(stage, 1, 0);
    struct toy_setup s = setup(3, 4);
    s.muon = 1, s.tiers = CPU ", \"mics_shard_size\": 2";
    run_always("matrices, two copies", s);
    s.tiers = ON_NVME PARAM_NVME ", \"zero_hpz_partition_size\": 2", s.compute = ZERO_BF16;
    run_always("matrices, a second shard", s);
    s = setup(1, 2), s.muon = 1, s.tiers = SHARED ", \"zero_quantized_gradients\": true";
    run_always("matrices, codes for gradients", s);
    s.tiers = CPU, s.free_order = 1, s.bound = 2, s.compute = ZERO_BF16;
    run_always("matrices, free order within a bound", s);
    s = setup(3, 2), s.muon = 1, s.vertical = 1, s.micro_steps = 3, s.mode = "every", s.tiers = ON_NVME;
    run_always("matrices, micro-steps in each use", s);
}

/* Lamb, also beside Muon. */
/* A unit of many tensors, which no pass uses. The executor queues the tensors of an update on a device some at a time. */
static void add_many(zero_engine *engine) {
    enum { TENSORS = 40, ELEMENTS_EACH = 5 };
    static __thread zero_slot slots[TENSORS];
    zero_unit *unit = NULL;
    CHECK_INT(zero_engine_add_unit(engine, "many", &unit), ZERO_OK);
    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "many.%d", i);
        zero_param param = {.struct_size = sizeof param,
                            .name = name,
                            .dims = 1,
                            .shape = {ELEMENTS_EACH},
                            .slot = &slots[i]};
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
}

static void tensors(void) {
    whole(0, 1);
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup b = setup(stage, 2);
        updates_with_a_shadow(stage, 0, 1);
        b.lamb = 1, b.updates = 1, b.clip = 0, b.tiers = whole_tiers[stage], b.compute = ZERO_BF16;
        run("tensors, updates in the backward", b);
    }
    struct toy_setup s = setup(3, 1);
    s.lamb = 1, s.begin = add_many;
    run_always("many tensors in a unit", s);
    s = setup(3, 4);
    s.lamb = 1, s.tiers = "\"mics_shard_size\": 2";
    run_always("tensors, two copies", s);
    s.tiers = ON_NVME PARAM_NVME ", \"zero_hpz_partition_size\": 2", s.compute = ZERO_BF16;
    run_always("tensors, a second shard", s);
    for (uint32_t stage = 0; stage < 4; stage += 3) {
        s = setup(stage, 2), s.muon = s.lamb = 1, s.tiers = stage ? SHARED : NULL;
        run_always("tensors beside matrices", s);
    }
    s.tiers = NULL, s.free_order = 1, s.bound = 2, s.compute = ZERO_BF16;
    run_always("tensors, free order within a bound", s);
    s = setup(3, 2), s.lamb = 1, s.vertical = 1, s.micro_steps = 3, s.mode = "every", s.tiers = ON_NVME;
    run_always("tensors, micro-steps in each use", s);
}

/* ---- gradients that rest in the host's memory ---- */

enum { ELEMENTS = TOY_VOCAB * TOY_WIDTH };

static float gradient[2][TOY_PARAMS]
                     [ELEMENTS]; /* of the host's run and of the device's, before the last step */

static zero_status take_gradients(zero_engine *engine, uint32_t step, void *user) {
    static __thread float mine[TOY_PARAMS][ELEMENTS];
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < TOY_PARAMS && step == 2 && !status; i++)
        if (!(toy_params[i].flags & ZERO_FROZEN))
            status = zero_engine_get(engine, toy_params[i].name, ZERO_GRAD, mine[i], 0,
                                     (uint64_t)toy_params[i].rows * toy_params[i].columns);
    if (zero_engine_rank(engine) == 0) memcpy(gradient[engine_running(engine)->discrete], mine, sizeof mine);
    return status;
}

static uint64_t row_bytes(zero_engine *engine, zero_tier tier, const char *name) {
    zero_memory_row row = {.struct_size = sizeof row};
    uint64_t bytes = 0;
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++)
        if (row.tier == tier && !strcmp(row.name, name)) bytes += row.measured;
    return bytes;
}

/* The device holds only whole gradients: all of them if they add up until the last micro-step, else each during its
 * interval. The host's memory holds each shard once; the device holds at most two shards, or none if the shard is made
 * in the gradient's memory. */
static void shards_are_the_hosts(zero_engine *engine, void *user) {
    const struct toy_setup *s = user;
    const struct policy *p = &engine_blueprint(engine)->policy;
    uint64_t shards = 0, whole = 0, most = 0;
    if (!engine_running(engine)->discrete) return;
    for (uint32_t i = 0; i < engine_blueprint(engine)->o.model->regions; i++) {
        uint64_t padded = engine_blueprint(engine)->o.model->region[i].padded,
                 parts = placement_parts(p->region[i].state, p->mesh),
                 shard =
                     (padded / parts * dtype_bytes(engine_blueprint(engine)->terms.precision.reduced) + 63) /
                     64 * 64;
        if (p->region[i].frozen) continue;
        shards += shard;
        if (shard > most) most = shard;
        whole += (padded * dtype_bytes(engine_blueprint(engine)->terms.precision.compute) + 63) / 64 * 64;
    }
    bool adds = s->micro_steps > 1 && strcmp(s->mode, "every") == 0,
         widens = precision_widens(&engine_blueprint(engine)->terms.precision);
    bool last = s->micro_steps > 1 && !adds,
         copies = s->ranks > p->mesh[AXIS_SHARD] && p->stage != &stage_hpz;
    CHECK_INT(row_bytes(engine, ZERO_CPU, "gradients on the host"), shards);
    CHECK_INT(row_bytes(engine, ZERO_DEVICE, "gradients"), last ? whole : 0);
    CHECK_INT(row_bytes(engine, ZERO_CPU, "gradients"), 0);
    if (s->ranks == 1)
        CHECK_INT(row_bytes(engine, ZERO_DEVICE, "reduction staging"), adds || widens ? 2 * most : 0);
    if (copies) CHECK(row_bytes(engine, ZERO_DEVICE, "reduction staging") >= 2 * most);
}

static void leave(const char *name, struct toy_setup s) {
    if (!is_taken(name, &s)) return;
    s.before = take_gradients, s.after = shards_are_the_hosts, s.user = &s;
    memset(gradient, 0xff, sizeof gradient);
    run_always(name, s);
    if (!CHECK_BYTES(gradient[1], gradient[0], sizeof gradient[0])) fprintf(stderr, "in %s\n", name);
}

static void gradients(void) {
    static const char *const modes[] = {"auto", "every", "last"};
    for (uint32_t stage = 1; stage < 4; stage++)
        for (uint32_t ranks = 1; ranks < 1 + stage; ranks++)
            for (int m = 0; m < 3; m++) {
                struct toy_setup s = setup(stage, ranks);
                s.tiers = m == 1 ? NVME : CPU, s.mode = modes[m], s.micro_steps = 1 + (m > 0);
                leave("fp32", s);
                s.compute = ZERO_BF16, s.skip_unit = 2;
                leave("bf16, a unit left out", s);
                s.skip_micro = 1, s.communication = stage == 3 ? "fp32" : NULL;
                leave("bf16, a unit left out of the last micro-step", s);
            }
    for (int m = 0; m < 3; m++) {
        struct toy_setup s = setup(3, 4);
        s.mode = modes[m], s.micro_steps = 1 + (m > 0), s.compute = m ? ZERO_BF16 : ZERO_F32;
        s.skip_unit = 2, s.skip_micro = 1;
        s.tiers = CPU ", \"mics_shard_size\": 2", s.extra = ", \"debug\": {\"compare_every\": 1}";
        leave("two copies", s);
        s.extra = NULL;
        s.tiers = CPU ", \"zero_hpz_partition_size\": 2";
        leave("a second shard", s);
        s.tiers = CPU ", \"zero_quantized_gradients\": true, \"mics_shard_size\": 2";
        leave("two copies, codes for gradients", s);
        s.tiers = CPU ", \"zero_quantized_gradients\": true";
        leave("codes for gradients", s);
        s.tiers = CPU, s.compute = ZERO_F32, s.communication = "bf16";
        leave("sent as bf16", s);
        s.compute = ZERO_F16, s.communication = NULL, s.scale_power = 6, s.nan_step = 1;
        leave("fp16, a step skipped", s);
        s.recompute = 2, s.nan_step = -1, s.skip_unit = -1;
        leave("recomputation", s);
        s = setup(2, 2);
        s.tiers = CPU, s.mode = modes[m], s.micro_steps = 1 + (m > 0), s.memory = TOY_SPANS;
        leave("gradients of the host program's", s);
    }
}

/* ---- copies between the device and its host ---- */

struct crossed {
    struct traffic traffic;
    uint64_t reduced, compute; /* bytes of all trainable shards in these types */
    uint64_t directions;
};

static void read_crossed(zero_engine *engine, void *user) {
    struct crossed *out = user;
    const struct blueprint *b = engine_blueprint(engine);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    if (zero_engine_rank(engine)) return;
    *out = (struct crossed){.traffic = executor_traffic(engine_running(engine)->executor)};
    for (uint32_t i = 0; i < b->o.model->regions; i++) {
        uint64_t shard =
            b->o.model->region[i].padded / placement_parts(b->policy.region[i].state, b->policy.mesh);
        if (b->policy.region[i].frozen) continue;
        out->reduced += shard * dtype_bytes(b->terms.precision.reduced);
        out->compute += shard * dtype_bytes(b->terms.precision.compute);
        out->directions += (b->policy.region[i].scope == SCOPE_MATRIX) * shard * sizeof(float);
    }
}

/* The host updates: a shard leaves the device once per reduction, and comes back only as parameters. In vertical order it leaves once per
 * step, also to a drive. Parameters that are their own masters, or halves of them, leave for the update, too, and once more for the norms
 * of tensors. Of whole matrices, the directions are on the device: they come from the host, and go back. */
static void crossings(void) {
    static struct toy_result got;
    static const char *const modes[] = {"every", "last"};
    for (uint32_t i = 0; i < 48; i++) {
        struct toy_setup s = setup(1 + i % 3, 1 + i % 2);
        struct crossed crossed;
        s.vertical = i / 12 == 3;
        bool drive = s.vertical && i % 2, whole = i / 6 % 2 && i % 2 == 0;
        s.device = device,
        s.tiers = drive   ? ON_NVME
                  : whole ? CPU_FP32
                          : CPU,
        s.compute = i / 6 % 2 ? ZERO_BF16 : ZERO_F32, s.micro_steps = 3, s.muon = i / 12 == 1,
        s.lamb = i / 12 == 2, s.mode = modes[i / 3 % 2], s.steps = 3, s.after = read_crossed,
        s.user = &crossed;
        toy_train(&s, &got);
        uint64_t reductions = i / 3 % 2 || s.vertical ? 1 : s.micro_steps,
                 masters = whole ? 0 : (s.lamb ? 2 : 1) * crossed.compute,
                 directions = s.muon ? crossed.directions : 0;
        int same = CHECK_STRING(got.error, "") &
                   CHECK_INT(crossed.traffic.to_host_bytes,
                             s.steps * (reductions * crossed.reduced + masters + directions)) &
                   CHECK_INT(crossed.traffic.to_device_bytes, s.steps * (crossed.compute + directions)) &
                   CHECK(!s.muon == !directions);
        if (!same) fprintf(stderr, "in stage %u, %u ranks, %s, row %u\n", s.stage, s.ranks, s.mode, i);
    }
}

/* Gradients on a drive, on the host and on the device: the bits of gradients in memory. `more`: keys of zero_optimization. */
static void stored_gradients_of(const char *name, struct toy_setup s, const char *more) {
    static struct toy_result expected, got;
    static uint32_t runs;
    char tiers[512];
    if ((runs++ + strlen(s.mode)) % 2)
        return; /* some in the modes "auto" and "last", the others in "every" */
    if (seeds_divisor() > 1 && *s.mode == (strlen(name) % 2 ? 'a' : 'l'))
        return; /* a short run: each in one mode */
    s.steps = 3, s.before = take_gradients, s.tiers = tiers;
    snprintf(tiers, sizeof tiers, NVME "%s", more);
    toy_train(&s, &expected);
    memcpy(gradient[1], gradient[0], sizeof gradient[0]);
    snprintf(tiers, sizeof tiers, ON_NVME "%s", more);
    for (int discrete = 0; discrete < 2; discrete++) {
        s.device = discrete ? device : NULL;
        memset(gradient[discrete], 0xff, sizeof gradient[0]);
        toy_train(&s, &got);
        int same = CHECK_STRING(expected.error, "") && CHECK_STRING(got.error, "") &&
                   CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
                   CHECK_BYTES(gradient[1], gradient[0], sizeof gradient[0]) &&
                   CHECK_INT(got.skipped, expected.skipped);
        for (uint32_t i = 0; i < s.steps && same; i++) same = CHECK_DOUBLE(got.norm[i], expected.norm[i], 0);
        for (int t = 0; t < ZERO_TIERS && same; t++) same = CHECK_INT(got.measured[t], got.planned[t]);
        if (!same)
            fprintf(stderr, "in %s: stage %u, %u ranks, mode %s, discrete %d\n", name, s.stage, s.ranks,
                    s.mode, discrete);
    }
}

static void stored_gradients(void) {
    static const char *const modes[] = {"auto", "every", "last"};
    for (int m = 0; m < 3; m++) {
        struct toy_setup s = setup(1 + (uint32_t)m, 2);
        s.mode = modes[m], s.micro_steps = 1 + 2 * (m > 0);
        stored_gradients_of("fp32", s, "");
        s.compute = ZERO_F16, s.scale_power = 6, s.nan_step = 1;
        stored_gradients_of("fp16, a step skipped", s, "");
        s.compute = ZERO_BF16, s.nan_step = -1, s.skip_unit = 2, s.skip_micro = m > 0;
        stored_gradients_of("a unit left out", s, "");
        s = setup(1 + (uint32_t)m, 2), s.mode = modes[m], s.micro_steps = 1 + 2 * (m > 0);
        s.interrupt = 1, s.cancels = 1 + (uint32_t)m, s.communication = "bf16";
        stored_gradients_of("interrupted passes, sent as bf16", s, "");
        s = setup(1 + (uint32_t)m, 2), s.mode = modes[m], s.micro_steps = 1 + 2 * (m > 0);
        s.free_order = 1, s.cancels = 5;
        stored_gradients_of("free order", s, "");
        s.bound = 2, s.compute = ZERO_BF16;
        stored_gradients_of("free order within a bound", s, "");
        s = setup(3, 4), s.mode = modes[m], s.micro_steps = 1 + 2 * (m > 0), s.skip_unit = 2,
        s.skip_micro = m > 0;
        s.extra = ", \"debug\": {\"compare_every\": 1}";
        stored_gradients_of("two copies", s, ", \"mics_shard_size\": 2");
        stored_gradients_of("two copies, codes", s,
                            ", \"mics_shard_size\": 2, \"zero_quantized_gradients\": true");
        stored_gradients_of("codes", s, ", \"zero_quantized_gradients\": true");
        s.comm = ", \"reduction\": \"native\"";
        stored_gradients_of("native sums", s, "");
        s = setup(2, 2), s.mode = modes[m], s.micro_steps = 1 + 2 * (m > 0), s.memory = TOY_SPANS_ADD;
        stored_gradients_of("memory of the host program's", s, "");
        s.memory = TOY_UNIT_GIVEN;
        stored_gradients_of("gradients that the program made", s, "");
        s.optimizer = SGD, s.memory = 0;
        stored_gradients_of("sgd", s, "");
        s.optimizer = "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05}}";
        stored_gradients_of("an optimizer without state", s, "");
    }
}

/* ---- memory that calls between steps read and write ---- */

struct seen {
    float state[TOY_PARAMS][2][ELEMENTS];
    char put[33], saved[33], loaded[33];
    char dir[64];
};

/* Moments; weights and moments that are put; a checkpoint, saved before the put and loaded after it. */
static void look(zero_engine *engine, void *user) {
    struct seen *seen = user, mine = *seen;
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        uint64_t count = (uint64_t)toy_params[i].rows * toy_params[i].columns;
        for (int k = 0; k < 2 && !(toy_params[i].flags & ZERO_FROZEN); k++)
            CHECK_INT(zero_engine_get(engine, toy_params[i].name, (zero_kind)(ZERO_STATE0 + k),
                                      mine.state[i][k], 0, count),
                      ZERO_OK);
    }
    CHECK_INT(zero_engine_hash(engine, mine.saved), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, mine.dir), ZERO_OK);
    CHECK_INT(zero_engine_put(engine, "a.w", ZERO_PARAM, mine.state[0][0] + 1, 3, 40), ZERO_OK);
    CHECK_INT(zero_engine_put(engine, "a.w", ZERO_STATE0, mine.state[0][1], 5, 7), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, mine.put), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, mine.dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, mine.loaded), ZERO_OK);
    CHECK_STRING(mine.loaded, mine.saved);
    if (zero_engine_rank(engine) == 0) *seen = mine;
}

static void stored(void) {
    static const char *const all[] = {NULL, CPU, NVME, TIERED};
    static struct seen expected, got;
    static struct toy_result result;
    for (uint32_t i = 0; i < 16; i++) {
        struct toy_setup s = setup(i % 4, 2);
        s.tiers = all[i / 4], s.compute = i % 2 ? ZERO_BF16 : ZERO_F32, s.steps = 2, s.after = look;
        s.extra = ", \"debug\": {\"compare_every\": 1}";
        snprintf(expected.dir, sizeof expected.dir, "/tmp/zero-devices-XXXXXX");
        if (!CHECK(mkdtemp(expected.dir))) return;
        got = (struct seen){0};
        strcpy(got.dir, expected.dir);
        strcat(got.dir, "/device");
        s.user = &expected;
        toy_train(&s, &result);
        CHECK_STRING(result.error, "");
        s.user = &got, s.device = device;
        toy_train(&s, &result);
        int same = CHECK_STRING(result.error, "") & CHECK_BYTES(got.state, expected.state, sizeof got.state) &
                   CHECK_STRING(got.put, expected.put) & CHECK_STRING(got.saved, expected.saved);
        if (!same) fprintf(stderr, "in stage %u, tier %u\n", i % 4, i / 4);
        char command[128];
        snprintf(command, sizeof command, "rm -r %s", expected.dir);
        CHECK_INT(system(command), 0);
    }
}

/* A budget limits the device's memory or the host's memory, each on its own. */
static void budgets(void) {
    static struct toy_result got;
    static const char *const names[] = {"device", "cpu"};
    struct toy_setup s = setup(3, 2);
    char extra[64];
    s.steps = 1, s.device = device, s.tiers = CPU;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    uint64_t need[] = {got.plan.bytes[ZERO_DEVICE], got.plan.bytes[ZERO_CPU]};
    CHECK(need[0] && need[1]);
    for (int t = 0; t < 2; t++)
        for (int less = 0; less < 2; less++) {
            snprintf(extra, sizeof extra, ", \"memory\": {\"%s\": %u}", names[t],
                     (unsigned)need[t] - (unsigned)less);
            s.extra = extra;
            toy_train(&s, &got);
            CHECK_INT(got.status, less ? ZERO_E_BUDGET : ZERO_OK);
            if (less) CHECK_CONTAINS(got.error, names[t]);
        }
    snprintf(extra, sizeof extra, ", \"memory\": {\"device\": %u}", (unsigned)need[0]);
    s.extra = extra, s.tiers = NULL; /* states and gradients would be there */
    toy_train(&s, &got);
    CHECK_INT(got.status, ZERO_E_BUDGET);
    CHECK_CONTAINS(got.error, "it fits with zero_optimization.offload_optimizer.device \"cpu\"");
}

/* ---- what is chosen, and refused ---- */

static void prepare(void *user, const zero_optimizer_params *params, uint64_t step,
                    float scalars[ZERO_SCALARS_MAX]) {
    scalars[0] = (float)params->lr;
}

static void descend(void *user, float *weight, float *state0, float *state1, const float *gradient,
                    float gradient_scale, const float *scalars, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) weight[i] -= scalars[0] * (gradient[i] * gradient_scale);
}

static void bring_optimizer(zero_engine *engine) {
    zero_optimizer own = {
        .struct_size = sizeof own, .name = "descent", .prepare = prepare, .update = descend};
    CHECK_INT(zero_engine_set_optimizer(engine, &own), ZERO_OK);
}

static void refused(zero_engine *engine, uint32_t rank, void *user) {
    CHECK(!engine);
    if (rank != 1) CHECK_CONTAINS(zero_last_error(), "rank 1: ");
    if (!CHECK_CONTAINS(zero_last_error(), user)) fprintf(stderr, "rank %u\n", rank);
}

/* One rank without a GPU ends all ranks, with its own reason. */
static void one_rank_without(void) {
    static const char first[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"device\": {\"type\": \"cuda\", \"index\": 0}}";
    static const char none[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"device\": {\"type\": \"cuda\", \"index\": 7}}";
    ranks_run_each(3, (const char *const[]){first, none, first}, refused, (char[]){"there is no GPU 7"});
}

struct half {
    zero_local *local;
    uint32_t rank;
};

/* Only rank 1 says that it computes on a GPU. */
static void *open_half(void *argument) {
    const struct half *h = argument;
    zero_runtime runtime = {
        .struct_size = sizeof runtime, .local = h->local, .local_rank = h->rank, .cuda = h->rank == 1};
    zero_engine *engine = zero_engine_init_with("{\"train_micro_batch_size_per_gpu\": 1}", &runtime);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), "rank 1 computes on a GPU and rank 0 on the CPU: set device.type");
    return NULL;
}

static void two_threads(void *(*body)(void *argument)) {
    pthread_t thread[2];
    struct half half[2];
    zero_local *local = zero_local_create(2);
    for (uint32_t r = 0; r < 2; r++) {
        half[r] = (struct half){local, r};
        pthread_create(&thread[r], NULL, body, &half[r]);
    }
    for (uint32_t r = 0; r < 2; r++) pthread_join(thread[r], NULL);
    zero_local_destroy(local);
}

static void opens(zero_engine *engine, uint32_t rank, void *user) { CHECK(engine); }

static void says(zero_engine *engine, uint32_t rank, void *user) {
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), user);
}

/* A GPU adds the gradients of at most 16 ranks: of a whole world, also with a second shard; or of each group, on either axis. */
static void many_ranks(void) {
    static const char all[] = "{\"train_micro_batch_size_per_gpu\": 1}",
                      groups[] =
                          "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
                          "\"mics_shard_size\": 8}}",
                      copies[] =
                          "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
                          "\"mics_shard_size\": 1}}",
                      second[] =
                          "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
                          "\"zero_hpz_partition_size\": 9}}";
    ranks_run_discrete(16, all, opens, NULL);
    ranks_run_discrete(17, all, says,
                       (char[]){"17 ranks on one GPU, which adds the gradients of at most 16"});
    ranks_run_discrete(24, groups, opens, NULL);
    ranks_run_discrete(17, copies, says, (char[]){"17 ranks on one GPU"});
    ranks_run_discrete(18, second, says, (char[]){"18 ranks on one GPU"});
}

static void choice(void) {
    static struct toy_result got;
    struct toy_setup s = setup(2, 2);
    s.begin = bring_optimizer, s.tiers = CPU;
    run("the host program's optimizer", s);
    s.tiers = NULL, s.device = device, s.steps = 1;
    toy_train(&s, &got);
    CHECK_INT(got.status, ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(got.error, "offload_optimizer.device");
    many_ranks();
    if (strcmp(device, "cuda")) return;
    s = setup(3, 1), s.steps = 1;
    s.extra = ", \"device\": {\"type\": \"cuda\", \"index\": 0}";
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    s.extra = ", \"device\": {\"type\": \"cuda\", \"index\": 7}";
    toy_train(&s, &got);
    CHECK_CONTAINS(got.error, "there is no GPU 7");
    one_rank_without();
    two_threads(open_half);
}

static void is_nccl(zero_engine *engine, void *user) {
    if (engine_running(engine)->discrete)
        CHECK_STRING(comm_name(engine_running(engine)->ranks->data), "nccl");
}

/* NCCL's own sums, in bf16: every stage makes the same calls, and ends in the same bits. */
static void nccl_native(void) {
    static struct toy_result first, got;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.comm = ", \"transport\": \"nccl\", \"reduction\": \"native\"";
        s.device = device, s.after = is_nccl, s.compute = ZERO_BF16, s.steps = 3;
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
        if (!stage) first = got;
        CHECK_BYTES(got.weights, first.weights, sizeof got.weights);
    }
}

/* Rank 1 ends its training a step before rank 0, whose gathers then wait on its GPU. */
static void *leave_early(void *argument) {
    const struct half *h = argument;
    static struct toy_result got[2];
    struct toy_setup s = setup(3, 2);
    char json[2048];
    s.steps = h->rank ? 1 : 2, s.timeout_s = 1;
    s.comm = ", \"transport\": \"nccl\"", s.extra = ", \"device\": {\"type\": \"cuda\"}";
    toy_config(&s, json, sizeof json);
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = h->local, .local_rank = h->rank};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine)) return NULL;
    CHECK_INT(toy_train_rank(engine, &s, &got[h->rank]), ZERO_E_PEER);
    struct device *gpu = engine_running(engine)->device;
    void *memory = gpu->ops->allocate(gpu, 1, DEVICE_MEMORY);
    gpu->ops->release(gpu, memory, 1, DEVICE_MEMORY); /* waits for all work of the GPU */
    zero_engine_destroy(engine);
    return NULL;
}

static void is_drivers(zero_engine *engine, void *user) {
    if (engine_running(engine)->discrete) CHECK(engine_running(engine)->device->pinned_by_driver);
}

static void detach_all(zero_engine *engine) { engine_running(engine)->detached_bytes = 1; }

/* The driver registers no host memory, and allocates pinned memory itself. All updates of the host are jobs. */
static void unregistered(void) {
    static const char *const all[] = {CPU, NVME, CPU PARAM_CPU, NVME PARAM_NVME};
    setenv("FAKE_CUDA_REGISTERS", "0", 1);
    for (int t = 0; t < 4; t++) {
        struct toy_setup s = setup(3, 2);
        s.tiers = all[t], s.after = is_drivers, s.begin = detach_all;
        run_always(all[t], s);
    }
}

static void take_wire_bytes(zero_engine *engine, void *user) {
    zero_counters counters = {.struct_size = sizeof counters};
    is_nccl(engine, user);
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_OK);
    if (zero_engine_rank(engine) == 0)
        ((uint64_t *)user)[engine_running(engine)->discrete] = counters.wire_bytes;
}

/* Codes are summed by levels from 8 ranks of a node on, which the bytes show: levels send fewer between nodes, and more inside. */
static void nccl_codes(void) {
#define NODES_OF_8 ", \"node_ranks\": 8, \"quantized_gradient_bits\": 8"
    uint64_t bytes[2];
    struct toy_setup s = setup(2, 16);
    s.comm = NODES_OF_8, s.device_comm = NODES_OF_8 ", \"transport\": \"nccl\"";
    s.tiers = "\"zero_quantized_gradients\": true";
    s.after = take_wire_bytes, s.user = bytes, s.compute = ZERO_BF16;
    run_always("nccl, two nodes, codes", s);
    CHECK(bytes[1] > bytes[0]);
}

/* NCCL beside the ranks' threads: shards are exchanged, and added in the order of ranks. */
static void nccl(void) {
    static const char transport[] = ", \"transport\": \"nccl\"";
    static struct toy_result got;
    setenv("FAKE_CUDA_DEVICES", "16", 1), setenv("FAKE_NCCL_VERSION", "22809", 1);
    two_threads(leave_early);
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct toy_setup s = setup(stage, 2);
        s.device_comm = transport, s.after = is_nccl;
        run("nccl", s);
        s.compute = ZERO_BF16, s.tiers = CPU;
        run("nccl, bf16, cpu", s);
    }
    struct toy_setup s = setup(3, 4);
    s.device_comm = transport, s.after = is_nccl, s.tiers = CPU ", \"mics_shard_size\": 2";
    run_always("nccl, two copies", s);
    s.tiers = CPU ", \"zero_hpz_partition_size\": 2, \"zero_quantized_weights\": \"fp8_e4m3\"";
    run_always("nccl, a second shard, codes in fp8", s);
    for (uint32_t stage = 0; stage < 4; stage += 3) {
        s = setup(stage, 4);
        s.comm = ", \"node_ranks\": 2", s.device_comm = ", \"transport\": \"nccl\", \"node_ranks\": 2";
        s.after = is_nccl, s.compute = ZERO_BF16;
        run_always("nccl, two nodes", s);
    }
    nccl_codes();
    for (uint32_t stage = 0; stage < 4; stage += 3) {
        s = setup(stage, 3);
        s.device_comm = transport, s.after = is_nccl, s.muon = 1, s.tiers = stage ? CPU : NULL;
        run_always("nccl, matrices", s);
        s.muon = 0, s.lamb = 1;
        run_always("nccl, tensors", s);
    }
    s = setup(3, 2), s.comm = transport, s.steps = 1;
    toy_train(&s, &got);
    CHECK_INT(got.status, ZERO_E_CONFIG);
    CHECK_CONTAINS(got.error, "comm.transport");
    nccl_native();
}

struct one_gpu {
    struct toy_setup setup;
    struct toy_result expected;
};

/* NCCL takes a process with its own NCCL_HOSTID for a rank on another host, and connects it by sockets. */
static void train_on_one_gpu(const zero_runtime *runtime, void *user) {
    static const char *const settings[][2] = {{"NCCL_NET", "Socket"},   {"NCCL_SOCKET_IFNAME", "lo"},
                                              {"NCCL_MAX_CTAS", "2"},   {"NCCL_NVLS_ENABLE", "0"},
                                              {"NCCL_RAS_ENABLE", "0"}, {"NCCL_CUMEM_ENABLE", "0"}};
    static struct toy_result got;
    struct one_gpu *o = user;
    char json[4096], host[16];
    snprintf(host, sizeof host, "host-%u", runtime->rank);
    setenv("NCCL_HOSTID", host, 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) setenv(settings[i][0], settings[i][1], 0);
    toy_config(&o->setup, json, sizeof json);
    zero_engine *engine = zero_engine_init_with(json, runtime);
    if (!engine) fprintf(stderr, "%s\n", zero_last_error());
    if (!CHECK(engine)) return;
    CHECK_INT(toy_train_rank(engine, &o->setup, &got), ZERO_OK);
    CHECK_STRING(got.error, "");
    CHECK_STRING(got.hash, o->expected.hash);
    CHECK_BYTES(got.weights, o->expected.weights, sizeof got.weights);
    zero_engine_destroy(engine);
}

/* Processes on one GPU, as tools/gpu-check has them: ordered sums end in the weights of ranks on the host. */
static void hosts(void) {
    static struct one_gpu o;
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        o.setup = setup(3, ranks);
        o.setup.steps = 3, o.setup.compute = ZERO_BF16;
        o.setup.tiers = ranks == 4 ? CPU ", \"mics_shard_size\": 2" : NULL;
        toy_train(&o.setup, &o.expected);
        CHECK_STRING(o.expected.error, "");
        o.setup.comm = ", \"transport\": \"nccl\"", o.setup.after = is_nccl;
        o.setup.extra = ", \"device\": {\"type\": \"cuda\", \"index\": 0}";
        tcp_processes(ranks, 60, train_on_one_gpu, &o);
    }
}

/* While this device is open, the next one needs no new context, whose creation takes a GPU longer than a trial. Must
 * run after `nccl`, which finds the number of GPUs. */
static struct device *keep_awake(const char *part) {
    struct device *awake = NULL;
    struct zero_error error;
    error_clear(&error);
    if (!strcmp(device, "cuda") && strcmp(part, "nccl") && strcmp(part, "hosts"))
        CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){.index = -1}, &awake, &error),
                  ZERO_OK);
    CHECK_STRING(error.message, "");
    return awake;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"plain", plain},
                 {"types", types},
                 {"tiers", tiers},
                 {"ways", ways},
                 {"stored", stored},
                 {"gradients", gradients},
                 {"stored_gradients", stored_gradients},
                 {"matrices", matrices},
                 {"tensors", tensors},
                 {"crossings", crossings},
                 {"budgets", budgets},
                 {"choice", choice},
                 {"unregistered", unregistered},
                 {"nccl", nccl},
                 {"hosts", hosts}};
    int found = 0;
    if (argc != 3) return 2;
    device = argv[1];
    struct device *awake = keep_awake(argv[2]);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(parts[i].name, argv[2])) parts[i].run(), found = 1;
    CHECK(found);
    if (awake) awake->ops->close(awake);
    return check_end();
}
