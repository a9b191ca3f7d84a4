/* Passes in free order, with and without a bound on the units in use at once. Where the declared order can express the program, the
 * bits are those of the declared order. A program that it cannot express, with forwards and backwards that run twice, has the same
 * weights at every stage, for each bound. What a bound saves, and what happens above it. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/api/inside.h"
#include "engine/base/race.h"
#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

static struct toy_result got, first, declared;

static const char *const types[] = {"fp32", "bf16"};

static void describe(const struct toy_setup *s) {
    fprintf(stderr, "stage %u, %u ranks, %u micro-steps, mode %s, memory %d, %s, bound %u, %s %s\n", s->stage,
            s->ranks, s->micro_steps, s->mode, s->memory, types[s->compute], s->bound,
            s->tiers ? s->tiers : "", s->comm ? s->comm : "");
}

static void plan_equals_memory(void) {
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(got.measured[t], got.planned[t]);
}

static void the_declared_order(uint32_t bound) {
    struct toy_setup s = toy_setup_default();
    s.free_order = 1;
    s.steps = 8;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 3; s.ranks++)
            for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++) {
                s.mode = s.ranks == 2 ? "every" : "last";
                s.memory = s.ranks == 3 ? TOY_ADDS : TOY_SLOTS;
                s.compute = s.ranks == 3 ? ZERO_BF16 : ZERO_F32;
                s.kept = s.compute == ZERO_BF16 ? 0x5 : 0;
                s.offload = s.micro_steps == 2 ? "cpu" : "none";
                s.evaluate = s.ranks == 1;
                s.recompute = s.stage % 3;
                s.bound = bound == 1 && s.recompute ? 2 : bound;
                if (s.stage < 3 && s.ranks == 2) s.memory = TOY_SPANS_ADD;
                toy_train(&s, &got);
                toy_oracle(&s, &declared);
                plan_equals_memory();
                if (!(CHECK_STRING(got.error, "") &
                      CHECK_BYTES(got.weights, declared.weights, sizeof got.weights)))
                    describe(&s);
            }
}

/* Twice the gradient has twice the norm, and is clipped to the same. */
static void near_the_declared_order(struct toy_setup s) {
    s.free_order = s.twice = 0, s.bound = 0;
    toy_train(&s, &declared);
    CHECK_DOUBLE(first.norm[0], 2 * declared.norm[0], 1e-5);
    CHECK_DOUBLE(first.loss[s.steps - 1], declared.loss[s.steps - 1], 1e-4);
}

static void every_stage_has_the_same_weights(uint32_t bound) {
    struct toy_setup s = toy_setup_default();
    s.free_order = s.twice = 1;
    s.bound = bound;
    s.steps = 8;
    s.clip = 0.001;
    for (s.micro_steps = 1; s.micro_steps <= 2; s.micro_steps++)
        for (s.stage = 0; s.stage <= 3; s.stage++) {
            s.mode = bound % 2 ? "every" : "last";
            toy_train(&s, &got);
            if (!s.stage) first = got;
            if (!s.stage) near_the_declared_order(s);
            plan_equals_memory();
            if (!(CHECK_STRING(got.error, "") & CHECK_STRING(got.hash, first.hash))) describe(&s);
        }
}

/* In bf16 a gradient that is reduced in two parts is rounded twice. */
static void every_stage_has_the_same_weights_in_bf16(void) {
    struct toy_setup s = toy_setup_default();
    s.free_order = s.twice = 1, s.hold = 1 << 1;
    s.bound = 1;
    s.steps = 8;
    s.compute = ZERO_BF16;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        toy_train(&s, &got);
        if (!s.stage) first = got;
        if (!(CHECK_STRING(got.error, "") & CHECK_STRING(got.hash, first.hash))) describe(&s);
    }
    s.stage = 3, s.bound = 0; /* the two parts are added up before they are reduced */
    toy_train(&s, &got);
    CHECK_DOUBLE(first.norm[0], got.norm[0], 0.01);
    CHECK_DOUBLE(first.loss[s.steps - 1], got.loss[s.steps - 1], 0.01);
}

