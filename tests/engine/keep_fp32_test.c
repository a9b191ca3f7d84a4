/* Parameters that stay fp32 in a bf16 or fp16 run, beside others in the same unit: at every stage, tier, mesh and number of
 * ranks the weights of the serial oracle, byte for byte. If all parameters are kept, the run is an fp32 run. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

static struct toy_result got, expected;

/* Parameters by their bits: in.w, which out.w is tied to; in.b, a.g, b.w, c.b; fix.f, which is frozen. With the default
 * threshold units `a` and `c` keep a persistent one, `b` a sharded one, and `in` and `out` use in.w. */
enum { MIXED = 1 << 0 | 1 << 4 | 1 << 5 | 1 << 9 | 1 << 11, ALL = (1 << TOY_PARAMS) - 1 };
#define MIXED_PATTERNS                                                                                       \
    ", \"param_groups\": [{\"match\": [\"in.w\", \"a.g\", \"b.w\", \"c.b\", \"fix.f\"], \"dtype\": "         \
    "\"fp32\"}]"

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"%1$s/keep\"}"

/* Keys of zero_optimization; the last three are of stage 3. */
static const char *const tiers[] = {
    "\"offload_optimizer\": {\"device\": \"none\"}",
    "\"offload_optimizer\": {\"device\": \"cpu\"}",
    "\"sub_group_size\": 32, \"offload_optimizer\": " NVME,
    "\"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}",
    "\"sub_group_size\": 32, \"offload_optimizer\": " NVME ", \"offload_param\": " NVME,
    "\"zero_hpz_partition_size\": 2"};
enum { TIERS = sizeof tiers / sizeof *tiers, TIERS_OF_ALL = 3 };

static bool equal(const struct toy_setup *s) {
    bool same = CHECK_STRING(got.error, "") && CHECK_INT(got.status, ZERO_OK) &&
                CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
                CHECK_INT(got.skipped, expected.skipped);
    for (uint32_t i = 0; i < s->steps && same; i++)
        same = CHECK_DOUBLE(got.norm[i], expected.norm[i], 1e-12) &&
               CHECK_DOUBLE(got.loss[i], expected.loss[i], 1e-12);
    for (int t = 0; t < ZERO_TIERS && same; t++)
        same = CHECK_INT(got.measured[t], got.planned[t]) && CHECK_INT(got.planned[t], got.plan.bytes[t]);
    if (!same)
        fprintf(
            stderr,
            "in type %d, kept %x, stage %u, ranks %u, micro-steps %u, mode %s, threshold %u, memory %d, %s\n",
            s->compute, s->kept, s->stage, s->ranks, s->micro_steps, s->mode, s->threshold, s->memory,
            s->tiers ? s->tiers : "");
    return same;
}

static void with_tier(struct toy_setup *s, int tier) {
    static char keys[1024];
    snprintf(keys, sizeof keys, tiers[tier], getenv("TEST_TMPDIR"));
    s->tiers = keys;
    toy_train(s, &got);
    equal(s);
}

static void by_stage_and_tier(struct toy_setup *s) {
    for (s->stage = 0; s->stage <= 3; s->stage++) {
        if (s->stage == 0 || !strcmp(s->mode, "auto")) toy_oracle(s, &expected);
        for (int tier = 0; tier < (s->stage == 3 ? TIERS : TIERS_OF_ALL); tier++)
            if (tier < TIERS - 1 || s->ranks == 4) with_tier(s, tier);
    }
}

static void stages_tiers_and_ranks(void) {
    static const uint32_t thresholds[] = {10, 0, 1000};
    struct toy_setup s = toy_setup_default();
    s.kept = MIXED, s.steps = 6, s.scale_power = 10;
    for (s.ranks = 1; s.ranks <= 4; s.ranks += s.ranks == 2 ? 2 : 1)
        for (s.compute = ZERO_BF16; s.compute <= ZERO_F16; s.compute++) {
            s.threshold = thresholds[s.ranks % 3];
            s.micro_steps = s.compute == ZERO_BF16 ? 2 : 1, s.mode = s.ranks == 2 ? "last" : "every";
            by_stage_and_tier(&s);
        }
}

