/* The mistakes of engine/EMBEDDING.md, one function each, and what the engine answers. embedding_test.sh compares the answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"

enum { COUNT = 100 };

static zero_slot slot[2];
static float weights[COUNT], grads[COUNT];

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 1;
}

static void answers(zero_status status, zero_status expected, const char *says) {
    CHECK_INT(status, expected);
    CHECK_CONTAINS(zero_last_error(), says);
}

static zero_param param_of(const char *name, zero_slot *to) {
    return (zero_param){
        .struct_size = sizeof(zero_param), .name = name, .dims = 1, .shape = {COUNT}, .slot = to};
}

/* Two units with a parameter each, committed. */
static zero_engine *open_engine(const char *json, zero_unit *unit[2], uint32_t flags) {
    zero_engine *e = zero_engine_init(json);
    for (int u = 0; u < 2; u++) {
        zero_param param = param_of(u ? "w1" : "w0", &slot[u]);
        param.flags = flags;
        CHECK_INT(zero_engine_add_unit(e, u ? "second" : "first", &unit[u]), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit[u], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    return e;
}

static void opening(void) {
    zero_engine *e = NULL;
    answers(zero_engine_open("{\"train_batch_sise\": 1}", NULL, &e), ZERO_E_CONFIG,
            "unknown key: did you mean \"train_batch_size\"?");
    answers(
        zero_engine_open("{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": \"auto\"}}", NULL, &e),
        ZERO_E_CONFIG,
        "\"auto\" is chosen by `zero train`, or by `zero plan CONFIG.json --write-config FILE`");
    answers(zero_engine_open("confg.json", NULL, &e), ZERO_E_IO,
            "cannot be opened: No such file or directory; give a file, or JSON that starts with {");
    answers(zero_engine_open("{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 3}", NULL, &e),
            ZERO_E_CONFIG, "is not a multiple of train_micro_batch_size_per_gpu");
    answers(zero_engine_commit(e, NULL), ZERO_E_ARGUMENT,
            "the engine is NULL: check what zero_engine_init returned, and why");
}

static void declaring(void) {
    zero_unit *unit;
    zero_param param = param_of("w", &slot[0]);
    zero_span half = {weights, grads, COUNT / 2};
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    CHECK_INT(zero_engine_add_unit(e, "unit", &unit), ZERO_OK);
    param.struct_size = 0;
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT,
            "zero_param.struct_size is 0: set it to sizeof(zero_param)");
    param = param_of("w", NULL);
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT,
            "needs a slot or a param_pointer to leave its address in, or spans");
    void *weight, *grad;
    param.param_pointer = &weight, param.grad_pointer = &grad;
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT,
            "has a grad_pointer and no slot that says whether to overwrite its gradient or to add");
    param = param_of("w", NULL), param.spans = &half, param.span_count = 1;
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "they must cover it exactly");
    zero_span too_long[2] = {{weights, grads, UINT64_MAX}, {weights, grads, COUNT + 1}};
    param.spans = too_long, param.span_count = 2;
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "they must cover it exactly");
    param = param_of("w", &slot[0]), param.span_count = 1;
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "span_count is 1 and spans is NULL");
    param = param_of("w", &slot[0]), param.tied_to = "later";
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT,
            "is tied to \"later\", which no earlier unit has");
    param.tied_to = "w";
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "parameter \"w\" is tied to itself");
    param = param_of("w", &slot[0]);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    answers(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "was added before; give each its own name");
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    answers(zero_engine_add_unit(e, "late", &unit), ZERO_E_ORDER,
            "the engine is committed; declare everything before zero_engine_commit");
    answers(zero_engine_fill(e, NULL, NULL), ZERO_E_ARGUMENT,
            "has neither values nor spans to take its weights from");
    answers(zero_micro_begin(e, ZERO_TRAIN), ZERO_E_ORDER,
            "zero_micro_begin: first zero_engine_commit, then zero_engine_fill");
    zero_engine_destroy(e);
}

/* A parameter without a slot, in memory of the host program. */
static void add_lent(zero_unit *unit, const char *name, const zero_span *span, uint32_t flags) {
    zero_param param = param_of(name, NULL);
    param.shape[0] = span->count, param.spans = span, param.span_count = 1, param.flags = flags;
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
}

