/* A tier that is one file and one row passes the suite of all tiers; the configuration finds it by its name, and state and
 * parameters on it train to the oracle's weights. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tests/offload/tier_conformance.h"

static void conforms(void) {
    struct tier_case c = {.name = "file", .tier = tier_table[TIERS], .paths = 1};
    CHECK_STRING(c.tier->name, c.name);
    tier_conformance(&c, 1);
}

/* With a `%s` for the directory, at most two. */
static void trains(uint32_t stage, const char *tiers, const char *expected_error) {
    char text[1000];
    static struct toy_result got, expected;
    struct toy_setup s = toy_setup_default();
    snprintf(text, sizeof text, tiers, getenv("TEST_TMPDIR"), getenv("TEST_TMPDIR"));
    s.stage = stage, s.steps = 5, s.tiers = text;
    toy_train(&s, &got);
    int same = CHECK_STRING(got.error, expected_error);
    if (!*expected_error) {
        toy_oracle(&s, &expected);
        same &= CHECK_BYTES(got.weights, expected.weights, sizeof got.weights);
        same &= CHECK(got.last.drive_read_bytes > 0);
        for (int t = 0; t < ZERO_TIERS; t++) same &= CHECK_INT(got.measured[t], got.planned[t]);
    }
    if (!same) fprintf(stderr, "at stage %u, %s\n", stage, text);
}

#define STATE "\"offload_optimizer\": {\"device\": \"file\", \"nvme_path\": \"%s\"}"

int main(void) {
    conforms();
    for (uint32_t stage = 0; stage <= 3; stage++) trains(stage, STATE, "");
    trains(3, STATE ", \"offload_param\": {\"device\": \"file\", \"nvme_path\": \"%s\"}", "");
    trains(3, STATE ", \"offload_param\": {\"device\": \"cpu\"}", "");
    trains(3, STATE ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
           "zero_optimization.offload_param.device: \"nvme\" and \"file\" of "
           "zero_optimization.offload_optimizer "
           "share one memory: choose one of them for both");
    trains(1, "\"offload_optimizer\": {\"device\": \"file\"}",
           "zero_optimization.offload_optimizer.device: \"file\" needs a directory on the drive: set "
           "zero_optimization.offload_optimizer.nvme_path");
    trains(1, "\"offload_optimizer\": {\"device\": \"fle\"}",
           "zero_optimization.offload_optimizer.device: \"fle\" is none of \"none\", \"cpu\", \"nvme\", "
           "\"file\", \"tiered\", \"auto\"; did you mean \"file\"?");
    return check_end();
}
