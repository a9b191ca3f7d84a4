/* Passes that are cancelled, and evaluations between a forward and its backward, leave no trace: the weights are those of a training
 * without them, at every stage and depth, with and without recomputation, and with a held unit. And the calls that are refused. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

enum { SEEDS = 60 };

static const struct {
    uint32_t stage;
    const char *zero, *comm;
} places[] = {{0},
              {.stage = 1},
              {.stage = 2},
              {.stage = 3},
              {.stage = 3, .comm = ", \"reshard_after_forward\": false"},
              {.stage = 3, .zero = "\"zero_hpz_partition_size\": 2"}};
enum { PLACES = sizeof places / sizeof *places };

static void one_seed(uint64_t seed) {
    static struct toy_result got, expected;
    struct toy_setup s = toy_setup_default();
    uint64_t place = seed % PLACES;
    s.ranks = 4;
    s.steps = 6;
    s.stage = places[place].stage;
    s.tiers = places[place].zero;
    s.comm = places[place].comm;
    s.depth = (uint32_t)(seed / 2 % 3);
    s.micro_steps = 1 + (uint32_t)(seed / 3 % 3);
    s.mode = seed % 5 % 2 ? "last" : "every";
    s.recompute = (uint32_t)(seed / 5 % 3);
    s.interrupt = seed % 3 != 0;
    s.cancels = seed % 4 ? seed : 0;
    s.free_order = seed % 7 < 4;
    s.bound = (uint32_t)(seed / 7 % 4);
    if (s.bound == 1 && s.recompute) s.bound = 2; /* a forward inside a backward */
    s.hold = (s.recompute == 0) << 1;
    if (seed & 8) s.offload = "cpu";
    toy_train(&s, &got);
    toy_oracle(&s, &expected);
    if (CHECK_STRING(got.error, "") && CHECK_BYTES(got.weights, expected.weights, sizeof got.weights)) return;
    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
}

/* ---- what is refused ---- */

struct host {
    zero_unit *unit;
    zero_slot slot;
};

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 1;
}

static void refused(zero_status status, const char *says) {
    CHECK_INT(status, ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), says);
}

static void forward(struct host *h) {
    CHECK_INT(zero_forward_begin(h->unit), ZERO_OK);
    CHECK_INT(zero_forward_end(h->unit), ZERO_OK);
}

