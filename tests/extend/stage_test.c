/* A stage that is one file and one row: the configuration finds it by its number, and it trains to the same weights as
 * the others, byte for byte. The simulator draws it as it draws the others. */
#include <math.h>
#include <stdlib.h>

#include "stages/stage.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tools/plan/choice.h"
#include "tools/plan/print/table.h"
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
    s.shard_ranks = 2; /* the oracle adds over pairs first, as over nodes */
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

/* Of a planner's table on a small machine. Returns 0 if there is none. */
static uint32_t planned_rows(const char *text, bool open, struct zero_error *error) {
    struct config config;
    struct space space;
    struct table table = {0};
    char *opened = NULL;
    struct scenario s = {
        .machine =
            {.device = {.name = "desk",
                        .memory_bytes = 1e10,
                        .memory_per_s = 1e10,
                        .flops = {1e11, NAN, NAN},
                        .memory_achieved = 1,
                        .flops_achieved = {1, 1, 1},
                        .price_per_hour = NAN,
                        .is_host = true},
             .host = {.memory_bytes = 4e10, .memory_per_s = 4e10, .devices = 4, .device_per_s = 1e10},
             .inside = {.per_s = 2e9, .reduce_per_s = 2e9, .latency_s = 1e-6},
             .drive = {.name = "d", .bytes = 1e12, .read_per_s = 1e9, .write_per_s = 1e9, .mixed_per_s = 1e9},
             .node_ranks = 4},
        .ranks = 2,
        .nodes = 1,
        .threads = 1,
        .config = text};
    error_clear(error);
    CHECK_INT(config_read(text, &config, error), ZERO_OK);
    CHECK_INT(choice_model(NULL, 0, &config, &s.shapes, error), ZERO_OK);
    s.checkpoints = choice_checkpoints(&config);
    if (open) {
        CHECK_INT(space_of(&config, text, s.ranks, &space, &opened, error), ZERO_OK);
        s.space = &space, s.config = opened;
    }
    uint32_t rows = table_make(&s, &table, error) ? 0 : table.rows;
    config_free(&config);
    table_free(&table);
    free(opened);
    return rows;
}

#define MODEL                                                                                                \
    "\"model\": {\"n_layer\": 1, \"n_embd\": 128, \"n_head\": 2, \"n_positions\": 32, \"vocab_size\": 256}}"

/* Without a key that it does not support. */
static void is_planned(void) {
    struct zero_error error;
    CHECK_INT(planned_rows("{\"train_batch_size\": 2, \"comm\": {\"reshard_after_forward\": false}, " MODEL,
                           false, &error),
              4 * 6 + 2 * 12);
    CHECK_STRING(error.message, "");
    /* Nothing fits, so that no micro-batch is the last. */
    CHECK_INT(
        planned_rows("{\"train_batch_size\": 1024, \"train_micro_batch_size_per_gpu\": \"auto\", \"memory\": "
                     "{\"device\": 1000}, \"activation_checkpointing\": {\"interval\": \"auto\"}, "
                     "\"zero_optimization\": {\"stage\": \"auto\", \"offload_optimizer\": {\"device\": "
                     "\"auto\", \"nvme_path\": \"/d\"}}, " MODEL,
                     true, &error),
        10 * 172);
    CHECK_STRING(error.message, "");
}

static void simulates(void) {
    CHECK_STRING(stage_find(STAGE, RESHARD_ALL)->name, "zero4");
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
    is_planned();
    simulates();
    return check_end();
}
