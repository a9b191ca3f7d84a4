/* Features of the interface in combination: held units with ties and spans, gradients that are given, free order, cancelled
 * micro-steps, saves in the background. Each case once went wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"

enum { N = 200, UNITS = 3 };

struct host {
    zero_engine *engine;
    zero_unit *unit[UNITS];
    zero_slot slot[UNITS];
};

static void ones(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 1;
}

static void refused(zero_status status, zero_status expected, const char *says) {
    CHECK_INT(status, expected);
    CHECK_CONTAINS(zero_last_error(), says);
}

static zero_param param_of(struct host *h, int i, const char *name) {
    return (zero_param){
        .struct_size = sizeof(zero_param), .name = name, .dims = 1, .shape = {N}, .slot = &h->slot[i]};
}

static void add(struct host *h, int i, const char *name, zero_param param) {
    CHECK_INT(zero_engine_add_unit(h->engine, name, &h->unit[i]), ZERO_OK);
    CHECK_INT(zero_unit_add_param(h->unit[i], &param), ZERO_OK);
}

static void begin(struct host *h) {
    CHECK_INT(zero_engine_commit(h->engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(h->engine, ones, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(h->engine, ZERO_TRAIN), ZERO_OK);
}

static void units(struct host *h, int count) {
    static const char *const names[UNITS] = {"u0", "u1", "u2"};
    for (int i = 0; i < count; i++) add(h, i, names[i], param_of(h, i, names[i]));
}

static void forward(struct host *h, int i) {
    CHECK_INT(zero_forward_begin(h->unit[i]), ZERO_OK);
    CHECK_INT(zero_forward_end(h->unit[i]), ZERO_OK);
}

static void write_gradient(const zero_slot *slot, float value) {
    for (int k = 0; k < N; k++)
        ((float *)slot->grad)[k] = slot->add ? ((float *)slot->grad)[k] + value : value;
}

static void backward(struct host *h, int i, float value) {
    CHECK_INT(zero_backward_begin(h->unit[i]), ZERO_OK);
    write_gradient(&h->slot[i], value);
    CHECK_INT(zero_backward_end(h->unit[i]), ZERO_OK);
}

static void check_gradient(struct host *h, const char *name, float expected) {
    float got[N];
    CHECK_INT(zero_engine_get(h->engine, name, ZERO_GRAD, got, 0, N), ZERO_OK);
    for (int k = 0; k < N; k++)
        if (!CHECK_DOUBLE((double)got[k], (double)expected, 0)) return;
}

static void a_long_name_beside_nan(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    char name[2001];
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = 0;
    add(&h, 0, "u", param_of(&h, 0, name));
    begin(&h);
    forward(&h, 0), backward(&h, 0, NAN);
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(zero_engine_step(engine, &info), ZERO_OK);
    CHECK_INT(info.skipped, 1);
}

static void a_held_unit_gets_no_spans(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    float w[N], g[N];
    zero_span span = {w, g, N};
    zero_param param = param_of(&h, 0, "v");
    param.spans = &span, param.span_count = 1;
    CHECK_INT(zero_engine_add_unit(engine, "held", &h.unit[0]), ZERO_OK);
    CHECK_INT(zero_unit_hold(h.unit[0]), ZERO_OK);
    refused(zero_unit_add_param(h.unit[0], &param), ZERO_E_ARGUMENT, "is held");
}

/* The head is tied to the held embedding, and the body uses the embedding too. */
static void held_and_tied(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    zero_param head = param_of(&h, 2, "lm");
    float given[N];
    for (int k = 0; k < N; k++) given[k] = 8;
    add(&h, 0, "held", param_of(&h, 0, "wte"));
    CHECK_INT(zero_unit_hold(h.unit[0]), ZERO_OK);
    add(&h, 1, "body", param_of(&h, 1, "w"));
    head.tied_to = "wte";
    add(&h, 2, "head", head);
    begin(&h);
    forward(&h, 1), forward(&h, 2);
    CHECK_INT(zero_backward_begin(h.unit[2]), ZERO_OK);
    CHECK_INT(h.slot[0].add, 1);
    write_gradient(&h.slot[2], 1), write_gradient(&h.slot[0], 2);
    CHECK_INT(zero_backward_end(h.unit[2]), ZERO_OK);
    CHECK_INT(zero_backward_begin(h.unit[1]), ZERO_OK);
    write_gradient(&h.slot[1], 3), write_gradient(&h.slot[0], 4);
    CHECK_INT(zero_param_give_grad(zero_engine_param(engine, "wte"), given), ZERO_OK);
    CHECK_INT(zero_backward_end(h.unit[1]), ZERO_OK);
    CHECK(!h.slot[0].grad); /* no use can follow */
    check_gradient(&h, "wte", 15);
    check_gradient(&h, "w", 3);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

/* An empty unit marks the begin and the end of a pass for the held one; without a held unit it is refused. */
static void held_by_an_empty_unit(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    CHECK_INT(zero_engine_add_unit(engine, "pass", &h.unit[0]), ZERO_OK);
    add(&h, 1, "body", param_of(&h, 1, "w"));
    add(&h, 2, "held", param_of(&h, 2, "scale"));
    CHECK_INT(zero_unit_hold(h.unit[2]), ZERO_OK);
    begin(&h);
    forward(&h, 0);
    CHECK_DOUBLE((double)((float *)h.slot[2].param)[0], 1, 0);
    forward(&h, 1);
    backward(&h, 1, 3);
    CHECK_INT(zero_backward_begin(h.unit[0]), ZERO_OK);
    write_gradient(&h.slot[2], 5);
    CHECK_INT(zero_backward_end(h.unit[0]), ZERO_OK);
    check_gradient(&h, "scale", 5);
    check_gradient(&h, "w", 3);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

static void an_empty_unit(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    CHECK_INT(zero_engine_add_unit(engine, "pass", &h.unit[0]), ZERO_OK);
    add(&h, 1, "body", param_of(&h, 1, "w"));
    refused(zero_engine_commit(engine, NULL), ZERO_E_ARGUMENT, "\"pass\" has no parameters");
}

static void spans_take_no_given_gradient(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    float w[N], g[N] = {0}, given[N] = {0}, f[N];
    zero_span span = {w, g, N}, frozen_span = {f, NULL, N};
    zero_param param = param_of(&h, 0, "w"), tied = param_of(&h, 1, "lm"), frozen = param_of(&h, 2, "f");
    param.spans = &span, param.span_count = 1, param.slot = NULL, param.flags = ZERO_ADDS_GRAD;
    add(&h, 0, "a", param);
    frozen.spans = &frozen_span, frozen.span_count = 1, frozen.slot = NULL, frozen.flags = ZERO_FROZEN;
    CHECK_INT(zero_unit_add_param(h.unit[0], &frozen), ZERO_OK);
    tied.tied_to = "w";
    add(&h, 1, "head", tied);
    begin(&h);
    forward(&h, 0), forward(&h, 1);
    CHECK_INT(zero_backward_begin(h.unit[1]), ZERO_OK);
    CHECK_INT(h.slot[1].add, 1); /* of a parameter whose owner is added to */
    write_gradient(&h.slot[1], 1);
    CHECK_INT(zero_backward_end(h.unit[1]), ZERO_OK);
    CHECK_INT(zero_backward_begin(h.unit[0]), ZERO_OK);
    refused(zero_param_give_grad(zero_unit_param(h.unit[0], 0), given), ZERO_E_ARGUMENT, "has spans");
    refused(zero_param_give_grad(zero_unit_param(h.unit[0], 1), given), ZERO_E_ARGUMENT, "is frozen");
    refused(zero_unit_give_grads(h.unit[0], (const void *const[]){given, NULL}), ZERO_E_ARGUMENT, "has spans");
    CHECK_INT(zero_unit_give_grads(h.unit[0], (const void *const[]){NULL, given}), ZERO_OK);
    for (int k = 0; k < N; k++) g[k] += 2;
    CHECK_INT(zero_backward_end(h.unit[0]), ZERO_OK);
    check_gradient(&h, "w", 3);
}

static void a_backward_inside_its_own(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    units(&h, 2);
    CHECK_INT(zero_engine_free_order(engine), ZERO_OK);
    begin(&h);
    forward(&h, 0), forward(&h, 1);
    CHECK_INT(zero_backward_begin(h.unit[0]), ZERO_OK);
    write_gradient(&h.slot[0], 5);
    backward(&h, 0, 1);
    CHECK_INT(zero_backward_end(h.unit[0]), ZERO_OK);
    backward(&h, 1, 2);
    check_gradient(&h, "u0", 6);
    check_gradient(&h, "u1", 2);
}

static void free_order_awaits_its_backward(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    units(&h, 2);
    CHECK_INT(zero_engine_free_order(engine), ZERO_OK);
    begin(&h);
    forward(&h, 0), forward(&h, 1);
    refused(zero_engine_flush(engine), ZERO_E_ORDER, "do the backward first");
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    forward(&h, 1);
    refused(zero_engine_step(engine, NULL), ZERO_E_ORDER, "zero_micro_resume");
    CHECK_INT(zero_micro_resume(engine), ZERO_OK);
    backward(&h, 0, 1);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

/* Two micro-steps. A handler that cancels and saves works wherever the exception came from. */
static void steps_are_dropped(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    units(&h, 2);
    begin(&h);
    forward(&h, 0), forward(&h, 1), backward(&h, 1, 1), backward(&h, 0, 1);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    forward(&h, 0), forward(&h, 1);
    refused(zero_engine_step(engine, NULL), ZERO_E_ORDER, "no backward has run in the last micro-step");
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK); /* the first micro-step */
    refused(zero_micro_cancel(engine), ZERO_E_ORDER, "nothing to cancel");
    CHECK_INT(zero_engine_save(engine, user), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN),
              ZERO_OK); /* a micro-step without a use, and an evaluation after it */
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK); /* the evaluation */
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK); /* the micro-step */
    for (int micro = 0; micro < 2; micro++) {
        CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
        forward(&h, 0), forward(&h, 1);
        forward(&h, 1); /* recomputed, before the first backward */
        backward(&h, 1, 3), backward(&h, 0, 5);
    }
    check_gradient(&h, "u0", 5);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

