/* Calls out of order and wrong arguments: each is refused with the right status and a sentence that names
 * what is meant, and changes nothing: a run disturbed by all of them ends with the weights of an undisturbed
 * one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

enum { MICRO_STEPS = 2, STEPS = 2 };
static const struct plain_param params[] = {{"first", "first.w", 500, 0, NULL},
                                            {"second", "second.w", 300, 0, NULL},
                                            {"second", "second.f", 30, ZERO_FROZEN, NULL},
                                            {"third", "third.w", 500, 0, "first.w"}};
enum { PARAMS = sizeof params / sizeof *params };

struct run {
    int disturbed, done;
    char hash[33];
};

static void refused(zero_status got, zero_status expected, const char *part1, const char *part2, int line) {
    int good = CHECK_INT(got, expected);
    good &= CHECK_CONTAINS(zero_last_error(), part1);
    if (part2) good &= CHECK_CONTAINS(zero_last_error(), part2);
    if (!good) fprintf(stderr, "from line %d\n", line);
}

#define ORDER(call, part1, part2) refused(call, ZERO_E_ORDER, part1, part2, __LINE__)
#define ARGUMENT(call, part1, part2) refused(call, ZERO_E_ARGUMENT, part1, part2, __LINE__)

/* ---- wrong in every state ---- */

static void wrong_arguments(struct plain *p) {
    zero_engine *e = p->engine;
    float x[600] = {0};
    double sums[65] = {0};
    ARGUMENT(zero_engine_get(e, "no such", ZERO_PARAM, x, 0, 1), "no such", NULL);
    ARGUMENT(zero_engine_get(e, NULL, ZERO_PARAM, x, 0, 1), "NULL", NULL);
    ARGUMENT(zero_engine_get(e, "first.w", ZERO_PARAM, x, 0, 501), "first.w", "500");
    ARGUMENT(zero_engine_get(e, "first.w", ZERO_PARAM, x, 501, 0), "first.w", "500");
    ARGUMENT(zero_engine_get(e, "first.w", ZERO_PARAM, x, 1, UINT64_MAX), "first.w", "500");
    ARGUMENT(zero_engine_get(e, "first.w", (zero_kind)4, x, 0, 1), "first.w", NULL);
    ARGUMENT(zero_engine_get(e, "first.w", (zero_kind)-1, x, 0, 1), "first.w", NULL);
    ARGUMENT(zero_engine_get(e, "second.f", ZERO_STATE0, x, 0, 1), "second.f", NULL);
    ARGUMENT(zero_engine_get(e, "second.f", ZERO_GRAD, x, 0, 1), "second.f", "frozen");
    ARGUMENT(zero_engine_get(e, "first.w", ZERO_PARAM, NULL, 0, 1), "first.w", "NULL");
    ARGUMENT(zero_engine_put(e, "first.w", ZERO_PARAM, NULL, 0, 1), "first.w", "NULL");
    ARGUMENT(zero_engine_put(e, "first.w", ZERO_PARAM, x, 500, 1), "first.w", "500");
    ARGUMENT(zero_engine_set_lr(e, 0, NAN), "nan", NULL);
    ARGUMENT(zero_engine_set_lr(e, 0, -1), "-1", NULL);
    ARGUMENT(zero_engine_set_lr(e, 0, INFINITY), "inf", NULL);
    ARGUMENT(zero_engine_set_lr(e, 1, 0.1), "group 1", NULL);
    ARGUMENT(zero_engine_sum(e, sums, 65), "65", "64");
    ARGUMENT(zero_engine_sum(e, NULL, 1), "NULL", NULL);
    ARGUMENT(zero_engine_broadcast(e, NULL, 1), "NULL", NULL);
    ARGUMENT(zero_engine_broadcast_from(e, 99, sums, 1), "no rank 99", NULL);
    ARGUMENT(zero_engine_set_params(e, 0, NULL), "NULL", NULL);
    zero_optimizer_params numbers = {.struct_size = sizeof numbers, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.9};
    ARGUMENT(zero_engine_set_params(e, 7, &numbers), "group 7", NULL);
    ARGUMENT(zero_engine_params(e, 7, &numbers), "group 7", NULL);
    ARGUMENT(zero_engine_params(e, 0, NULL), "NULL", NULL);
    numbers.eps = -1;
    ARGUMENT(zero_engine_set_params(e, 0, &numbers), "eps -1", NULL);
    ARGUMENT(zero_engine_hash(e, NULL), "NULL", NULL);
    zero_memory_row row = {.struct_size = sizeof row};
    ARGUMENT(zero_engine_memory(e, 1000, &row), "past the last", NULL);
}

