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

/* ---- beside spans: a pointer, or a slot, is one address, however many spans there are ---- */

enum { HALF = SIZE / 2 };

static void add(zero_unit *unit, const char *name, const char *tied_to, const zero_span *spans, uint32_t count,
                float **param_pointer, float **grad_pointer, zero_slot *slot) {
    zero_param param = {
        .struct_size = sizeof param, .name = name, .dims = 1, .shape = {SIZE}, .tied_to = tied_to};
    param.flags = tied_to ? 0 : ZERO_ADDS_GRAD;
    param.spans = spans, param.span_count = count, param.slot = slot;
    param.param_pointer = (void **)param_pointer, param.grad_pointer = (void **)grad_pointer;
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
}

static void check_address(const float *weight) {
    if (!CHECK(weight)) return;
    for (int i = 0; i < SIZE; i++)
        if (!CHECK_DOUBLE((double)weight[i], (double)values[i], 0)) return;
}

/* A parameter in two spans has pointers too; or `tied`: another one, which is tied to it, has a slot beside a span of its own. */
static void use_spans(zero_engine *engine, bool tied) {
    static float memory[2][SIZE], grads[2][SIZE];
    const zero_span spans[] = {{memory[0], grads[0], HALF}, {memory[0] + HALF, grads[0] + HALF, SIZE - HALF}},
                    whole = {memory[1], grads[1], SIZE};
    float *weight = NULL, *grad = NULL;
    zero_slot slot = {0};
    zero_unit *unit[2];
    memcpy(memory[0], values, sizeof memory[0]);
    CHECK_INT(zero_engine_add_unit(engine, "0", &unit[0]), ZERO_OK);
    add(unit[0], "w", NULL, spans, 2, tied ? NULL : &weight, tied ? NULL : &grad, NULL);
    CHECK_INT(zero_engine_add_unit(engine, "1", &unit[1]), ZERO_OK);
    add(unit[1], "t", tied ? "w" : NULL, &whole, 1, NULL, NULL, tied ? &slot : NULL);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit[tied]), ZERO_OK);
    check_address(tied ? slot.param : weight);
    CHECK_INT(zero_forward_end(unit[tied]), ZERO_OK);
    CHECK_INT(zero_backward_begin(unit[tied]), ZERO_OK);
    check_address(tied ? slot.param : weight);
    CHECK(tied ? slot.grad != NULL : grad != NULL);
    CHECK_INT(zero_backward_end(unit[tied]), ZERO_OK);
}

static void pointers_beside_spans(const char *json) {
    for (int tied = 0; tied <= 1; tied++) {
        zero_engine *engine = zero_engine_init(json);
        if (CHECK(engine)) use_spans(engine, tied);
        zero_engine_destroy(engine);
    }
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
        if (stage < 3) pointers_beside_spans(json);
    }
    return check_end();
}
