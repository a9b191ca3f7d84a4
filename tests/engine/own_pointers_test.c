/* A host whose code reads pointers of its own: the engine sets them, as if all layers were in one array, and takes the initial weights
 * from arrays of the host. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"

enum { LAYERS = 2, SIZE = 300, HEAD = 40 };

struct host {
    float *weight, *weight_grad; /* of all layers */
    float *head;                 /* frozen */
    zero_slot slot[LAYERS + 1];  /* the same addresses */
    zero_unit *unit[LAYERS + 1];
};

static const float *values_of_head, *values; /* of all ranks; arrays of those that open the engine */

static void declare(zero_engine *engine, struct host *h) {
    char name[16];
    for (uint32_t u = 0; u <= LAYERS; u++) {
        snprintf(name, sizeof name, "%u", u);
        CHECK_INT(zero_engine_add_unit(engine, name, &h->unit[u]), ZERO_OK);
        zero_param param = {.struct_size = sizeof param, .name = name, .dims = 1, .slot = &h->slot[u]};
        param.shape[0] = u < LAYERS ? SIZE : HEAD;
        param.flags = u < LAYERS ? ZERO_ADDS_GRAD : ZERO_FROZEN;
        param.values = u < LAYERS ? values + u * SIZE : values_of_head;
        param.param_pointer = (void **)(u < LAYERS ? &h->weight : &h->head);
        param.grad_pointer = u < LAYERS ? (void **)&h->weight_grad : NULL;
        param.pointer_offset = u < LAYERS ? u * SIZE : 0;
        CHECK_INT(zero_unit_add_param(h->unit[u], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_OK);
}

/* What a function gives is the same as what the arrays give. */
static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    const float *from = *param - '0' < LAYERS ? values + (*param - '0') * SIZE : values_of_head;
    for (uint64_t i = 0; i < count; i++) out[i] = from[first + i];
}

static void check_pointers(struct host *h, uint32_t u, bool in_backward) {
    if (u == LAYERS) {
        CHECK(h->head && h->head == h->slot[u].param);
        return;
    }
    CHECK(h->weight + u * SIZE == h->slot[u].param);
    for (int i = 0; i < SIZE; i++)
        if (!CHECK_DOUBLE((double)h->weight[u * SIZE + i], (double)values[u * SIZE + i], 0)) return;
    CHECK(in_backward ? h->weight_grad + u * SIZE == h->slot[u].grad : !h->weight_grad);
    for (int i = 0; i < SIZE && in_backward; i++) h->weight_grad[u * SIZE + i] += 1 + (float)u;
}

static void train(zero_engine *engine, struct host *h) {
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    for (uint32_t u = 0; u <= LAYERS; u++) {
        CHECK_INT(zero_forward_begin(h->unit[u]), ZERO_OK);
        check_pointers(h, u, false);
        CHECK_INT(zero_forward_end(h->unit[u]), ZERO_OK);
        CHECK(!h->weight && !h->weight_grad && !h->head);
    }
    for (uint32_t u = LAYERS + 1; u-- > 0;) {
        CHECK_INT(zero_backward_begin(h->unit[u]), ZERO_OK);
        check_pointers(h, u, true);
        CHECK_INT(zero_backward_end(h->unit[u]), ZERO_OK);
        CHECK(!h->weight && !h->weight_grad && !h->head);
    }
    CHECK_INT(zero_engine_step(engine, &info), ZERO_OK);
    CHECK_DOUBLE(info.grad_norm * info.grad_norm, SIZE * (1. + 4.), 1e-6);
}

static void use_pointers(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    char from_values[33], from_function[33];
    if (!CHECK(engine)) return;
    declare(engine, &h);
    CHECK_INT(zero_engine_hash(engine, from_values), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, from_function), ZERO_OK);
    CHECK_STRING(from_values, from_function);
    train(engine, &h);
}

int main(void) {
    static float weights[LAYERS * SIZE], head[HEAD];
    for (int i = 0; i < LAYERS * SIZE; i++) weights[i] = (float)(i + 1) / 1024;
    for (int i = 0; i < HEAD; i++) head[i] = (float)i;
    values = weights, values_of_head = head;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %u, "
                 "\"stage3_param_persistence_threshold\": 50}}",
                 stage);
        ranks_run(2, json, use_pointers, NULL);
    }
    return check_end();
}
