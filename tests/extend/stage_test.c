/* A stage that is one file and one row: the configuration finds it by its number, and it trains to the same weights as
 * the others, byte for byte. The simulator draws it as it draws the others. */
#include <stdlib.h>

#include "stages/stage.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tools/sim/case.h"

enum { STAGE = 4, WHOLE = 5, SIMULATIONS = 300 };

/* Stage 0 by another number. */
const struct stage stage_whole = {
    .name = "whole",
    .number = WHOLE,
    .state = {{REPLICATE, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{REPLICATE, REPLICATE}},
    .param_rest = {{REPLICATE, REPLICATE}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_LAST,
};

static void compare(const struct toy_setup *s) {
    static struct toy_result got, expected;
    toy_train(s, &got);
    toy_oracle(s, &expected);
    int same = CHECK_STRING(got.error, "") & CHECK_BYTES(got.weights, expected.weights, sizeof got.weights);
    for (int t = 0; t < ZERO_TIERS; t++) same &= CHECK_INT(got.measured[t], got.planned[t]);
    if (!same)
        fprintf(stderr, "in %s, %u ranks, %u micro-steps, mode %s, depth %u\n", s->tiers, s->ranks,
                s->micro_steps, s->mode, s->depth);
}

static void trains_to_the_same_weights(void) {
    static const char *const meshes[] = {"\"mics_shard_size\": -1", "\"mics_shard_size\": 2",
                                         "\"mics_shard_size\": 1"};
    static const char *const modes[] = {"last", "every"};
    struct toy_setup s = toy_setup_default();
    s.stage = STAGE, s.ranks = 4, s.steps = 5;
    for (int mesh = 0; mesh < 3; mesh++)
        for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++)
            for (int mode = 0; mode < 2; mode++)
                for (s.depth = 0; s.depth <= 2; s.depth++) {
                    s.mode = modes[mode], s.tiers = meshes[mesh];
                    compare(&s);
                }
}

/* It shards parameters, so it may offload them. */
static void offloads_parameters(void) {
    char tiers[1000];
    struct toy_setup s = toy_setup_default();
    s.stage = STAGE, s.ranks = 4, s.steps = 5, s.tiers = tiers;
    snprintf(tiers, sizeof tiers,
             "\"mics_shard_size\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
             "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             getenv("TEST_TMPDIR"), getenv("TEST_TMPDIR"));
    compare(&s);
}

static void refused(uint32_t stage, const char *tiers, const char *comm, const char *sentence) {
    struct toy_setup s = toy_setup_default();
    static struct toy_result got;
    s.stage = stage, s.ranks = 4, s.tiers = tiers, s.comm = comm;
    toy_train(&s, &got);
    CHECK_STRING(got.error, sentence);
}

static void numbers_have_an_end(void) {
    refused(WHOLE + 1, NULL, NULL,
            "zero_optimization.stage: 6 is outside its range: give an integer from 0 to 5");
}

/* It has no row for another place of parameters between a forward and its backward. */
static void has_one_row(void) {
#define NO_ROW ": stage 4 does not support this value: remove it"
    refused(STAGE, NULL, ", \"reshard_after_forward\": false", "comm.reshard_after_forward" NO_ROW);
    refused(STAGE, NULL, ", \"reshard_after_forward\": 2", "comm.reshard_after_forward" NO_ROW);
    refused(STAGE, "\"zero_hpz_partition_size\": 2", NULL,
            "zero_optimization.zero_hpz_partition_size" NO_ROW);
}

/* "auto" gives a second shard to stages that have one. */
static void has_no_second_shard(void) {
    struct toy_setup s = toy_setup_default();
    s.stage = STAGE, s.ranks = 4, s.steps = 2;
    s.tiers = "\"zero_hpz_partition_size\": \"auto\"", s.comm = ", \"node_ranks\": 2";
    compare(&s);
}

/* What a stage allows and plans follows from its placements, not from its number. */
static void keeps_whole_gradients(void) {
    char tiers[500];
    struct toy_setup s = toy_setup_default();
    static struct toy_result zero, whole;
    refused(WHOLE,
            "\"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_gradients\": {\"device\": \"cpu\"}",
            NULL,
            "zero_optimization.offload_gradients.device: gradients are whole on every rank at stage 5: set "
            "zero_optimization.stage to 1, which trains to the same bits, or remove the block");
    s.ranks = 4, s.steps = 2, s.tiers = tiers;
    snprintf(tiers, sizeof tiers, "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             getenv("TEST_TMPDIR"));
    s.stage = 0, toy_train(&s, &zero);
    s.stage = WHOLE, toy_train(&s, &whole);
    CHECK_STRING(whole.error, "");
    CHECK_STRING(whole.hash, zero.hash);
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(whole.planned[t], zero.planned[t]);
}

/* On a mesh of 2 x 2 ranks it has less on each rank than any other stage. */
static void is_advised(void) {
    char extra[100];
    struct toy_setup s = toy_setup_default();
    static struct toy_result got;
    s.stage = STAGE, s.ranks = 4, s.steps = 1, s.compute = ZERO_BF16;
    s.tiers = "\"mics_shard_size\": 2";
    toy_train(&s, &got);
    snprintf(extra, sizeof extra, ", \"memory\": {\"device\": %llu}",
             (unsigned long long)got.planned[ZERO_DEVICE]);
    s.stage = 0, s.extra = extra;
    toy_train(&s, &got);
    CHECK_CONTAINS(got.error, "it fits with zero_optimization.stage 4; or with ");
}

static void simulates(void) {
    CHECK(stage_named("zero4") == stage_find(STAGE, RESHARD_ALL));
    CHECK_INT(case_check(1, SIMULATIONS, NULL, stderr, NULL), 0);
}

int main(void) {
    trains_to_the_same_weights();
    offloads_parameters();
    numbers_have_an_end();
    has_one_row();
    has_no_second_shard();
    keeps_whole_gradients();
    is_advised();
    simulates();
    return check_end();
}