/* Wherever parameters and states rest, and on every mesh. */
static void tiers_and_meshes(void) {
    static const struct {
        const char *tiers, *comm;
        uint32_t shard_ranks;
    } rows[] = {{"\"offload_param\": {\"device\": \"cpu\"}", NULL, 0},
                {"\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, \"offload_optimizer\": "
                 "{\"device\": "
                 "\"nvme\", \"nvme_path\": \"%s\"}",
                 NULL, 0},
                {"\"mics_shard_size\": 2", NULL, 2},
                {"\"zero_hpz_partition_size\": 2", NULL, 0},
                {"\"stage3_max_live_parameters\": 100", ", \"reshard_after_forward\": false", 0}};
    const char *dir = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char text[1024];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t bound = 1; bound <= 3; bound++) {
            struct toy_setup s = toy_setup_default();
            snprintf(text, sizeof text, rows[i].tiers, dir, dir);
            s.free_order = 1, s.bound = bound, s.stage = 3, s.ranks = 4, s.steps = 6;
            s.tiers = text, s.comm = rows[i].comm, s.shard_ranks = rows[i].shard_ranks;
            s.hold = (bound == 1) << 1, s.recompute = bound > 1, s.skip_unit = bound == 3 ? 2 : -1,
            s.evaluate = 1;
            s.micro_steps = 1 + bound % 2, s.compute = bound == 2 ? ZERO_BF16 : ZERO_F32;
            toy_train(&s, &got);
            toy_oracle(&s, &declared);
            plan_equals_memory();
            if (!(CHECK_STRING(got.error, "") &
                  CHECK_BYTES(got.weights, declared.weights, sizeof got.weights)))
                describe(&s);
        }
}

/* ---- what a bound saves, and what happens above it ---- */

enum { UNITS = 8, MIB = 1 << 20 };

/* Unit i has 1 + i MiB, in fp32. */
struct host {
    zero_engine *engine;
    zero_unit *unit[UNITS];
    zero_slot slot[UNITS];
    zero_plan plan;
};

static float value(uint64_t element) { return 1 + element % 977; }

static void values(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = value(first + i);
}

RACE_UNWATCHED static void check_values(const float *param, uint64_t count) {
    race_read(param, count * sizeof *param);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) wrong += param[i] != value(i);
    CHECK_INT(wrong, 0);
}

static void declare(struct host *h, zero_engine *engine, uint32_t bound) {
    static const char *const names[UNITS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    h->engine = engine;
    h->plan.struct_size = sizeof h->plan;
    for (uint64_t i = 0; i < UNITS; i++) {
        zero_param param = {.struct_size = sizeof param,
                            .name = names[i],
                            .dims = 1,
                            .shape = {(1 + i) * MIB / 4},
                            .slot = &h->slot[i]};
        CHECK_INT(zero_engine_add_unit(engine, names[i], &h->unit[i]), ZERO_OK);
        CHECK_INT(zero_unit_add_param(h->unit[i], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_free_order_within(engine, bound), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, &h->plan), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, values, NULL), ZERO_OK);
}

/* The memory of all parameters and gradients that the system holds, by their addresses. */
static uint64_t resident(const struct host *h) {
    static _Thread_local unsigned char pages[UNITS * MIB / 4096];
    uint64_t count = 0;
    for (uint64_t i = 0; i < UNITS; i++) {
        zero_slot at;
        CHECK_INT(zero_param_addresses(zero_unit_param(h->unit[i], 0), &at), ZERO_OK);
        for (int k = 0; k < 2; k++) {
            CHECK_INT(mincore(k ? at.grad : (void *)(uintptr_t)at.param, (1 + i) * MIB, pages), 0);
            for (uint64_t p = 0; p < (1 + i) * MIB / 4096; p++) count += pages[p] & 1;
        }
    }
    return count * 4096;
}

static void use(struct host *h, int unit, int backward) {
    CHECK_INT(backward ? zero_backward_begin(h->unit[unit]) : zero_forward_begin(h->unit[unit]), ZERO_OK);
    check_values(h->slot[unit].param, (1 + (uint64_t)unit) * MIB / 4);
    if (backward) memset(h->slot[unit].grad, 0, (1 + (size_t)unit) * MIB);
    CHECK(resident(h) <= h->plan.gathered_bytes);
    CHECK_INT(backward ? zero_backward_end(h->unit[unit]) : zero_forward_end(h->unit[unit]), ZERO_OK);
}

static void plan_equals_rows(const struct host *h) {
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(h->engine, i, &row) == ZERO_OK; i++)
        CHECK_INT(row.measured, row.planned);
}

/* Every unit is used in an order that changes. Between the steps nothing is gathered. */
static void two_steps(struct host *h) {
    for (int step = 0; step < 2; step++) {
        CHECK_INT(zero_micro_begin(h->engine, ZERO_TRAIN), ZERO_OK);
        for (int i = 0; i < UNITS; i++) use(h, i, 0);
        for (int i = 0; i < UNITS; i++) use(h, (5 * i + 3) % UNITS, 0);
        for (int i = UNITS; i-- > 0;) use(h, i, 1);
        CHECK_INT(zero_engine_step(h->engine, NULL), ZERO_OK);
        CHECK_INT(zero_engine_flush(h->engine), ZERO_OK);
        CHECK_INT(resident(h), 0);
    }
    plan_equals_rows(h);
}

