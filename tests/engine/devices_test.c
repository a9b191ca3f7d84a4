/* The toy on a device whose memory the host cannot touch: weights, norms and losses are the host's byte for byte, at every
 * stage, number of ranks, tier and type, and what is planned is what is allocated. devices_test sim|cuda PART */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

#define CPU "\"offload_optimizer\": {\"device\": \"cpu\"}"
#define NVME                                                                                                 \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, \"sub_group_size\": 1024"
#define PARAM_CPU ", \"offload_param\": {\"device\": \"cpu\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define SGD "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}"
#define LION "{\"type\": \"Lion\", \"params\": {\"lr\": 0.001}}"

static const char *device;

static void run(const char *name, struct toy_setup s) {
    static struct toy_result expected, got;
    s.steps = 3;
    toy_train(&s, &expected);
    s.device = device;
    for (s.seed = 1; s.seed <= (strcmp(device, "cuda") ? 2 : 1); s.seed++) {
        toy_train(&s, &got);
        int same = CHECK_STRING(expected.error, "") && CHECK_STRING(got.error, "") &&
                   CHECK_BYTES(got.weights, expected.weights, sizeof got.weights) &&
                   CHECK_STRING(got.hash, expected.hash) && CHECK_INT(got.skipped, expected.skipped);
        for (uint32_t i = 0; i < s.steps && same; i++)
            same = CHECK_DOUBLE(got.norm[i], expected.norm[i], 0) &
                   CHECK_DOUBLE(got.loss[i], expected.loss[i], 0);
        for (int t = 0; t < ZERO_TIERS && same; t++)
            same = CHECK_INT(got.measured[t], got.planned[t]) & CHECK_INT(got.planned[t], got.plan.bytes[t]);
        if (!same)
            fprintf(stderr, "in %s: stage %u, %u ranks, seed %u\n", name, s.stage, s.ranks, (unsigned)s.seed);
    }
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
    }
}

static void tiers(void) {
    static const char *const all[] = {CPU, NVME, CPU PARAM_CPU, NVME PARAM_CPU, NVME PARAM_NVME};
    for (uint32_t stage = 0; stage < 4; stage++)
        for (int t = 0; t < (stage == 3 ? 5 : 2); t++) {
            struct toy_setup s = setup(stage, 2);
            s.tiers = all[t];
            run(all[t], s);
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
        s.memory = stage == 3 ? TOY_GIVEN : TOY_SPANS;
        run("memory of the host program's", s);
        s = setup(stage, 2);
        s.tiers = CPU ", \"zero_quantized_gradients\": true", s.optimizer = stage % 2 ? SGD : LION;
        run("codes for gradients", s);
    }
    struct toy_setup s = setup(3, 4);
    s.tiers = CPU ", \"mics_shard_size\": 2";
    run("two copies", s);
    s.tiers = CPU ", \"zero_hpz_partition_size\": 2";
    run("a second shard", s);
    s.tiers = CPU PARAM_CPU ", \"zero_quantized_weights\": true";
    run("codes for parameters", s);
    s = setup(3, 2);
    s.recompute = 2;
    run("recomputation", s);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"plain", plain}, {"types", types}, {"tiers", tiers}, {"ways", ways}};
    int found = 0;
    if (argc != 3) return 2;
    device = argv[1];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(parts[i].name, argv[2])) parts[i].run(), found = 1;
    CHECK(found);
    return check_end();
}
