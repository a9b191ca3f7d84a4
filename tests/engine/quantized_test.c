/* ZeRO++'s quantised collectives: what is gathered and what is summed, element by element from the definition in
 * kernels/quantize.h; bytes on the wire by hand; formats by pattern in one unit; the same bits at every stage, tier, depth and,
 * where only weights are quantised, mesh; near the exact training; an inf or NaN skips the step on all ranks. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

#define WEIGHTS ", \"zero_quantized_weights\": true"
#define GRADIENTS ", \"zero_quantized_gradients\": true"

/* ---- by definition: four ranks, one region; a share has 3 blocks, of which the last is short ---- */

enum { RANKS = 4, MICRO_STEPS = 2, SHARE = 608, COUNT = RANKS * SHARE, BLOCK = 256 };
static const struct plain_param one_region[] = {{"a", "a.w", COUNT, 0, NULL}};

/* Of each format: its value in a configuration, its largest code, and bytes of the code of a share: 12 of scales, then 304 or 608,
 * padded to 64. */
static const struct format {
    const char *name;
    float largest;
    uint32_t bytes;
    bool fp8;
} int4 = {"\"int4\"", 7, 320, false}, int8 = {"true", 127, 640, false},
  fp8 = {"\"fp8_e4m3\"", 448, 640, true};
static const struct format *const formats[] = {&int4, &int8, &fp8};
enum { FORMATS = 3 };

/* The nearest number with 4 significant bits, not below 2^-9: ties to even. */
static float nearest_e4m3(float x) {
    int exponent;
    frexpf(x, &exponent);
    float unit = ldexpf(1, (exponent < -5 ? -5 : exponent) - 4);
    return nearbyintf(x / unit) * unit;
}

/* x, cut into shares and those into blocks, coded and decoded. */
static void code(const float *x, const struct format *format, float out[COUNT]) {
    for (uint32_t block = 0, end; block < COUNT; block = end) {
        uint32_t share_end = (block / SHARE + 1) * SHARE;
        float most = 0;
        end = block + BLOCK < share_end ? block + BLOCK : share_end;
        for (uint32_t k = block; k < end; k++) most = fmaxf(most, fabsf(x[k]));
        for (uint32_t k = block; k < end; k++) {
            float scaled = most > 0 ? x[k] * (format->largest / most) : 0;
            out[k] = (format->fp8 ? nearest_e4m3(scaled) : nearbyintf(scaled)) * (most / format->largest);
        }
    }
}

struct bits {
    uint32_t bits;
};

static void take_masters(zero_engine *engine, float own[COUNT]) {
    CHECK_INT(zero_engine_get(engine, "a.w", ZERO_PARAM, own, 0, COUNT), ZERO_OK);
}

static void weights_are_decoded(zero_engine *engine, uint32_t rank, void *user) {
    const struct format *format = user;
    struct plain p;
    float *own = malloc(COUNT * sizeof *own);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, one_region, 1, NULL), ZERO_OK)) return;
    for (int step = 0; step < 3; step++) {
        take_masters(engine, own);
        code(own, format, own);
        CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
        CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
        const float *seen = p.slot[0].param;
        for (uint32_t i = 0; i < COUNT; i++)
            if (!CHECK_DOUBLE(seen[i], own[i], 0)) break;
        CHECK_INT(zero_forward_end(p.unit[0]), ZERO_OK);
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    }
    free(own);
}

/* The gradient that the engine has is the sum over micro-steps of the sums of the ranks' decoded ones, over the number
 * of both. */
static void gradients_are_sums_of_codes(zero_engine *engine, uint32_t rank, void *user) {
    const struct bits *bits = user;
    struct plain p;
    float *own = malloc(COUNT * sizeof *own), *made = malloc(MICRO_STEPS * RANKS * COUNT * sizeof *made);
    float *got = malloc(COUNT * sizeof *got);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, one_region, 1, NULL), ZERO_OK)) return;
    for (int step = 0; step < 3; step++) {
        take_masters(engine, own);
        for (uint32_t k = 0; k < MICRO_STEPS * RANKS; k++)
            for (uint32_t i = 0; i < COUNT; i++)
                made[k * COUNT + i] = plain_gradient(own[i], i, k % RANKS, k / RANKS);
        for (uint32_t k = 0; k < MICRO_STEPS * RANKS; k++)
            code(made + k * COUNT, bits->bits == 8 ? &int8 : &int4, made + k * COUNT);
        for (uint32_t m = 0; m < MICRO_STEPS; m++) CHECK_INT(plain_pass(&p, ZERO_TRAIN, m), ZERO_OK);
        CHECK_INT(zero_engine_get(engine, "a.w", ZERO_GRAD, got, 0, COUNT), ZERO_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            float sum = 0;
            for (uint32_t m = 0; m < MICRO_STEPS; m++) {
                float ranks = 0;
                for (uint32_t r = 0; r < RANKS; r++) ranks += made[(m * RANKS + r) * COUNT + i];
                sum += ranks;
            }
            if (!CHECK_DOUBLE(got[i], sum / (RANKS * MICRO_STEPS), 0)) break;
        }
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    }
    free(own), free(made), free(got);
}