/* The largest units have 8, 7, 6, ... MiB; all have 36. Whole gradients have as much: without a bound they are gradients that are
 * kept. */
static void room(zero_engine *engine, uint32_t rank, void *user) {
    static const uint64_t mib[UNITS + 2] = {36,     2 * 8,  2 * 15, 2 * 21, 2 * 26,
                                            2 * 30, 2 * 33, 2 * 35, 2 * 36, 2 * 36};
    uint32_t bound = *(uint32_t *)user;
    struct host h = {0};
    declare(&h, engine, bound);
    CHECK_INT(h.plan.gathered_bytes, mib[bound] * MIB);
    CHECK_INT(h.plan.grad_bytes, (bound ? 0 : 36 * MIB) + 36 * MIB / 2);
    plan_equals_rows(&h);
    if (bound) two_steps(&h);
}

/* A large unit comes in several chunks, and takes its memory once. */
static void room_from_a_drive(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    declare(&h, engine, 2);
    CHECK_INT(h.plan.gathered_bytes, 2 * 15 * MIB);
    two_steps(&h);
}

static void refused(zero_status status, const char *says) {
    CHECK_INT(status, ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), says);
}

static void above_the_bound(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    declare(&h, engine, 2);
    refused(zero_engine_free_order_within(engine, 3), "before zero_engine_commit");
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(h.unit[0]), ZERO_OK);
    CHECK_INT(zero_forward_begin(h.unit[1]), ZERO_OK);
    CHECK_INT(zero_forward_begin(h.unit[0]), ZERO_OK); /* again: it is in use already */
    refused(zero_forward_begin(h.unit[2]), "zero_forward_begin of \"c\": 2 units are in use, \"a\", \"b\", "
                                           "and zero_engine_free_order_within allows 2 "
                                           "at once: end one first, or allow at least 3");
    check_values(h.slot[0].param, MIB / 4); /* nothing is lost */
    CHECK_INT(zero_forward_end(h.unit[0]), ZERO_OK);
    CHECK_INT(zero_forward_end(h.unit[1]), ZERO_OK);
    CHECK_INT(zero_forward_begin(h.unit[2]), ZERO_OK);
    refused(zero_forward_begin(h.unit[3]), "2 units are in use, \"c\", \"a\"");
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK(!h.slot[0].param && !h.slot[2].param);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    use(&h, 3, 0), use(&h, 3, 1);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

/* A GPU without address space in parts keeps all units: only its operations are those of the bound. So does one whose pages would take
 * more than all units: 2 * 40 MiB for a bound of 8. */
static const struct paged {
    uint32_t page_bytes, bound, mib;
    bool roomy;
} paged[] = {{DEVICE_PAGE_BYTES, 2, 2 * 15, false},
             {DEVICE_PAGE_BYTES, UNITS, 2 * 36, false},
             {DEVICE_PART_BYTES, 2, 2 * 20, false},
             {DEVICE_PART_BYTES, UNITS, 2 * 36, true},
             {0, 2, 2 * 36, true}};

static void room_of_a_device(zero_engine *engine, uint32_t rank, void *user) {
    const struct paged *p = user;
    struct host h = {0};
    engine_running(engine)->device->page_bytes = p->page_bytes;
    declare(&h, engine, p->bound);
    CHECK_INT(h.plan.gathered_bytes, p->mib * MIB);
    CHECK_INT(engine_blueprint(engine)->policy.roomy, p->roomy);
    CHECK_INT(!engine_blueprint(engine)->plan.space_bytes, p->roomy);
    plan_equals_rows(&h);
}

/* ---- a backward inside another one ---- */

enum { COUNT = 64 };

/* Two units, "w" and "tied" to it, of which the backward of `inner` begins inside that of "w". In spans the first has arrays 0, and the
 * second those of `array`. */
static const struct nest {
    uint32_t inner, array;
    bool spans, adds, refused;
    uint32_t bound;
} nests[] = {
    {.inner = 0, .spans = false},
    {.inner = 0, .spans = false, .bound = 1},
    {.inner = 1, .spans = false, .bound = 2},
    {.inner = 0, .spans = true, .adds = true},
    {.inner = 0, .spans = true, .adds = true, .bound = 1},
    {.inner = 1, .spans = true, .adds = true},
    {.inner = 1, .spans = true, .array = 1},
    {.inner = 0, .spans = true, .refused = true},
    {.inner = 0, .spans = true, .array = 1, .refused = true, .bound = 1},
    {.inner = 1, .spans = true, .refused = true},
};

struct nested {
    const struct nest *nest;
    zero_unit *unit[2];
    zero_slot slot[2];
    float param[2][COUNT], grad[2][COUNT];
};

