/* A stage that is one file and one row: the configuration finds it by its number, and it trains to the same weights as
 * the others, byte for byte. The simulator draws it as it draws the others. */
#include <stdlib.h>

#include "stages/stage.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tools/sim/case.h"

enum { STAGE = 4, SIMULATIONS = 300 };

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

static void numbers_have_an_end(void) {
    struct toy_setup s = toy_setup_default();
    static struct toy_result got;
    s.stage = STAGE + 1;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "zero_optimization.stage: 5 is outside its range: give an integer from 0 to 4");
}

static void simulates(void) {
    CHECK(stage_named("zero4") == stage_find(STAGE, RESHARD_ALL));
    CHECK_INT(case_check(1, SIMULATIONS, NULL, stderr, NULL), 0);
}

int main(void) {
    trains_to_the_same_weights();
    offloads_parameters();
    numbers_have_an_end();
    simulates();
    return check_end();
}