static void by_definition(void) {
    char json[2048], comm[64], tiers[64];
    struct toy_setup s = toy_setup_default();
    s.ranks = RANKS, s.threshold = 0, s.comm = comm;
    s.micro_steps = MICRO_STEPS, s.mode = "every";
    for (struct bits bits = {4}; bits.bits <= 8; bits.bits += 4)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            snprintf(comm, sizeof comm, ", \"quantized_gradient_bits\": %u", bits.bits);
            s.tiers = "\"zero_quantized_gradients\": true";
            toy_config(&s, json, sizeof json);
            ranks_run(RANKS, json, gradients_are_sums_of_codes, &bits);
        }
    s.micro_steps = 1, s.stage = 3, s.tiers = tiers;
    for (int f = 0; f < FORMATS; f++)
        for (s.depth = 0; s.depth <= 2; s.depth += 2) {
            snprintf(tiers, sizeof tiers, "\"zero_quantized_weights\": %s", formats[f]->name);
            toy_config(&s, json, sizeof json);
            ranks_run(RANKS, json, weights_are_decoded, (void *)formats[f]);
        }
}

/* ---- bytes on the wire ---- */

/* A code of n elements: 4 bytes per block of 256, n bytes or n / 2, padded to 64. Of a share of 608: 12 + 608 = 620,
 * hence 640; in 4 bits 12 + 304 = 316, hence 320. A rank sends 3 of them in a reduction, and in a gather. One unit, so
 * that at stage 3 one gather serves forward and backward; at stages 1 and 2 updated weights are gathered in fp32, at
 * stage 0 gradients are. */
static void measure(zero_engine *engine, uint32_t rank, void *user) {
    const uint64_t *expected = user; /* bytes of a step, elements gathered and reduced */
    struct plain p;
    zero_counters before = {.struct_size = sizeof before}, after = before;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, one_region, 1, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_engine_counters(engine, &before);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_engine_counters(engine, &after);
    CHECK_INT(after.wire_bytes - before.wire_bytes, expected[0]);
    CHECK_INT(after.gather_elements - before.gather_elements, 3 * SHARE);
    CHECK_INT(after.reduce_elements - before.reduce_elements, 3 * SHARE);
    CHECK_INT(after.gather_calls - before.gather_calls, 1);
    CHECK_INT(after.reduce_calls - before.reduce_calls, 1);
}

static void bytes(void) {
    static const struct {
        uint32_t stage;
        const char *zero, *comm;
        uint64_t bytes;
    } rows[] = {{0, "\"zero_quantized_gradients\": true", "", 3 * 320 + 3 * 4 * SHARE},
                {1, "\"zero_quantized_gradients\": true", "", 3 * 320 + 3 * 4 * SHARE},
                {2, "\"zero_quantized_gradients\": true", ", \"quantized_gradient_bits\": 8",
                 3 * 640 + 3 * 4 * SHARE},
                {3, "\"zero_quantized_gradients\": true", "", 3 * 320 + 3 * 4 * SHARE},
                {3, "\"zero_quantized_weights\": true", "", 3 * 4 * SHARE + 3 * 640},
                {3, "\"zero_quantized_weights\": \"int4\"", "", 3 * 4 * SHARE + 3 * 320},
                {3, "\"zero_quantized_weights\": \"fp8_e4m3\"", "", 3 * 4 * SHARE + 3 * 640},
                {3, "\"zero_quantized_weights\": true" GRADIENTS, "", 3 * 320 + 3 * 640}};
    struct toy_setup s = toy_setup_default();
    char json[2048];
    s.ranks = RANKS, s.threshold = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t expected = rows[i].bytes;
        s.stage = rows[i].stage, s.tiers = rows[i].zero, s.comm = rows[i].comm;
        toy_config(&s, json, sizeof json);
        ranks_run(RANKS, json, measure, &expected);
    }
}

/* ---- a unit of four formats ---- */

static const struct plain_param one_unit[] = {{"a", "a.exact", COUNT, 0, NULL},
                                              {"a", "a.int8", COUNT, 0, NULL},
                                              {"a", "a.fp8", COUNT, 0, NULL},
                                              {"a", "a.int4", COUNT, 0, NULL}};