static void declare_nested(struct nested *n, zero_engine *engine) {
    for (uint32_t u = 0; u < 2; u++) {
        uint32_t array = u ? n->nest->array : 0;
        const zero_span span = {n->param[array], n->grad[array], COUNT};
        zero_param param = {
            .struct_size = sizeof param, .name = u ? "tied" : "w", .dims = 1, .shape = {COUNT}};
        if (u) param.tied_to = "w";
        if (!u && n->nest->adds) param.flags = ZERO_ADDS_GRAD;
        if (n->nest->spans) param.spans = &span, param.span_count = 1;
        if (!n->nest->spans) param.slot = &n->slot[u];
        CHECK_INT(zero_engine_add_unit(engine, param.name, &n->unit[u]), ZERO_OK);
        CHECK_INT(zero_unit_add_param(n->unit[u], &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_free_order_within(engine, n->nest->bound), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, values, NULL), ZERO_OK);
}

static void write_gradient(struct nested *n, uint32_t unit, float value_of_it) {
    bool spans = n->nest->spans, add = spans ? n->nest->adds : n->slot[unit].add;
    float *grad = spans ? n->grad[unit ? n->nest->array : 0] : n->slot[unit].grad;
    for (int i = 0; i < COUNT; i++) grad[i] = (add ? grad[i] : 0) + value_of_it;
}

/* Both gradients add up: 1 of the outer backward, 10 of the inner one, 100 of one after them. */
static void backward_inside(zero_engine *engine, uint32_t rank, void *user) {
    struct nested n = {.nest = user};
    uint32_t inner = n.nest->inner;
    float gradient[COUNT];
    declare_nested(&n, engine);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_INT(zero_forward_begin(n.unit[i ? inner : 0]), ZERO_OK);
        CHECK_INT(zero_forward_end(n.unit[i ? inner : 0]), ZERO_OK);
    }
    CHECK_INT(zero_backward_begin(n.unit[0]), ZERO_OK);
    write_gradient(&n, 0, 1);
    CHECK_INT(zero_forward_begin(n.unit[0]), ZERO_OK); /* a forward takes no gradient */
    CHECK_INT(zero_forward_end(n.unit[0]), ZERO_OK);
    if (n.nest->refused) {
        refused(zero_backward_begin(n.unit[inner]), "zero_backward_begin of \"");
        CHECK_CONTAINS(zero_last_error(), "the backward of \"w\" is open");
    } else {
        CHECK_INT(zero_backward_begin(n.unit[inner]), ZERO_OK);
        write_gradient(&n, inner, 10);
        CHECK_INT(zero_backward_end(n.unit[inner]), ZERO_OK);
    }
    CHECK_INT(zero_backward_end(n.unit[0]), ZERO_OK);
    CHECK_INT(zero_backward_begin(n.unit[inner]), ZERO_OK);
    write_gradient(&n, inner, 100);
    CHECK_INT(zero_backward_end(n.unit[inner]), ZERO_OK);
    CHECK_INT(zero_engine_get(engine, "w", ZERO_GRAD, gradient, 0, COUNT), ZERO_OK);
    for (int i = 0; i < COUNT; i++)
        if (!CHECK_DOUBLE((double)gradient[i], n.nest->refused ? 101 : 111, 0)) return;
}

static void backwards_inside_others(void) {
    char json[200];
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++)
        for (uint32_t stage = 0; stage < 3; stage++) {
            snprintf(json, sizeof json,
                     "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": "
                     "{\"stage\": %u}}",
                     stage);
            ranks_run(1 + stage % 2, json, backward_inside, (void *)(uintptr_t)&nests[i]);
        }
}

int main(void) {
    static const char *const config =
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": "
        "{\"stage\": 3, \"stage3_param_persistence_threshold\": 0}}";
    const char *dir = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char on_drive[1024];
    snprintf(on_drive, sizeof on_drive,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": "
             "{\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
             "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}",
             dir, dir);
    for (uint32_t bound = 0; bound <= 3; bound++) the_declared_order(bound);
    for (uint32_t bound = 0; bound <= 3; bound++) every_stage_has_the_same_weights(bound);
    every_stage_has_the_same_weights_in_bf16();
    tiers_and_meshes();
    for (uint32_t bound = 0; bound <= UNITS + 1; bound += 1 + 2 * bound) ranks_run(2, config, room, &bound);
    for (int ranks = 1; ranks <= 2; ranks++) ranks_run((uint32_t)ranks, config, above_the_bound, NULL);
    for (int ranks = 1; ranks <= 2; ranks++) ranks_run((uint32_t)ranks, on_drive, room_from_a_drive, NULL);
    for (size_t i = 0; i < sizeof paged / sizeof *paged; i++)
        ranks_run_discrete(2, config, room_of_a_device, (void *)(uintptr_t)&paged[i]);
    backwards_inside_others();
    return check_end();
}
