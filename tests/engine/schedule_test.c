/* Random models, used in random orders: every stage, at a prefetch depth and in a tier of its own, must hand out
 * the same weights, moments and gradients on the way and end in the same hash. Every seed is a model and a schedule; tools/soak
 * runs many. schedule_test [FIRST SEED] [SEEDS] */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/schedule.h"
#include "tests/seeds.h"

static bool equal(const struct schedule_result *got, const struct schedule_result *expected) {
    if (!CHECK_STRING(got->error, "") || !CHECK_INT(got->status, ZERO_OK)) return false;
    bool good = CHECK_STRING(got->hash, expected->hash);
    good &= CHECK(got->seen == expected->seen);
    for (int i = 0; i < SCHEDULE_STEPS; i++) {
        good &= CHECK_DOUBLE(got->norm[i], expected->norm[i], 0);
        good &= CHECK_INT(got->skipped[i], expected->skipped[i]);
    }
    return good;
}

/* Each rank must see at every stage what it saw at stage 0 in memory; all end in rank 0's hash. */
static bool right(const struct schedule *s) {
    static struct schedule_result expected[SCHEDULE_RANKS_MAX], got[SCHEDULE_RANKS_MAX];
    schedule_run(s, 0, SCHEDULE_DEVICE, expected);
    if (!equal(&expected[0], &expected[0])) return false;
    for (uint32_t stage = 0; stage < SCHEDULE_STAGES; stage++) {
        schedule_run(s, stage, s->tier[stage], got);
        for (uint32_t r = 0; r < s->ranks; r++) {
            if (equal(&got[r], &expected[r]) && CHECK_STRING(got[r].hash, expected[0].hash)) continue;
            fprintf(stderr, "in stage %u, %s, rank %u of\n", stage, schedule_tiers[s->tier[stage]], r);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(60);
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct schedule s;
        check_seed(seed);
        schedule_make(seed, &s);
        if (!right(&s)) schedule_print(&s, stderr);
    }
    return check_end();
}