static void wrong_when_committed(struct plain *p) {
    zero_unit *unit = NULL;
    zero_slot slot;
    zero_param param = {.struct_size = sizeof param, .name = "late", .dims = 1, .shape = {1}, .slot = &slot};
    ORDER(zero_engine_add_unit(p->engine, "late", &unit), "zero_engine_add_unit", "committed");
    ORDER(zero_unit_add_param(p->unit[2], &param), "zero_unit_add_param", "committed");
    ORDER(zero_engine_reserve(p->engine, ZERO_CPU, 1, "late"), "zero_engine_reserve", "committed");
    ORDER(zero_engine_commit(p->engine, NULL), "zero_engine_commit", "committed");
}

static void nothing_is_in_use(struct plain *p) {
    for (uint32_t u = 0; u < 3; u++) {
        ORDER(zero_forward_end(p->unit[u]), "zero_forward_end", params[u == 2 ? 3 : u].unit);
        ORDER(zero_backward_end(p->unit[u]), "zero_backward_end", params[u == 2 ? 3 : u].unit);
    }
}

static void no_pass_is_open(struct plain *p) {
    ORDER(zero_forward_begin(p->unit[0]), "first", "zero_micro_begin");
    ORDER(zero_backward_begin(p->unit[2]), "third", "zero_micro_begin");
    nothing_is_in_use(p);
    wrong_when_committed(p);
}

static void between_micro_steps(struct plain *p) {
    float x = 0;
    char hash[33];
    ORDER(zero_engine_fill(p->engine, toy_fill, NULL), "zero_engine_fill", "between steps");
    CHECK_INT(zero_engine_hash(p->engine, hash), ZERO_OK);
    CHECK_INT(zero_engine_get(p->engine, "first.w", ZERO_PARAM, &x, 0, 1), ZERO_OK);
    CHECK_INT(zero_engine_put(p->engine, "first.w", ZERO_PARAM, &x, 0, 1), ZERO_OK);
    ORDER(zero_engine_step(p->engine, NULL), "1 of 2", NULL);
    ORDER(zero_engine_get(p->engine, "first.w", ZERO_GRAD, &x, 0, 1), "first.w", "complete only");
}

static void a_unit_is_in_use(struct plain *p, const char *unit, const char *pass) {
    float x = 0;
    char hash[33];
    double sum = 0;
    ORDER(zero_micro_begin(p->engine, ZERO_TRAIN), "zero_micro_begin", unit);
    ORDER(zero_micro_begin(p->engine, ZERO_EVAL), "zero_micro_begin", unit);
    for (uint32_t u = 0; u < 3; u++) {
        ORDER(zero_forward_begin(p->unit[u]), unit, "end it first");
        ORDER(zero_backward_begin(p->unit[u]), unit, pass);
    }
    ORDER(zero_engine_step(p->engine, NULL), "zero_engine_step", unit);
    ORDER(zero_engine_flush(p->engine), "zero_engine_flush", NULL);
    ORDER(zero_engine_hash(p->engine, hash), "zero_engine_hash", unit);
    ORDER(zero_engine_sum(p->engine, &sum, 1), "zero_engine_sum", unit);
    ORDER(zero_engine_fill(p->engine, toy_fill, NULL), "zero_engine_fill", unit);
    ORDER(zero_engine_get(p->engine, "first.w", ZERO_PARAM, &x, 0, 1), "zero_engine_get", unit);
    ORDER(zero_engine_put(p->engine, "first.w", ZERO_PARAM, &x, 0, 1), "zero_engine_put", unit);
    wrong_when_committed(p);
}

/* ---- a run, with and without them ---- */

