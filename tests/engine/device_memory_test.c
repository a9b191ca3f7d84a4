/* What a GPU has left beside the plan and the margin: refused before it is allocated where it cannot fit, filled by tiered state, and what
 * was found after the first step. On the stand-in, whose GPU has 300 MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

static char lines[1 << 14];

static void keep_lines(void *user, zero_log_level level, const char *message) {
    size_t length = strlen(lines);
    snprintf(lines + length, sizeof lines - length, "%s%s\n", level == ZERO_LOG_WARN ? "warning: " : "",
             message);
}

#define CONFIG(extra)                                                                                        \
    "{\"device\": {\"type\": \"cuda\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "  \
    "\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 0" extra "}"
#define MARGIN(bytes) ", \"memory\": {\"device_margin\": " bytes "}}"
#define CPU ", \"offload_optimizer\": {\"device\": \"cpu\"}"
#define TIERED ", \"offload_optimizer\": {\"device\": \"tiered\"}"

/* One parameter; a step without a gradient of its own, if the commit succeeds. */
static zero_status train(const char *json, uint64_t count, uint64_t reserved, char message[512]) {
    struct plain_param param = {"unit", "weight", count, 0, NULL};
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = keep_lines};
    struct plain plain;
    lines[0] = 0;
    zero_engine *engine = NULL;
    zero_status status = zero_engine_open(json, &runtime, &engine);
    if (!status) status = zero_engine_reserve(engine, ZERO_DEVICE, reserved, "activations");
    if (!status) status = plain_open(&plain, engine, &param, 1, NULL);
    if (!status) status = zero_micro_begin(engine, ZERO_TRAIN);
    if (!status) status = zero_forward_begin(plain.unit[0]);
    if (!status) status = zero_forward_end(plain.unit[0]);
    if (!status) status = zero_backward_begin(plain.unit[0]);
    if (!status) status = zero_backward_end(plain.unit[0]);
    if (!status) status = zero_engine_step(engine, NULL);
    snprintf(message, 512, "%s", zero_last_error());
    zero_engine_destroy(engine);
    return status;
}

enum { MIB = 1 << 20, PARTS = 1000 };

struct spare {
    uint64_t reserved, granted[2];
};

