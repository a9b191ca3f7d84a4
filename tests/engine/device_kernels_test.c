/* The kernels of a step on a GPU, counted on the stand-in, by what one more unit adds: the kernel that sums its gradient also takes the
 * sums of squares, so that no other kernel reads the gradient for its norm. */
#include <stdio.h>

#include "tests/check.h"
#include "tests/cuda/counts.h"
#include "tests/engine/plain.h"

enum { UNITS_MAX = 3, ELEMENTS = 9000 };

static void use(const struct plain *plain, uint32_t units) {
    for (uint32_t u = 0; u < units; u++) {
        CHECK_INT(zero_forward_begin(plain->unit[u]), ZERO_OK);
        CHECK_INT(zero_forward_end(plain->unit[u]), ZERO_OK);
    }
    for (uint32_t u = units; u-- > 0;) {
        CHECK_INT(zero_backward_begin(plain->unit[u]), ZERO_OK);
        CHECK_INT(zero_backward_end(plain->unit[u]), ZERO_OK);
    }
}

/* Of a step. */
static unsigned long long kernels_of(const char *json, uint32_t units) {
    static const struct plain_param params[UNITS_MAX] = {
        {"a", "a.w", ELEMENTS, 0, NULL}, {"b", "b.w", ELEMENTS, 0, NULL}, {"c", "c.w", ELEMENTS, 0, NULL}};
    struct fake_cuda_counts before, after;
    struct plain plain;
    float weight[1];
    zero_engine *engine = zero_engine_init(json);
    CHECK_INT(plain_open(&plain, engine, params, units, NULL), ZERO_OK);
    counts_read(&before);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    use(&plain, units);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    for (uint32_t u = 0; u < units; u++) /* its update is over */
        CHECK_INT(zero_engine_get(engine, params[u].name, ZERO_PARAM, weight, 0, 1), ZERO_OK);
    counts_read(&after);
    zero_engine_destroy(engine);
    return after.kernels - before.kernels;
}

int main(void) {
    char json[512];
    for (int stage = 0; stage <= 3; stage++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            snprintf(json, sizeof json,
                     "{\"device\": {\"type\": \"cuda\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                     "{\"lr\": 1e-3}}, \"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": %s}, "
                     "\"zero_optimization\": {\"stage\": %d}}",
                     bf16 ? "true" : "false", stage);
            /* the sum with the norm's blocks, the norm's total, the update */
            CHECK_INT(kernels_of(json, 3) - kernels_of(json, 2), 3);
        }
    return check_end();
}