/* Where the host keeps its parameters and gradients; what communication rounds to; other states and splits of masters. */
static void other_ways(void) {
    static const char *const communication[] = {"fp32", "bf16", "fp16"};
    struct toy_setup s = toy_setup_default();
    s.kept = MIXED, s.steps = 6, s.micro_steps = 2, s.mode = "last", s.compute = ZERO_BF16;
    for (s.memory = TOY_SPANS; s.memory < TOY_MEMORIES; s.memory++) {
        toy_oracle(&s, &expected);
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            bool spans = s.memory == TOY_SPANS || s.memory == TOY_SPANS_ADD;
            if (!spans || s.stage < 3) toy_train(&s, &got), equal(&s);
        }
    }
    s.memory = TOY_SLOTS;
    for (int c = 0; c < 3; c++) {
        s.communication = communication[c];
        toy_oracle(&s, &expected);
        for (s.stage = 0; s.stage <= 3; s.stage++) toy_train(&s, &got), equal(&s);
    }
    s.communication = NULL, s.stage = 3, s.free_order = 1;
    toy_oracle(&s, &expected);
    toy_train(&s, &got), equal(&s);
    s.free_order = 0, s.hold = 1 << 1;
    toy_train(&s, &got), equal(&s);
    s.hold = 0, s.frozen = 1 << 0 | 1 << 5;
    s.extra = ", \"param_groups\": [{\"match\": [\"in.w\", \"b.w\"], \"frozen\": true}], \"debug\": "
              "{\"compare_every\": 1}";
    toy_oracle(&s, &expected);
    for (s.stage = 0; s.stage <= 3; s.stage++) toy_train(&s, &got), equal(&s);
}

/* Two copies: their shards are summed after the reductions. */
static void on_a_mesh(void) {
    struct toy_setup s = toy_setup_default();
    s.kept = MIXED, s.steps = 6, s.compute = ZERO_BF16, s.ranks = 4, s.shard_ranks = 2;
    s.tiers = "\"mics_shard_size\": 2";
    toy_oracle(&s, &expected);
    for (s.stage = 0; s.stage <= 3; s.stage++) toy_train(&s, &got), equal(&s);
}

/* The pattern is the flag, and the plan counts what is kept: 4 bytes for 2, and no masters. */
static void by_pattern(void) {
    struct toy_setup s = toy_setup_default();
    s.compute = ZERO_BF16, s.ranks = 1, s.steps = 3, s.threshold = 0;
    for (s.stage = 0; s.stage <= 3; s.stage += 3) {
        struct toy_result flag, none;
        s.kept = 0, toy_train(&s, &none);
        s.kept = MIXED, toy_train(&s, &flag);
        s.kept_by_pattern = 1, s.extra = MIXED_PATTERNS;
        toy_train(&s, &got);
        s.kept_by_pattern = 0, s.extra = NULL;
        CHECK_STRING(got.error, "");
        CHECK_STRING(got.hash, flag.hash);
        CHECK(strcmp(got.hash, none.hash));
        CHECK_BYTES(&got.plan, &flag.plan, sizeof got.plan);
        /* By cache lines, as fp32: 91, 7, 49 and 7 elements take 6, 1, 4 and 1 lines; fix.f takes 1. As bf16 they took 3, 1,
         * 2, 1 and 1, and their masters 6, 2, 4, 2. */
        CHECK_INT(flag.plan.master_bytes, none.plan.master_bytes - 64 * (6 + 2 + 4 + 2));
        CHECK_INT(flag.plan.param_bytes, none.plan.param_bytes + 64 * (3 + 0 + 2 + 0 + 0));
    }
}

/* If all are kept, a narrow run has the bits and the bytes of an fp32 run, whatever its sums are, and codes nothing.
 * In an fp32 run the flag changes nothing. */
static void all_of_them(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = 4, s.steps = 5, s.threshold = 0;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        struct toy_result wide;
        s.compute = ZERO_F32, s.kept = 0, s.extra = NULL, toy_train(&s, &wide);
        s.kept = ALL, toy_train(&s, &got);
        CHECK_STRING(got.hash, wide.hash);
        CHECK_BYTES(&got.plan, &wide.plan, sizeof got.plan);
        s.compute = ZERO_BF16, s.communication = "fp32";
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
        CHECK_STRING(got.hash, wide.hash);
        CHECK_BYTES(&got.plan, &wide.plan, sizeof got.plan);
        s.tiers = s.stage == 3 ? "\"zero_quantized_weights\": true, \"zero_quantized_gradients\": true"
                               : "\"zero_quantized_gradients\": true";
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
        CHECK_STRING(got.hash, wide.hash);
        s.tiers = NULL, s.communication = NULL;
    }
}

/* ---- calls ---- */

