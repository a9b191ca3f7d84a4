/* The bit-exact contract: stages, ranks, accumulation, prefetch depth, thresholds, tiers, evaluation and
 * held and skipped units against a serial oracle, byte for byte. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

static void compare(const struct toy_setup *s) {
    static struct toy_result got, expected;
    toy_train(s, &got);
    toy_oracle(s, &expected);
    char what[256];
    snprintf(
        what, sizeof what,
        "stage %u, ranks %u, micro-steps %u, mode %s, depth %u, threshold %u, offload %s, skip %d, held %x, "
        "updates %d",
        s->stage, s->ranks, s->micro_steps, s->mode, s->depth, s->threshold, s->offload, s->skip_unit,
        s->hold, s->updates);
    int same = CHECK_STRING(got.error, "") && CHECK_INT(got.status, ZERO_OK) &&
               CHECK_BYTES(got.weights, expected.weights, sizeof got.weights);
    for (uint32_t i = 0; i < s->steps && same; i++)
        same = CHECK_DOUBLE(got.norm[i], expected.norm[i], 1e-12) &&
               CHECK_DOUBLE(got.loss[i], expected.loss[i], 1e-12);
    if (!same) fprintf(stderr, "in %s\n", what);
}

static void stages_and_ranks(void) {
    struct toy_setup s = toy_setup_default();
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 4; s.ranks++)
            for (s.micro_steps = 1; s.micro_steps <= 3; s.micro_steps += 2)
                for (int every = 0; every < 2; every++) {
                    s.mode = every ? "every" : "last";
                    compare(&s);
                }
}

static void schedules(void) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = 2;
    s.ranks = 3;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.depth = 0; s.depth <= 2; s.depth++) {
            s.threshold = s.depth == 2 ? 0 : s.depth == 1 ? 60 : 1000;
            s.offload = s.depth == 1 ? "cpu" : "none";
            s.evaluate = s.depth == 0;
            s.skip_unit = -1;
            compare(&s);
            s.skip_unit = 2;
            compare(&s);
        }
}

/* Parameters in the host's own memory, and gradients that the host's autograd made elsewhere. */
static void other_memory(void) {
    struct toy_setup s = toy_setup_default();
    for (s.memory = TOY_SPANS; s.memory < TOY_MEMORIES; s.memory++)
        for (s.stage = 0; s.stage <= 3; s.stage++)
            for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++)
                if ((s.memory != TOY_SPANS && s.memory != TOY_SPANS_ADD) || s.stage < 3) compare(&s);
    static struct toy_result got;
    s.memory = TOY_SPANS, s.stage = 3, s.ranks = 1;
    toy_train(&s, &got);
    CHECK_INT(got.status, ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(got.error, "in.w");
}

/* One block is held, or two: their last backward of a pass is that of the first unit. */
static void held_units(void) {
    static const uint32_t held[] = {1 << 1, 1 << 2, 1 << 1 | 1 << 3};
    struct toy_setup s = toy_setup_default();
    s.clip = 0;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (uint32_t k = 0; k < sizeof held / sizeof *held; k++)
            for (s.updates = 0; s.updates < 2; s.updates++) {
                s.hold = held[k], s.offload = s.stage % 2 ? "cpu" : "none";
                s.micro_steps = 1 + k, s.mode = "last";
                compare(&s);
            }
}

static void skips_are_agreed(void) {
    struct toy_setup s = toy_setup_default();
    static struct toy_result got, first;
    s.nan_step = 2;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
        CHECK_INT(got.skipped, 1);
        if (s.stage == 0) first = got;
        CHECK_STRING(got.hash, first.hash);
    }
}

static void other_optimizers(void) {
    static const char *const optimizers[] = {
        "{\"type\": \"Adam\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, \"adam_w_mode\": false}}",
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true}}",
        "{\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}",
        "{\"type\": \"Lion\", \"params\": {\"lr\": 0.001, \"weight_decay\": 0.1}}",
        "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.05}}"};
    struct toy_setup s = toy_setup_default();
    static struct toy_result got, first;
    char before[33] = "";
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            s.optimizer = optimizers[i];
            toy_train(&s, &got);
            CHECK_STRING(got.error, "");
            if (s.stage == 0) {
                first = got;
                CHECK(strcmp(first.hash, before) != 0); /* each optimizer does something else */
                strcpy(before, first.hash);
            }
            if (!CHECK_STRING(got.hash, first.hash))
                fprintf(stderr, "in %s stage %u\n", optimizers[i], s.stage);
        }
}

static const char *const on_drive[] = {
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}",
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, "
    "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"};

/* Muon on the matrices, which no number of ranks divides, and AdamW on the rest. */
static void matrices(void) {
    struct toy_setup s = toy_setup_default();
    s.muon = 1;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 4; s.ranks++) {
            s.compute = s.ranks % 2 ? ZERO_F32 : ZERO_BF16;
            s.offload = s.ranks > 2 ? "cpu" : "none";
            s.threshold = s.ranks == 3 ? 60 : 10;
            s.micro_steps = 1 + s.stage % 2;
            compare(&s);
            s.tiers = on_drive[s.stage == 3 && s.ranks % 2];
            compare(&s);
            s.tiers = NULL;
        }
    s.ranks = 4, s.shard_ranks = 2, s.compute = ZERO_F32;
    s.tiers = "\"mics_shard_size\": 2";
    for (s.stage = 0; s.stage <= 3; s.stage++) compare(&s);
    s = toy_setup_default();
    s.muon = 1, s.memory = TOY_SPANS; /* the host's own arrays are then copies */
    for (s.stage = 0; s.stage <= 2; s.stage++) compare(&s);
}