/* Runs one pass, and tries every wrong call in every state. */
static zero_status disturbed_pass(struct plain *p, uint32_t micro) {
    no_pass_is_open(p);
    wrong_arguments(p);
    zero_status status = zero_micro_begin(p->engine, ZERO_TRAIN);
    ARGUMENT(zero_micro_begin(p->engine, (zero_mode)7), "mode 7", NULL);
    nothing_is_in_use(p);
    for (uint32_t u = 0; u < 3 && !status; u++) {
        const char *unit = params[u == 2 ? 3 : u].unit;
        status = zero_forward_begin(p->unit[u]);
        a_unit_is_in_use(p, unit, "forward");
        ORDER(zero_backward_end(p->unit[u]), "zero_backward_end", unit);
        ORDER(zero_forward_end(p->unit[(u + 1) % 3]), "zero_forward_end", NULL);
        if (!status) status = zero_forward_end(p->unit[u]);
        ORDER(zero_forward_end(p->unit[u]), "zero_forward_end", unit);
        if (u < 2) ORDER(zero_forward_begin(p->unit[u]), unit, "its turn in this pass is over");
    }
    CHECK_INT(plain_forward(p, 2), ZERO_OK); /* recomputed, right before its backward */
    for (uint32_t u = 3; u-- > 0 && !status;) {
        const char *unit = params[u == 2 ? 3 : u].unit;
        status = plain_backward(p, u, micro);
        ORDER(zero_backward_begin(p->unit[u]), unit, "its turn in this pass is over");
        ORDER(zero_backward_end(p->unit[u]), unit, "zero_backward_end");
        ORDER(zero_forward_begin(p->unit[u]), unit, "its turn in this pass is over");
        if (u == 2) ORDER(zero_forward_begin(p->unit[0]), "first", "zero_engine_add_segment");
        if (u != 1 || status) continue;
        CHECK_INT(plain_forward(p, 0), ZERO_OK); /* recomputed: nothing of the run changes */
    }
    return status;
}

static zero_status disturbed_step(struct plain *p) {
    float x = 0;
    char hash[33];
    zero_step_info info = {.struct_size = sizeof info};
    ORDER(zero_engine_step(p->engine, NULL), "0 of 2", NULL);
    zero_status status = disturbed_pass(p, 0);
    between_micro_steps(p);
    if (!status) status = zero_micro_begin(p->engine, ZERO_EVAL);
    ORDER(zero_backward_begin(p->unit[2]), "third", "ZERO_EVAL");
    if (!status) status = plain_forward(p, 1);
    if (!status) status = plain_pass(p, ZERO_TRAIN, 1);
    ORDER(zero_micro_begin(p->engine, ZERO_TRAIN), "2 micro-steps", "zero_engine_step");
    CHECK_INT(zero_engine_hash(p->engine, hash), ZERO_OK);
    ARGUMENT(zero_engine_put(p->engine, "first.w", ZERO_GRAD, &x, 0, 1), "backward", NULL);
    return status ? status : zero_engine_step(p->engine, &info);
}

static void before_commit(struct plain *p) {
    zero_engine *e = p->engine;
    float x = 0;
    double sum = 0;
    char hash[33];
    ORDER(zero_micro_begin(e, ZERO_TRAIN), "zero_engine_commit", NULL);
    ORDER(zero_forward_begin(p->unit[0]), "first", NULL);
    ORDER(zero_backward_begin(p->unit[0]), "first", NULL);
    nothing_is_in_use(p);
    ORDER(zero_engine_step(e, NULL), "zero_engine_step", "call zero_engine_commit first");
    ORDER(zero_engine_flush(e), "zero_engine_flush", "commit");
    ORDER(zero_engine_fill(e, toy_fill, NULL), "zero_engine_fill", "commit");
    ORDER(zero_engine_hash(e, hash), "zero_engine_hash", "commit");
    CHECK_INT(zero_engine_sum(e, &sum, 1), ZERO_OK);
    ORDER(zero_engine_get(e, "first.w", ZERO_PARAM, &x, 0, 1), "zero_engine_get", "commit");
    ORDER(zero_engine_put(e, "first.w", ZERO_PARAM, &x, 0, 1), "zero_engine_put", "commit");
}