static zero_status add(zero_unit *unit, const char *name, uint32_t flags, const char *tied_to) {
    static zero_slot slot;
    zero_param param = {.struct_size = sizeof param,
                        .name = name,
                        .dims = 1,
                        .shape = {5},
                        .flags = flags,
                        .tied_to = tied_to,
                        .slot = &slot};
    return zero_unit_add_param(unit, &param);
}

/* Spans of both kinds: the weights come from there, and a kept one is not rounded. */
static void filled_from_spans(void) {
    static float wide[5] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f}, wide_grad[5], back[5];
    static uint16_t narrow[5] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0}, narrow_grad[5]; /* 1 to 5 */
    const zero_span spans[] = {{wide, wide_grad, 5}, {narrow, narrow_grad, 5}};
    zero_engine *engine = zero_engine_init("{\"train_batch_size\": 1, \"bf16\": {\"enabled\": true}}");
    zero_unit *unit;
    CHECK_INT(zero_engine_add_unit(engine, "a", &unit), ZERO_OK);
    for (int i = 0; i < 2; i++) {
        zero_param param = {.struct_size = sizeof param,
                            .name = i ? "narrow" : "wide",
                            .dims = 1,
                            .shape = {5},
                            .flags = i ? 0 : ZERO_KEEP_FP32,
                            .spans = &spans[i],
                            .span_count = 1};
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_OK);
    CHECK_INT(zero_engine_get(engine, "wide", ZERO_PARAM, back, 0, 5), ZERO_OK);
    CHECK_BYTES(back, wide, sizeof back);
    CHECK_INT(zero_engine_get(engine, "narrow", ZERO_PARAM, back, 0, 5), ZERO_OK);
    for (int i = 0; i < 5; i++) CHECK_DOUBLE(back[i], i + 1, 0);
    zero_engine_destroy(engine);
}

static void types_are_known(void) {
    zero_engine *engine =
        zero_engine_init("{\"train_batch_size\": 1, \"bf16\": {\"enabled\": true}, \"param_groups\": "
                         "[{\"match\": \"norm*\", \"dtype\": \"fp32\"}]}");
    zero_unit *a, *b;
    CHECK_INT(zero_engine_add_unit(engine, "a", &a), ZERO_OK);
    CHECK_INT(add(a, "w", 0, NULL), ZERO_OK);
    CHECK_INT(add(a, "router", ZERO_KEEP_FP32, NULL), ZERO_OK);
    CHECK_INT(add(a, "norm.w", 0, NULL), ZERO_OK);
    CHECK_INT(zero_engine_add_unit(engine, "b", &b), ZERO_OK);
    CHECK_INT(add(b, "t", ZERO_KEEP_FP32, "w"), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "\"t\" is tied to \"w\" and has other flags");
    CHECK_INT(add(b, "t", ZERO_KEEP_FP32, "norm.w"), ZERO_OK);
    CHECK_INT(add(b, "u", 0, "router"), ZERO_OK);
    CHECK_INT(zero_param_dtype(zero_engine_param(engine, "w")), ZERO_BF16);
    CHECK_INT(zero_param_dtype(zero_engine_param(engine, "router")), ZERO_F32);
    CHECK_INT(zero_param_dtype(zero_engine_param(engine, "norm.w")), ZERO_F32);
    CHECK_INT(zero_param_dtype(zero_engine_param(engine, "t")), ZERO_F32);
    CHECK_INT(zero_param_dtype(zero_engine_param(engine, "u")), ZERO_F32);
    CHECK_INT(zero_param_dtype(NULL), ZERO_F32);
    CHECK_CONTAINS(zero_last_error(), "zero_param_dtype: the parameter is NULL");
    zero_engine_destroy(engine);
}

static void mistakes(void) {
    static const char *const wrong[] = {"\"bf16\"", "\"float32\"", "32", "true"};
    char json[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(json, sizeof json,
                 "{\"train_batch_size\": 1, \"param_groups\": [{\"match\": \"*\", \"dtype\": %s}]}",
                 wrong[i]);
        CHECK(!zero_engine_init(json));
        CHECK_CONTAINS(zero_last_error(), "param_groups[0].dtype: ");
        CHECK_CONTAINS(zero_last_error(), "stands where \"fp32\", for parameters that stay fp32");
    }
}

int main(void) {
    stages_tiers_and_ranks();
    other_ways();
    on_a_mesh();
    by_pattern();
    all_of_them();
    filled_from_spans();
    types_are_known();
    mistakes();
    return check_end();
}