/* A copied line, or spans that overlap: one array would have two places in the model. */
static void spans_in_the_same_memory(void) {
    static float other[COUNT];
    zero_unit *unit;
    for (int frozen = 0; frozen < 2; frozen++) {
        zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
        zero_span span[2] = {{weights, grads, COUNT}, {weights, other, COUNT}};
        for (int u = 0; u < 2; u++) {
            CHECK_INT(zero_engine_add_unit(e, u ? "second" : "first", &unit), ZERO_OK);
            add_lent(unit, u ? "w1" : "w0", &span[u], frozen ? ZERO_FROZEN : 0);
        }
        if (frozen) CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK); /* they stay alike */
        if (!frozen)
            answers(
                zero_engine_commit(e, NULL), ZERO_E_ARGUMENT,
                "parameters \"w0\" and \"w1\" have spans in the same memory: give each its own, or declare "
                "one as tied to the other");
        zero_engine_destroy(e);
    }
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    zero_span span[2] = {{weights, grads, COUNT / 2}, {weights + COUNT / 2 - 1, other, COUNT / 2}};
    zero_param param = param_of("w", NULL);
    param.spans = span, param.span_count = 2;
    CHECK_INT(zero_engine_add_unit(e, "u", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    answers(zero_engine_commit(e, NULL), ZERO_E_ARGUMENT, "spans of parameter \"w\" overlap");
    zero_engine_destroy(e);
}

/* Two gradients of the second unit overlap, and the first unit's gradient has all of the same array. */
static void gradients_in_the_same_memory(void) {
    static float other[2 * COUNT];
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    zero_span span[3] = {
        {weights, grads, COUNT}, {other, grads, COUNT / 2}, {other + COUNT, grads + COUNT / 4, COUNT / 2}};
    zero_unit *unit;
    CHECK_INT(zero_engine_add_unit(e, "first", &unit), ZERO_OK);
    add_lent(unit, "w0", &span[0], 0);
    CHECK_INT(zero_engine_add_unit(e, "second", &unit), ZERO_OK);
    add_lent(unit, "w1", &span[1], 0);
    add_lent(unit, "w2", &span[2], 0);
    answers(zero_engine_commit(e, NULL), ZERO_E_ARGUMENT,
            "parameters \"w1\" and \"w2\" have spans in the same memory");
    zero_engine_destroy(e);
}

/* Frozen parameters may share memory, and do not hide a trained one in the same memory. */
static void frozen_spans_beside_a_trained_one(void) {
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    zero_span span[3] = {{weights, NULL, COUNT}, {weights, NULL, 1}, {weights + COUNT / 2, grads, 1}};
    zero_unit *unit;
    CHECK_INT(zero_engine_add_unit(e, "unit", &unit), ZERO_OK);
    add_lent(unit, "w0", &span[0], ZERO_FROZEN);
    add_lent(unit, "w1", &span[1], ZERO_FROZEN);
    add_lent(unit, "w2", &span[2], 0);
    answers(zero_engine_commit(e, NULL), ZERO_E_ARGUMENT,
            "parameters \"w0\" and \"w2\" have spans in the same memory");
    zero_engine_destroy(e);
}

static void two_tied_to_one(void) {
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    static const char *const names[2][2] = {{"w0", "w1"}, {"t0", "t1"}};
    zero_unit *unit;
    for (int u = 0; u < 2; u++) {
        CHECK_INT(zero_engine_add_unit(e, u ? "second" : "first", &unit), ZERO_OK);
        for (int i = 0; i < 2; i++) {
            zero_param param = param_of(names[u][i], &slot[i]);
            param.tied_to = u ? "w1" : NULL;
            zero_status status = zero_unit_add_param(unit, &param);
            if (!u || !i) CHECK_INT(status, ZERO_OK);
            if (u && i)
                answers(status, ZERO_E_ARGUMENT,
                        "parameters \"t0\" and \"t1\" of unit \"second\" are tied to the same one");
        }
    }
    zero_engine_destroy(e);
}

static void spans_at_stage_3(void) {
    zero_unit *unit;
    zero_span span = {weights, grads, COUNT};
    zero_param param = param_of("w", NULL);
    param.spans = &span, param.span_count = 1;
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 3}}");
    CHECK_INT(zero_engine_add_unit(e, "unit", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    answers(
        zero_engine_commit(e, NULL), ZERO_E_UNSUPPORTED,
        "zero3 keeps parameters sharded: use stage 0, 1 or 2, or give the parameter a slot instead of spans");
    zero_engine_destroy(e);
}

static void another_model_on_each_rank(zero_engine *engine, uint32_t rank, void *user) {
    zero_unit *unit;
    zero_slot own;
    zero_param param = param_of(rank ? "weight" : "wieght", &own);
    CHECK_INT(zero_engine_add_unit(engine, "unit", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    answers(zero_engine_commit(engine, NULL), ZERO_E_DIVERGED,
            "rank 1 has another model than rank 0; give all ranks the same");
}

static void another_shape_on_each_rank(zero_engine *engine, uint32_t rank, void *user) {
    zero_unit *unit;
    zero_slot own;
    zero_param param = param_of("weight", &own);
    param.dims = 2, param.shape[0] = rank ? 20 : 5, param.shape[1] = COUNT / param.shape[0];
    CHECK_INT(zero_engine_add_unit(engine, "unit", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    answers(zero_engine_commit(engine, NULL), ZERO_E_DIVERGED,
            "rank 1 has another model than rank 0; give all ranks the same");
}

static void using(void) {
    zero_unit *unit[2];
    zero_engine *e = open_engine("{\"train_batch_size\": 2, \"gradient_accumulation_steps\": 2}", unit, 0);
    CHECK_INT(zero_engine_fill(e, fill, NULL), ZERO_OK);
    answers(zero_forward_begin(unit[0]), ZERO_E_ORDER, "no pass is open; call zero_micro_begin first");
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit[1]), ZERO_OK);
    answers(zero_forward_begin(unit[0]), ZERO_E_ORDER, "is still in its forward; end it first");
    CHECK_INT(zero_forward_end(unit[1]), ZERO_OK);
    CHECK(!slot[1].param);
    answers(zero_forward_begin(unit[0]), ZERO_E_ORDER,
            "its turn in this pass is over; units are used in the order in which they were added");
    answers(zero_unit_give_grads(unit[1], (const void *const[]){grads}), ZERO_E_ORDER,
            "call it between zero_backward_begin and _end of \"second\"");
    answers(zero_backward_begin(unit[0]), ZERO_E_ORDER, "its forward was skipped in this pass");
    CHECK_INT(zero_backward_begin(unit[1]), ZERO_OK);
    memset(slot[1].grad, 0, COUNT * sizeof(float));
    CHECK_INT(zero_backward_end(unit[1]), ZERO_OK);
    answers(zero_engine_step(e, NULL), ZERO_E_ORDER,
            "1 of 2 micro-steps are done (gradient_accumulation_steps); do the others first");
    answers(zero_engine_load(e, "none"), ZERO_E_ORDER, "call it between steps, not between micro-steps");
    zero_engine_destroy(e);
}

static void one_micro_step_of_a_use(void) {
    zero_unit *unit[2];
    zero_engine *e = open_engine("{\"train_batch_size\": 2, \"gradient_accumulation_steps\": 2, "
                                 "\"zero_optimization\": {\"micro_order\": \"vertical\"}}",
                                 unit, 0);
    CHECK_INT(zero_engine_fill(e, fill, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit[0]), ZERO_OK);
    answers(zero_forward_end(unit[0]), ZERO_E_ORDER,
            "1 of 2 micro-steps are done (zero_optimization.micro_order \"vertical\")");
    zero_engine_destroy(e);
}

static void more_units_than_declared(void) {
    zero_unit *unit[2];
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    for (int u = 0; u < 2; u++) {
        zero_param param = param_of(u ? "w1" : "w0", &slot[u]);
        CHECK_INT(zero_engine_add_unit(e, u ? "second" : "first", &unit[u]), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit[u], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_free_order_within(e, 1), ZERO_OK);
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(e, fill, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit[1]), ZERO_OK);
    answers(zero_forward_begin(unit[0]), ZERO_E_ORDER,
            "1 unit is in use, \"second\", and zero_engine_free_order_within allows 1 at once");
    CHECK_INT(zero_forward_end(unit[1]), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit[0]), ZERO_OK);
    zero_engine_destroy(e);
}

static void flushes(zero_engine *e) { CHECK_INT(zero_engine_flush(e), ZERO_OK); }
static void evaluates(zero_engine *e) { CHECK_INT(zero_micro_begin(e, ZERO_EVAL), ZERO_OK); }

/* Also where another call comes in between. */
static void a_step_without_a_backward(void) {
    static void (*const between[])(zero_engine *) = {NULL, flushes, evaluates};
    for (size_t i = 0; i < sizeof between / sizeof *between; i++) {
        zero_unit *unit[2];
        float gradient;
        zero_engine *e = open_engine("{\"train_batch_size\": 1}", unit, 0);
        CHECK_INT(zero_engine_fill(e, fill, NULL), ZERO_OK);
        CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
        if (between[i]) between[i](e);
        answers(zero_engine_step(e, NULL), ZERO_E_ORDER,
                "no backward has run in the last micro-step, so it has no gradient");
        answers(zero_engine_get(e, "w0", ZERO_GRAD, &gradient, 0, 1), ZERO_E_ORDER,
                "is complete only between the last backward of a step and zero_engine_step");
        zero_engine_destroy(e);
    }
}

/* A recovered run fills what is frozen. */
static void a_recovery_without_frozen_weights(void) {
    zero_unit *unit;
    char json[700];
    snprintf(json, sizeof json,
             "{\"train_batch_size\": 1, \"nvme\": {\"shadow\": true}, \"zero_optimization\": {\"stage\": 1, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}",
             getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    zero_engine *e = zero_engine_init(json);
    CHECK_INT(zero_engine_add_unit(e, "unit", &unit), ZERO_OK);
    for (int p = 0; p < 2; p++) {
        zero_param param = param_of(p ? "frozen" : "trained", &slot[p]);
        param.flags = p ? ZERO_FROZEN : 0;
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    answers(zero_engine_recover(e, NULL, NULL, NULL), ZERO_E_ARGUMENT,
            "zero_engine_recover: fill is NULL, and parameter \"frozen\" has neither values nor spans");
    zero_engine_destroy(e);
}

static void keep_line(void *user, zero_log_level level, const char *line) {
    if (strncmp(line, "optimizer ", 10) == 0) snprintf(user, 256, "%s", line);
}

static void defaults_are_logged(void) {
    char line[256] = "";
    zero_unit *unit;
    zero_engine *e = NULL;
    zero_param param = param_of("w", &slot[0]);
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = keep_line, .log_user = line};
    CHECK_INT(zero_engine_open("{\"train_batch_size\": 1}", &runtime, &e), ZERO_OK);
    CHECK_INT(zero_engine_add_unit(e, "unit", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    CHECK_CONTAINS(line, "optimizer AdamW (default), lr 0.001 (default), gradient_clipping 1 (default)");
    zero_engine_destroy(e);
}

/* The engine cannot see whether a host overwrites or adds, and whether it meant to leave a backward out. */
static void what_has_no_answer(void) {
    zero_unit *unit[2];
    float w[1];
    for (uint32_t flags = 0; flags <= ZERO_ADDS_GRAD; flags += ZERO_ADDS_GRAD) {
        zero_engine *e =
            open_engine("{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"SGD\", \"params\": "
                        "{\"lr\": 1}}, \"gradient_clipping\": 0}",
                        unit, flags);
        CHECK_INT(zero_engine_fill(e, fill, NULL), ZERO_OK);
        for (int step = 0; step < 3; step++) { /* adds 1 to the gradient, where it may hold the one before */
            CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
            CHECK_INT(zero_backward_begin(unit[1]), ZERO_E_ORDER);
            CHECK_INT(zero_forward_begin(unit[1]), ZERO_OK);
            CHECK_INT(zero_forward_end(unit[1]), ZERO_OK);
            CHECK_INT(zero_backward_begin(unit[1]), ZERO_OK);
            CHECK_INT(slot[1].add, flags != 0);
            for (int i = 0; i < COUNT; i++) ((float *)slot[1].grad)[i] += 1;
            CHECK_INT(zero_backward_end(unit[1]), ZERO_OK);
            CHECK_INT(zero_engine_step(e, NULL), ZERO_OK);
        }
        CHECK_INT(zero_engine_get(e, "w1", ZERO_PARAM, w, 0, 1), ZERO_OK);
        CHECK((flags != 0) == (w[0] + 2 == 0));
        CHECK_INT(zero_engine_get(e, "w0", ZERO_PARAM, w, 0, 1), ZERO_OK); /* no backward, no gradient */
        CHECK_DOUBLE((double)w[0], 1, 0);
        zero_engine_destroy(e);
    }
}

int main(void) {
    opening();
    declaring();
    spans_in_the_same_memory();
    gradients_in_the_same_memory();
    frozen_spans_beside_a_trained_one();
    two_tied_to_one();
    spans_at_stage_3();
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1}", another_model_on_each_rank, NULL);
    ranks_run(2, "{\"train_micro_batch_size_per_gpu\": 1}", another_shape_on_each_rank, NULL);
    using();
    one_micro_step_of_a_use();
    more_units_than_declared();
    a_step_without_a_backward();
    a_recovery_without_frozen_weights();
    defaults_are_logged();
    what_has_no_answer();
    return check_end();
}