static const struct format *const format_of[] = {NULL, &int8, &fp8, &int4};
enum { KINDS = sizeof one_unit / sizeof *one_unit };

/* The run is coded in int8, and two groups otherwise. Or the run is exact, and groups are coded. */
#define GROUP(match, code) "{\"match\": \"" match "\", \"zero_quantized_weights\": " code "}"
#define FP8_AND_INT4 GROUP("*.fp8", "\"fp8_e4m3\"") ", " GROUP("*.int4", "\"int4\"")
static const struct mixed {
    const char *weights, *groups;
} mixed[] = {{"\"int8\"", ", " FP8_AND_INT4 ", " GROUP("*.exact", "false")},
             {"false", ", " FP8_AND_INT4 ", " GROUP("*.int8", "true")}};

/* Each parameter is as its own pattern says. Planned and counted bytes: each format has a call of its own. */
static void each_as_its_pattern_says(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_counters before = {.struct_size = sizeof before}, after = before;
    float *own = malloc(COUNT * sizeof *own);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, one_unit, KINDS, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    zero_engine_counters(engine, &before);
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    const float *seen[KINDS];
    for (int k = 0; k < KINDS; k++) seen[k] = p.slot[k].param;
    float *copy = malloc(KINDS * COUNT * sizeof *copy);
    for (int k = 0; k < KINDS; k++) memcpy(copy + k * COUNT, seen[k], COUNT * sizeof *copy);
    CHECK_INT(zero_forward_end(p.unit[0]), ZERO_OK);
    zero_engine_counters(engine, &after);
    for (int k = 0; k < KINDS; k++) {
        CHECK_INT(zero_engine_get(engine, one_unit[k].name, ZERO_PARAM, own, 0, COUNT), ZERO_OK);
        if (format_of[k]) code(own, format_of[k], own);
        for (uint32_t i = 0; i < COUNT; i++)
            if (!CHECK_DOUBLE(copy[k * COUNT + i], own[i], 0)) {
                fprintf(stderr, "  %s, element %u\n", one_unit[k].name, i);
                break;
            }
    }
    CHECK_INT(after.gather_calls - before.gather_calls, KINDS);
    CHECK_INT(after.gather_elements - before.gather_elements, KINDS * 3 * SHARE);
    CHECK_INT(after.wire_bytes - before.wire_bytes, 3 * (4 * SHARE + 640 + 640 + 320));
    free(own), free(copy);
}

static void one_unit_of_all_formats(void) {
    char json[2048], tiers[64];
    struct toy_setup s = toy_setup_default();
    s.ranks = RANKS, s.threshold = 0, s.stage = 3, s.tiers = tiers;
    for (size_t m = 0; m < sizeof mixed / sizeof *mixed; m++) {
        snprintf(tiers, sizeof tiers, "\"zero_quantized_weights\": %s", mixed[m].weights);
        s.groups = mixed[m].groups;
        toy_config(&s, json, sizeof json);
        ranks_run(RANKS, json, each_as_its_pattern_says, NULL);
    }
}

/* hpZ in groups of two, and two units, of which the last one's backward follows its forward: each forward gathers codes from
 * all, 3 of 640 bytes a rank; the first unit's backward gathers half of it from one other rank, in fp32. */
static const struct plain_param two_regions[] = {{"a", "a.w", COUNT, 0, NULL}, {"b", "b.w", COUNT, 0, NULL}};

static void measure_second(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_counters before = {.struct_size = sizeof before}, after = before;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, two_regions, 2, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_engine_counters(engine, &before);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_engine_counters(engine, &after);
    CHECK_INT(after.wire_bytes - before.wire_bytes, 2 * 3 * 320 + 2 * 3 * 640 + COUNT / 2 * 4);
    CHECK_INT(after.gather_calls - before.gather_calls, 3);
    CHECK_INT(after.gather_elements - before.gather_elements, 2 * 3 * SHARE + COUNT / 2);
    CHECK_INT(after.reduce_calls - before.reduce_calls, 2);
}

static void bytes_of_second_shards(void) {
    struct toy_setup s = toy_setup_default();
    char json[2048];
    s.ranks = RANKS, s.threshold = 0, s.stage = 3;
    s.tiers = "\"zero_quantized_weights\": true" GRADIENTS ", \"zero_hpz_partition_size\": 2";
    toy_config(&s, json, sizeof json);
    ranks_run(RANKS, json, measure_second, NULL);
}

/* ---- trainings ---- */

static struct toy_result got, exact;

static void planned(void) {
    for (int t = 0; t < ZERO_TIERS; t++) {
        CHECK_INT(got.measured[t], got.planned[t]);
        CHECK_INT(got.planned[t], got.plan.bytes[t]);
    }
}