static void commit_spare(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param param = {"unit", "weight", 1000, 0, NULL};
    struct spare *s = user;
    struct plain plain;
    zero_status status =
        engine ? zero_engine_reserve(engine, ZERO_DEVICE, s->reserved, "taken later") : ZERO_E_CONFIG;
    if (!status) status = zero_engine_reserve_spare(engine, MIB, PARTS, "outputs", &s->granted[rank]);
    if (!status) status = plain_open(&plain, engine, &param, 1, NULL);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

/* Parts of 1 MiB. The plan takes less than one. */
static void spare(const char *json, uint32_t ranks, uint64_t reserved, uint64_t granted) {
    struct spare s = {.reserved = reserved};
    ranks_run(ranks, json, commit_spare, &s);
    for (uint32_t r = 0; r < ranks; r++) CHECK_INT(s.granted[r], granted);
}

/* The margin stays free, or a twentieth of the GPU, 15 MiB; ranks that share it have a part each. */
static void spare_memory(void) {
    spare(CONFIG("") MARGIN("0"), 1, 0, 300 - 15 - 1);
    spare(CONFIG("") MARGIN("\"15MiB\""), 1, 0, 300 - 15 - 1);
    spare(CONFIG("") MARGIN("\"16MiB\""), 1, 0, 300 - 16 - 1);
    spare(CONFIG("") MARGIN("\"200MiB\""), 1, 90 * MIB, 300 - 200 - 90 - 1);
    spare(CONFIG("") MARGIN("\"200MiB\""), 1, 99 * MIB, 0);
    spare(CONFIG("") MARGIN("0"), 2, 0, 300 / 2 - 15 - 1);
    spare(CONFIG("") ", \"memory\": {\"device\": \"50MiB\"}}", 1, 0, 300 - 256 - 1);
    spare(CONFIG("") ", \"memory\": {\"device\": \"30MiB\"}}", 1, 0, 30 - 1);
}

static void commit_filled(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param param = {"unit", "weight", 700000, 0, NULL};
    uint64_t *bytes = user;
    zero_plan plan = {.struct_size = sizeof plan};
    struct plain plain;
    if (!CHECK_INT(engine ? plain_open(&plain, engine, &param, 1, &plan) : ZERO_E_CONFIG, ZERO_OK))
        fprintf(stderr, "%s\n", zero_last_error());
    bytes[rank] = plan.bytes[ZERO_DEVICE];
}

/* Each of the ranks on one GPU fills its part of what is free: with all state each would take 11.2 MB. */
static void ranks_share_the_room(void) {
    uint64_t bytes[2] = {0};
    ranks_run(2, CONFIG(CPU) ", \"memory\": {\"device\": \"1GiB\", \"device_margin\": \"140MiB\"}}",
              commit_filled, bytes);
    for (int r = 0; r < 2; r++) CHECK(bytes[r] > 2 * 700000 * 4 && bytes[r] <= 10 * MIB);
}

int main(void) {
    char message[512];
    setenv("FAKE_CUDA_MEMORY", "314572800", 1);
    CHECK_INT(train(CONFIG("") "}", 1000, 0, message), ZERO_OK);
    CHECK_CONTAINS(lines, "GPU 0: of 0.29 GiB, 0.29 GiB were free when the engine opened; the host program "
                          "has taken 0.00 GiB since then and the engine's communicators 0.00 GiB; the plan "
                          "takes 0.00 GiB of 0.29 GiB");
    CHECK_CONTAINS(lines, "GPU 0: of 0.29 GiB the plan takes 0.00 GiB");
    CHECK(!strstr(lines, "warning: GPU 0"));

    /* 4 Mi parameters of 16 bytes fit, but not beside the margin. */
    CHECK_INT(train(CONFIG("") "}", 4 << 20, 0, message), ZERO_E_BUDGET);
    CHECK_CONTAINS(message, "memory.device_margin keeps 0.25 GiB");
    CHECK_CONTAINS(message, "GPU 0's 0.29 GiB only 0.29 GiB are free");
    CHECK_INT(train(CONFIG("") MARGIN("0"), 20 << 20, 0, message), ZERO_E_BUDGET);
    CHECK_CONTAINS(message, "this rank's engine needs 0.31 GiB");
    CHECK_INT(train(CONFIG("") MARGIN("\"200MiB\""), 100000, 100 << 20, message), ZERO_E_BUDGET);
    CHECK_CONTAINS(message, "its host program 0.10 GiB more");
    CHECK_INT(train(CONFIG("") MARGIN("\"200MiB\""), 100000, 90 << 20, message), ZERO_OK);
    CHECK_INT(train(CONFIG("") MARGIN("\"299MiB\""), 1000, 0, message), ZERO_OK);
    CHECK(!strstr(lines, "warning: GPU 0"));

    /* Without a budget, tiered state takes what the GPU has free beside the margin. */
    CHECK_INT(train(CONFIG(TIERED) MARGIN("\"264MiB\""), 3000000, 0, message), ZERO_OK);
    CHECK_CONTAINS(lines, "% on the device, which updates it");
    CHECK_CONTAINS(lines, " GiB of host memory touched in ");
    CHECK_CONTAINS(lines, " and registered with the GPU in ");
    CHECK(!strstr(lines, "optimizer state: 100.0 %"));
    CHECK(!strstr(lines, "optimizer state: 0.0 %"));

    /* So does state that fills memory.device by default. */
    CHECK_INT(train(CONFIG(CPU) ", \"memory\": {\"device\": \"1GiB\", \"device_margin\": \"264MiB\"}}",
                    3000000, 0, message),
              ZERO_OK);
    CHECK_CONTAINS(lines, "% on the device, which updates it");
    CHECK(!strstr(lines, "optimizer state: 100.0 %"));
    CHECK(!strstr(lines, "optimizer state: 0.0 %"));

    ranks_share_the_room();
    spare_memory();
    return check_end();
}