/* Lamb on all tensors, which no number of ranks divides; and beside AdamW, or Muon. */
static void tensors(void) {
    struct toy_setup s = toy_setup_default();
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 4; s.ranks++) {
            s.lamb = 1 + (s.stage + s.ranks) % 2;
            s.compute = s.ranks % 2 ? ZERO_F32 : ZERO_BF16;
            s.offload = s.ranks > 2 ? "cpu" : "none";
            s.threshold = s.ranks == 3 ? 60 : 10;
            s.micro_steps = 1 + s.stage % 2;
            compare(&s);
            s.tiers = on_drive[s.stage == 3 && s.ranks % 2];
            compare(&s);
            s.tiers = NULL;
        }
    s.lamb = s.muon = 1, s.offload = "none"; /* beside Muon */
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.ranks = 4 - s.stage, s.compute = s.stage % 2 ? ZERO_F32 : ZERO_F16;
        compare(&s);
        s.tiers = on_drive[s.stage == 3];
        compare(&s);
        s.tiers = NULL;
    }
    s = toy_setup_default();
    s.lamb = 1, s.ranks = 4, s.shard_ranks = 2, s.compute = ZERO_F32;
    s.tiers = "\"mics_shard_size\": 2";
    for (s.stage = 0; s.stage <= 3; s.stage++) compare(&s);
    s.shard_ranks = 0, s.stage = 3;
    s.tiers = "\"zero_hpz_partition_size\": 2";
    compare(&s);
    s = toy_setup_default();
    s.lamb = 1, s.memory = TOY_SPANS; /* the host's own arrays are then copies */
    for (s.stage = 0; s.stage <= 2; s.stage++) compare(&s);
    s.memory = TOY_SLOTS, s.vertical = 1, s.micro_steps = 3, s.mode = "every";
    for (s.stage = 0; s.stage <= 3; s.stage++) compare(&s);
    s = toy_setup_default();
    s.updates = 1, s.clip = 0;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.lamb = 1 + s.stage % 2, s.ranks = 1 + s.stage, s.micro_steps = 1 + s.stage / 2;
        compare(&s);
        s.tiers = on_drive[s.stage == 3], s.compute = s.stage % 2 ? ZERO_F32 : ZERO_BF16;
        compare(&s);
        s.tiers = NULL;
    }
}

/* Four ranks in nodes of two add as two groups of ranks with a copy each do: over the nodes, then the nodes. */
static void nodes(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = 4, s.shard_ranks = 2, s.micro_steps = 1, s.compute = ZERO_F32;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        static struct toy_result plain, copies;
        s.comm = ", \"node_ranks\": 2", s.tiers = NULL;
        compare(&s);
        toy_train(&s, &plain);
        s.comm = NULL, s.tiers = "\"mics_shard_size\": 2";
        toy_train(&s, &copies);
        CHECK_STRING(plain.hash, copies.hash);
    }
    s.stage = 3, s.comm = ", \"node_ranks\": 2", s.tiers = "\"zero_hpz_partition_size\": 2";
    compare(&s);
}

static zero_status flat(zero_engine *engine, uint32_t param, zero_param *out) {
    if (toy_params[param].columns == 1) out->dims = 1;
    return ZERO_OK;
}

static void matrices_are_refused(void) {
    static const struct {
        const char *groups, *message;
    } cases[] = {
        {", {\"match\": \"*.b\", \"optimizer\": \"AdamW\"}",
         "parameter \"a.g\" has 1 dimension, and Muon updates matrices: name it in a group of param_groups "
         "with "
         "\"optimizer\": \"AdamW\""},
        {", {\"match\": \"*.b\", \"optimizer\": \"Lion\"}, {\"match\": \"*.g\", \"optimizer\": \"AdamW\"}",
         "param_groups[0].optimizer: Lion is a third optimizer, as another group has AdamW: two are possible "
         "in a run"},
        {", {\"match\": \"*.b\", \"optimizer\": \"Adaam\"}",
         "param_groups[0].optimizer: \"Adaam\" stands where the name of an optimizer, as \"AdamW\", is "
         "expected"},
        {", {\"match\": \"*.b\", \"betas\": [0.9, 0.9]}",
         "param_groups[0].betas: only a group with its own"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct toy_result got;
        struct toy_setup s = toy_setup_default();
        s.optimizer = "{\"type\": \"Muon\"}", s.groups = cases[i].groups;
        s.declare = flat;
        toy_train(&s, &got);
        CHECK(got.status != ZERO_OK);
        CHECK_CONTAINS(got.error, cases[i].message);
    }
}

int main(void) {
    stages_and_ranks();
    schedules();
    other_memory();
    held_units();
    skips_are_agreed();
    other_optimizers();
    matrices();
    matrices_are_refused();
    tensors();
    nodes();
    return check_end();
}