static void wrong_declarations(struct plain *p) {
    zero_engine *e = p->engine;
    zero_unit *unit = NULL;
    zero_slot slot;
    ARGUMENT(zero_engine_add_unit(e, "second", &unit), "\"second\"", "own name");
    ARGUMENT(zero_engine_add_unit(e, "", &unit), "name", NULL);
    ARGUMENT(zero_engine_add_unit(e, NULL, &unit), "name", NULL);
    ARGUMENT(zero_engine_add_unit(e, "new", NULL), "new", "NULL");
    CHECK(!unit);
    ARGUMENT(zero_engine_reserve(e, (zero_tier)3, 1, "x"), "tier 3", NULL);
    ARGUMENT(zero_engine_reserve(e, (zero_tier)-1, 1, "x"), "tier -1", NULL);
    ARGUMENT(zero_engine_reserve(e, ZERO_CPU, 1, NULL), "NULL", NULL);

    const zero_param good = {
        .struct_size = sizeof good, .name = "new", .dims = 1, .shape = {10}, .slot = &slot};
    zero_param bad = good;
    ORDER(zero_unit_add_param(p->unit[0], &good), "\"new\"", "\"first\"");
    ARGUMENT(zero_unit_add_param(p->unit[2], NULL), "NULL", NULL);
    bad.name = "first.w";
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "first.w", "own name");
    bad.name = NULL;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "name", NULL);
    bad = good, bad.dims = 0;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "0 dimensions");
    bad.dims = 9;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "9 dimensions");
    bad = good, bad.dims = 2;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "dimension 1 is 0");
    bad.shape[0] = bad.shape[1] = UINT64_C(1) << 33;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "too large");
    bad = good, bad.tied_to = "unknown";
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "unknown");
    bad.tied_to = "third.w"; /* of this unit */
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "third.w");
    bad.tied_to = "second.w"; /* of another size */
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "300");
    bad = good, bad.slot = NULL;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "slot");
    bad = good, bad.flags = 64;
    ARGUMENT(zero_unit_add_param(p->unit[2], &bad), "\"new\"", "64");
}

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine)) return;
    zero_status status = plain_declare(&p, engine, params, PARAMS);
    if (run->disturbed) before_commit(&p), wrong_declarations(&p);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (run->disturbed) {
        ORDER(zero_micro_begin(engine, ZERO_TRAIN), "zero_engine_fill", NULL);
        ARGUMENT(zero_engine_fill(engine, NULL, NULL), "neither values nor spans", NULL);
    }
    if (!status) status = zero_engine_fill(engine, toy_fill, NULL);
    for (int step = 0; step < STEPS && !status; step++)
        status = run->disturbed ? disturbed_step(&p) : plain_step(&p, MICRO_STEPS, NULL);
    char hash[33] = "";
    if (!status) status = zero_engine_hash(engine, hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    if (rank == 0) strcpy(run->hash, hash);
}

static void disturbed_and_not(void) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = MICRO_STEPS;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 2; s.ranks++) {
            struct run plain = {0}, disturbed = {.disturbed = 1};
            char json[2048];
            toy_config(&s, json, sizeof json);
            ranks_run(s.ranks, json, run_rank, &plain);
            ranks_run(s.ranks, json, run_rank, &disturbed);
            if (!CHECK_STRING(disturbed.hash, plain.hash))
                fprintf(stderr, "in stage %u on %u ranks\n", s.stage, s.ranks);
        }
}

/* ---- opening ---- */

static void wrong_openings(void) {
    static const struct {
        const char *json, *says;
    } cases[] = {{NULL, "NULL"},
                 {"", "zero"},
                 {"/no/such/file.json", "/no/such/file.json"},
                 {"{", "1"},
                 {"{\"zero_optimization\": {\"stage\": 4}}", "zero_optimization.stage"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(!zero_engine_init(cases[i].json));
        if (!CHECK(zero_last_error()[0])) fprintf(stderr, "in case %zu\n", i);
        if (i != 1) CHECK_CONTAINS(zero_last_error(), cases[i].says);
    }
    CHECK(!zero_local_create(0));
    CHECK_CONTAINS(zero_last_error(), "0 ranks");
    zero_local *local = zero_local_create(2);
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = local, .local_rank = 2};
    CHECK(!zero_engine_init_with("{\"train_batch_size\": 2}", &runtime));
    CHECK_CONTAINS(zero_last_error(), "local_rank is 2");
    zero_local_destroy(local);
    zero_local_destroy(NULL);
    zero_engine_destroy(NULL);
}

static void empty_models(void) {
    char json[2048];
    struct toy_setup s = toy_setup_default();
    toy_config(&s, json, sizeof json);
    for (int with_unit = 0; with_unit < 2; with_unit++) {
        zero_unit *unit;
        zero_engine *engine = zero_engine_init(json);
        if (!CHECK(engine)) return;
        if (with_unit) CHECK_INT(zero_engine_add_unit(engine, "bare", &unit), ZERO_OK);
        ARGUMENT(zero_engine_commit(engine, NULL), with_unit ? "bare" : "no units", NULL);
        /* A failed commit is sticky. */
        ARGUMENT(zero_engine_commit(engine, NULL), with_unit ? "bare" : "no units", NULL);
        ARGUMENT(zero_engine_flush(engine), with_unit ? "bare" : "no units", NULL);
        zero_engine_destroy(engine);
    }
}

int main(void) {
    disturbed_and_not();
    wrong_openings();
    empty_models();
    return check_end();
}
