/* What a GPU has left beside the plan: refused before it is allocated where it cannot fit, a warning where little is left, and what
 * was found after the first step. On the stand-in, whose GPU has 300 MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"

static char lines[1 << 14];

static void keep_lines(void *user, zero_log_level level, const char *message) {
    size_t length = strlen(lines);
    snprintf(lines + length, sizeof lines - length, "%s%s\n", level == ZERO_LOG_WARN ? "warning: " : "",
             message);
}

static const char json[] =
    "{\"device\": {\"type\": \"cuda\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "
    "\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 0}}";

/* One parameter; a step without a gradient of its own, if the commit succeeds. */
static zero_status train(uint64_t count, char message[512]) {
    struct plain_param param = {"unit", "weight", count, 0, NULL};
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = keep_lines};
    struct plain plain;
    lines[0] = 0;
    zero_engine *engine = NULL;
    zero_status status = zero_engine_open(json, &runtime, &engine);
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

int main(void) {
    char message[512];
    setenv("FAKE_CUDA_MEMORY", "314572800", 1);
    CHECK_INT(train(1000, message), ZERO_OK);
    CHECK_CONTAINS(lines, "GPU 0: of 0.29 GiB the plan takes 0.00 GiB");
    CHECK(!strstr(lines, "warning: GPU 0"));

    CHECK_INT(train(4 << 20, message), ZERO_OK);
    CHECK_CONTAINS(lines, "warning: GPU 0: the plan takes 0.0");
    CHECK_CONTAINS(lines, "less than 0.25 GiB may be left");
    CHECK_CONTAINS(lines, "warning: GPU 0: of 0.29 GiB the plan takes");

    CHECK_INT(train(20 << 20, message), ZERO_E_BUDGET);
    CHECK_CONTAINS(message, "this rank's engine needs 0.");
    CHECK_CONTAINS(message, "GPU 0's 0.29 GiB only 0.29 GiB are free");
    return check_end();
}