static void own_parts_while_a_save_is_under_way(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {.engine = engine};
    uint64_t first, count;
    float values[N];
    char hash[33];
    units(&h, 1);
    begin(&h);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, user), ZERO_OK);
    zero_handle *param = zero_unit_param(h.unit[0], 0);
    CHECK_INT(zero_param_owned(param, ZERO_PARAM, &first, &count), ZERO_OK);
    if (!rank)
        refused(zero_param_get_owned(param, ZERO_PARAM, values, first, count), ZERO_E_ORDER,
                "zero_engine_save_wait");
    CHECK_INT(zero_engine_save_wait(engine), ZERO_OK);
    CHECK_INT(zero_param_get_owned(param, ZERO_PARAM, values, first, count), ZERO_OK);
    CHECK_INT(zero_param_put_owned(param, ZERO_PARAM, values, first, count), ZERO_OK);
    refused(zero_engine_hash(engine, hash), ZERO_E_ORDER, "zero_engine_written");
    refused(zero_engine_save(engine, user), ZERO_E_ORDER, "zero_engine_written");
    CHECK_INT(zero_engine_written(engine), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
}

int main(void) {
    char json[256], dir[512];
    snprintf(dir, sizeof dir, "%s/saved", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    for (int stage = 1; stage <= 3; stage += 2) {
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %d, "
                 "\"stage3_param_persistence_threshold\": 0}}",
                 stage);
        ranks_run(2, json, a_long_name_beside_nan, NULL);
        ranks_run(2, json, a_held_unit_gets_no_spans, NULL);
        ranks_run(2, json, held_and_tied, NULL);
        ranks_run(2, json, held_by_an_empty_unit, NULL);
        ranks_run(2, json, an_empty_unit, NULL);
        if (stage < 3) ranks_run(2, json, spans_take_no_given_gradient, NULL);
        ranks_run(2, json, a_backward_inside_its_own, NULL);
        ranks_run(2, json, free_order_awaits_its_backward, NULL);
    }
    ranks_run(
        2,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, \"zero_optimization\": "
        "{\"stage\": 2}}",
        steps_are_dropped, dir);
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1, \"checkpoint\": {\"async\": true}}",
              own_parts_while_a_save_is_under_way, dir);
    return check_end();
}
