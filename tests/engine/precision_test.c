/* Mixed precision under the bit-exact contract: stages, ranks, accumulation, types of compute and of
 * communication against a serial oracle in the same types, byte for byte in the fp32 masters. */
#include <stdbool.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

static const char *const names[] = {[ZERO_F32] = "fp32", [ZERO_BF16] = "bf16", [ZERO_F16] = "fp16"};

static struct toy_result got, expected;

static void compare(const struct toy_setup *s) {
    toy_train(s, &got);
    toy_oracle(s, &expected);
    bool same = CHECK_STRING(got.error, "") && CHECK_INT(got.status, ZERO_OK) &&
                CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
                CHECK_INT(got.skipped, expected.skipped);
    for (uint32_t i = 0; i < s->steps && same; i++)
        same = CHECK_DOUBLE(got.norm[i], expected.norm[i], 1e-12) &&
               CHECK_DOUBLE(got.loss[i], expected.loss[i], 1e-12) &&
               CHECK_DOUBLE(got.scale[i], expected.scale[i], 0);
    if (!same)
        fprintf(stderr,
                "in compute %s, communication %s, stage %u, ranks %u, micro-steps %u, mode %s, depth %u, "
                "threshold %u, memory %d, skip %d\n",
                names[s->compute], s->communication ? s->communication : "the same", s->stage, s->ranks,
                s->micro_steps, s->mode, s->depth, s->threshold, s->memory, s->skip_unit);
}

/* In a short run, a part of them. */
static void both_modes(struct toy_setup *s) {
    static uint64_t cases;
    for (s->stage = 0; s->stage <= 3; s->stage++)
        for (s->micro_steps = 1; s->micro_steps <= 3; s->micro_steps += 2)
            for (int every = 0; every < 2; every++) {
                s->mode = every ? "every" : "last";
                if (seeds_take(cases++)) compare(s);
            }
}

static void stages_and_ranks(void) {
    struct toy_setup s = toy_setup_default();
    for (s.compute = ZERO_BF16; s.compute <= ZERO_F16; s.compute++)
        for (s.ranks = 1; s.ranks <= 4; s.ranks *= 2) both_modes(&s);
}

static void communication(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = 3;
    for (s.compute = ZERO_F32; s.compute <= ZERO_F16; s.compute++)
        for (int c = ZERO_F32; c <= ZERO_F16; c++) {
            s.communication = names[c];
            both_modes(&s);
        }
}

static void schedules(void) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = 2;
    for (s.compute = ZERO_BF16; s.compute <= ZERO_F16; s.compute++)
        for (s.stage = 0; s.stage <= 3; s.stage++)
            for (s.depth = 0; s.depth <= 2; s.depth++) {
                s.threshold = s.depth == 2 ? 0 : s.depth == 1 ? 60 : 1000;
                s.offload = s.depth == 1 ? "cpu" : "none";
                s.evaluate = s.depth == 0;
                s.skip_unit = s.depth == 1 ? 2 : -1;
                compare(&s);
            }
}

static void other_memory(void) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = 2;
    for (s.memory = TOY_SPANS; s.memory < TOY_MEMORIES; s.memory++)
        for (s.compute = ZERO_BF16; s.compute <= ZERO_F16; s.compute++)
            for (s.stage = 0; s.stage <= (s.memory == TOY_SPANS || s.memory == TOY_SPANS_ADD ? 2 : 3);
                 s.stage++)
                compare(&s);
}

/* A first scale of 2^20 makes the toy's gradients overflow in fp16: allowed once, then halved until they do
 * not, and doubled again after a short window. */
static void a_loss_scale_that_moves(void) {
    struct toy_setup s = toy_setup_default();
    s.compute = ZERO_F16;
    s.scale_power = 20, s.scale_window = 3;
    s.steps = 24;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        compare(&s);
        bool halved = false, doubled = false;
        for (uint32_t i = 1; i < s.steps; i++) {
            halved |= got.scale[i] < got.scale[i - 1];
            doubled |= got.scale[i] > got.scale[i - 1];
        }
        CHECK(halved && doubled && got.skipped >= 3 && got.skipped < s.steps);
    }
}

/* At this scale each rank's fp16 gradients are finite, but the sum of four ranks' gradients in fp16 is not. Prescaling
 * and predivision divide before the sum for this reason. */
static void division_before_the_sum(void) {
    static const struct {
        const char *keys;
        float factor;
        int skips;
    } ways[] = {{NULL, 0, 1},
                {", \"prescale_gradients\": true", 1.0f / 4, 0},
                {", \"gradient_predivide_factor\": 8", 1.0f / 8, 0},
                {", \"prescale_gradients\": true, \"gradient_predivide_factor\": 8", 1.0f / 4, 0}};
    struct toy_setup s = toy_setup_default();
    s.compute = ZERO_F16;
    s.ranks = 4, s.scale_power = 19, s.steps = 6;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            s.extra = ways[i].keys, s.factor = ways[i].factor;
            compare(&s);
            CHECK_INT(got.skipped > 0, ways[i].skips);
        }
}

static void skips_are_agreed(void) {
    static struct toy_result first;
    struct toy_setup s = toy_setup_default();
    s.nan_step = 2;
    for (s.compute = ZERO_BF16; s.compute <= ZERO_F16; s.compute++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            toy_train(&s, &got);
            CHECK_STRING(got.error, "");
            CHECK_INT(got.skipped, 1);
            if (s.stage == 0) first = got;
            CHECK_STRING(got.hash, first.hash);
        }
}

/* A type that rounds changes the result: comparisons above are not of fp32 with itself. */
static void types_matter(void) {
    struct toy_setup s = toy_setup_default();
    char hash[3][33];
    for (s.compute = ZERO_F32; s.compute <= ZERO_F16; s.compute++) {
        toy_train(&s, &got);
        strcpy(hash[s.compute], got.hash);
    }
    CHECK(strcmp(hash[0], hash[1]) && strcmp(hash[0], hash[2]) && strcmp(hash[1], hash[2]));
}

int main(void) {
    stages_and_ranks();
    communication();
    schedules();
    other_memory();
    a_loss_scale_that_moves();
    division_before_the_sum();
    skips_are_agreed();
    types_matter();
    return check_end();
}