/* A training with one kind of quantisation: as the first one of its class, and near the exact one. */
static void train(struct toy_setup *s, const char *zero, char first[33]) {
    char keys[512];
    snprintf(keys, sizeof keys, "\"sub_group_size\": 64%s", zero);
    s->tiers = keys;
    toy_train(s, &got);
    int good = CHECK_STRING(got.error, "");
    if (!*first) strcpy(first, got.hash);
    good &= CHECK_STRING(got.hash, first);
    good &= CHECK_DOUBLE(got.loss[s->steps - 1], exact.loss[s->steps - 1], 0.02);
    planned();
    if (!good)
        fprintf(stderr, "in stage %u, type %d, micro-steps %u, depth %u, %s%s\n", s->stage, s->compute,
                s->micro_steps, s->depth, zero, s->comm ? s->comm : "");
}

#define NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define PARAMS_NVME NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define CPU ", \"offload_optimizer\": {\"device\": \"cpu\"}"

#define FP8 ", \"zero_quantized_weights\": \"fp8_e4m3\""
#define SOME ", " GROUP("in.w", "false") ", " GROUP("b.*", "true")

static void one_class(struct toy_setup *s) {
    char gradients[33] = "", groups[33] = "", weights[33] = "", both[33] = "", fp8_weights[33] = "",
         some[33] = "", nodes[33] = "";
    s->tiers = NULL, s->stage = 0;
    toy_train(s, &exact);
    for (s->stage = 0; s->stage <= 3; s->stage++) {
        s->depth = s->stage;
        train(s, s->stage % 2 ? GRADIENTS NVME : GRADIENTS CPU, gradients);
        train(s, GRADIENTS ", \"mics_shard_size\": 2", groups);
        s->comm = ", \"node_ranks\": 2"; /* adds over pairs first, but codes other blocks than groups do */
        train(s, GRADIENTS, nodes);
        s->comm = NULL;
    }
    if (s->compute == ZERO_F32) CHECK(strcmp(nodes, gradients) != 0);
    s->stage = 3;
    train(s, GRADIENTS ", \"zero_hpz_partition_size\": 2", gradients); /* it adds over all ranks in order */
    for (s->depth = 0; s->depth <= 2; s->depth++) {
        train(s, s->depth ? WEIGHTS PARAMS_NVME : WEIGHTS, weights);
        train(s, WEIGHTS GRADIENTS, both);
    }
    /* Its second shards hold what a forward decoded, and are gathered as they are. */
    train(s, WEIGHTS ", \"zero_hpz_partition_size\": 2", weights);
    train(s, WEIGHTS GRADIENTS PARAMS_NVME ", \"zero_hpz_partition_size\": 2", both);
    s->comm = ", \"reshard_after_forward\": false";
    train(s, WEIGHTS, weights);
    s->comm = NULL;
    train(s, FP8, fp8_weights);
    train(s, FP8 PARAMS_NVME, fp8_weights);
    train(s, FP8 ", \"zero_hpz_partition_size\": 2", fp8_weights);
    s->groups = SOME;
    for (s->depth = 0; s->depth <= 2; s->depth += 2) train(s, s->depth ? FP8 PARAMS_NVME : FP8, some);
    train(s, FP8 CPU ", \"zero_hpz_partition_size\": 2", some);
    s->groups = NULL;
    CHECK(strcmp(fp8_weights, exact.hash) && strcmp(fp8_weights, weights) && strcmp(some, fp8_weights));
    CHECK(strcmp(gradients, exact.hash) && strcmp(weights, exact.hash) && strcmp(both, gradients) &&
          strcmp(both, weights) && strcmp(groups, gradients));
}

static void trainings(void) {
    struct toy_setup s = toy_setup_default();
    static const char *const modes[] = {"auto", "last", "every"};
    s.ranks = RANKS, s.scale_power = 6;
    for (s.compute = ZERO_F32; s.compute <= ZERO_F16; s.compute++)
        for (int mode = 0; mode < 3; mode++) {
            s.micro_steps = mode ? 3 : 1, s.mode = modes[mode];
            if (seeds_divisor() == 1 || mode == (int)s.compute)
                one_class(&s); /* a short run: one mode of each type */
        }
}

static void skips_are_agreed(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = RANKS, s.nan_step = 2, s.stage = 3, s.tiers = "\"zero_quantized_weights\": true" GRADIENTS;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    CHECK_INT(got.skipped, 1);
}

int main(void) {
    by_definition();
    bytes();
    one_unit_of_all_formats();
    bytes_of_second_shards();
    trainings();
    skips_are_agreed();
    return check_end();
}