static void declare_as(zero_engine *engine, struct host *h, uint32_t flags) {
    zero_param param = {.struct_size = sizeof param,
                        .name = "w",
                        .dims = 1,
                        .shape = {100},
                        .flags = flags,
                        .slot = &h->slot};
    CHECK_INT(zero_engine_add_unit(engine, "u", &h->unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(h->unit, &param), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
}

static void declare(zero_engine *engine, struct host *h) { declare_as(engine, h, 0); }

static void calls_in_the_wrong_state(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    declare(engine, &h);
    refused(zero_micro_cancel(engine), "no pass is open");
    refused(zero_micro_resume(engine), "no evaluation has interrupted");
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    forward(&h);
    refused(zero_engine_flush(engine), "drop the pass with zero_micro_cancel");
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    forward(&h);
    refused(zero_backward_begin(h.unit), "ZERO_EVAL");
    refused(zero_micro_begin(engine, ZERO_TRAIN), "zero_micro_resume");
    refused(zero_engine_step(engine, NULL), "zero_micro_resume");
    refused(zero_engine_flush(engine), "zero_micro_resume");
    CHECK_INT(zero_micro_resume(engine), ZERO_OK);
    CHECK_INT(zero_backward_begin(h.unit), ZERO_OK);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK); /* inside the backward */
    CHECK(!h.slot.param && !h.slot.grad);
    refused(zero_micro_resume(engine), "no evaluation has interrupted");
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
}

static void a_held_unit(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0}, other = {0};
    zero_param param = {.struct_size = sizeof param, .name = "v", .dims = 1, .shape = {9}, .slot = &h.slot};
    CHECK_INT(zero_engine_add_unit(engine, "v", &h.unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(h.unit, &param), ZERO_OK);
    CHECK_INT(zero_unit_hold(h.unit), ZERO_OK);
    declare(engine, &other);
    refused(zero_unit_hold(h.unit), "before zero_engine_commit");
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    refused(zero_forward_begin(h.unit), "the unit is held");
    CHECK(!h.slot.param);
    CHECK_INT(zero_forward_begin(other.unit), ZERO_OK);
    CHECK(h.slot.param && *(float *)h.slot.param == 1);
    CHECK_INT(zero_forward_end(other.unit), ZERO_OK);
    CHECK(!h.slot.param); /* the pass has made its last use */
}

static void nothing_but_held_units(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    zero_param param = {.struct_size = sizeof param, .name = "v", .dims = 1, .shape = {9}, .slot = &h.slot};
    CHECK_INT(zero_engine_add_unit(engine, "v", &h.unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(h.unit, &param), ZERO_OK);
    CHECK_INT(zero_unit_hold(h.unit), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "all units are held");
}

/* An evaluation is dropped alone; the training pass that it had interrupted can go on, or be dropped too. */
static void an_evaluation_is_cancelled(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    declare(engine, &h);
    for (int drop = 0; drop <= 1; drop++) {
        CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
        forward(&h);
        CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
        CHECK_INT(zero_forward_begin(h.unit), ZERO_OK);
        CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
        CHECK(!h.slot.param);
        CHECK_INT(zero_engine_passes(engine), 1);
        if (drop) CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
        CHECK_INT(zero_engine_passes(engine), !drop);
        if (drop) CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK), forward(&h);
        if (!drop) CHECK_INT(zero_micro_resume(engine), ZERO_OK);
        CHECK_INT(zero_backward_begin(h.unit), ZERO_OK);
        memset(h.slot.grad, 0, 100 * sizeof(float));
        CHECK_INT(zero_backward_end(h.unit), ZERO_OK);
        CHECK_INT(zero_engine_passes(engine), 1);
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
        CHECK_INT(zero_engine_passes(engine), 0);
    }
    CHECK_INT(zero_engine_steps(engine), 2);
}

static void ranks_in_other_passes(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    declare(engine, &h);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    if (rank) forward(&h);
    refused(zero_micro_cancel(engine), "is at another place of its pass than rank 0");
    if (!rank) forward(&h);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
}

/* ---- where nothing is trained, each backward may be left out ---- */

static void evaluates(zero_engine *engine, struct host *h) {
    CHECK_INT(zero_micro_begin(engine, ZERO_EVAL), ZERO_OK);
    forward(h);
}

static void goes_on(zero_engine *engine, struct host *h) {
    evaluates(engine, h);
    CHECK_INT(zero_micro_resume(engine), ZERO_OK);
    CHECK_INT(zero_backward_begin(h->unit), ZERO_OK);
    CHECK(h->slot.param && !h->slot.grad);
    CHECK_INT(zero_backward_end(h->unit), ZERO_OK);
}

static void flushes(zero_engine *engine, struct host *h) {
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    CHECK(!h->slot.param);
}

static void flushes_an_evaluation(zero_engine *engine, struct host *h) {
    evaluates(engine, h);
    flushes(engine, h);
}

static void nothing_is_trained(zero_engine *engine, uint32_t rank, void *user) {
    static void (*const after_forward[])(zero_engine *, struct host *) = {NULL, evaluates, goes_on, flushes,
                                                                          flushes_an_evaluation};
    enum { WAYS = sizeof after_forward / sizeof *after_forward };
    struct host h = {0};
    declare_as(engine, &h, ZERO_FROZEN);
    CHECK_INT(zero_unit_trains(h.unit), 0);
    for (uint32_t way = 0; way < WAYS * WAYS; way++) {
        for (uint32_t micro = 0; micro < 2; micro++) {
            uint32_t then = micro ? way / WAYS : way % WAYS;
            CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
            refused(zero_micro_resume(engine), "no evaluation has interrupted");
            forward(&h);
            if (after_forward[then]) after_forward[then](engine, &h);
        }
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
        refused(zero_micro_resume(engine), "no evaluation has interrupted");
    }
    CHECK_INT(zero_engine_steps(engine), WAYS * WAYS);
}

int main(void) {
    static const char *const stage1 =
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 1}}";
    for (uint64_t seed = 1; seed <= seeds_count(SEEDS); seed++) one_seed(seed);
    ranks_run(2, stage1, calls_in_the_wrong_state, NULL);
    ranks_run(2, stage1, a_held_unit, NULL);
    ranks_run(1, stage1, nothing_but_held_units, NULL);
    ranks_run(2, stage1, an_evaluation_is_cancelled, NULL);
    ranks_run(2, stage1, ranks_in_other_passes, NULL);
    for (int stage = 0; stage <= 3; stage++) {
        char json[200];
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, "
                 "\"zero_optimization\": {\"stage\": %d}}",
                 stage);
        ranks_run(2, json, nothing_is_trained, NULL);
    }
    return check_end();
}
