/* Vertical order: a use has all micro-batches of a step. Weights, losses and norms are those of micro-steps in passes of their own, at
 * every stage, in each mode, wherever the host keeps parameters and gradients. A step gathers each unit once for its forward and once
 * for its backward, whatever the number of micro-steps, and reads as much from the drive as is planned. With tied parameters, whose sums
 * have an order of their own, weights are the same at every stage and on every tier. Wrong calls are refused in a sentence and change
 * nothing. Held units and free order are refused. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define ALL_NVME "\"offload_optimizer\": " NVME ", \"offload_param\": " NVME
#define GRADS_TOO ", \"offload_gradients\": {\"device\": \"nvme\"}"

static struct toy_result flat, upright;

/* Trains in both orders. */
static int same(struct toy_setup s) {
    s.untied = 1;
    toy_train(&s, &flat);
    s.vertical = 1;
    toy_train(&s, &upright);
    int same = CHECK_STRING(upright.error, "") && CHECK_STRING(flat.error, "") &&
               CHECK_STRING(upright.hash, flat.hash) && CHECK_INT(upright.skipped, flat.skipped);
    for (uint32_t i = 0; i < s.steps && same; i++)
        same =
            CHECK_DOUBLE(upright.loss[i], flat.loss[i], 0) & CHECK_DOUBLE(upright.norm[i], flat.norm[i], 0);
    for (int t = 0; t < ZERO_TIERS && same; t++) same = CHECK_INT(upright.measured[t], upright.planned[t]);
    if (!same)
        fprintf(stderr, "in stage %u, %u ranks, %u micro-steps, %s, memory %d, type %d, %s\n", s.stage,
                s.ranks, s.micro_steps, s.mode, s.memory, s.compute, s.tiers ? s.tiers : s.offload);
    return same;
}

/* ---- equal ---- */

static void memories(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 3;
    for (s.memory = TOY_SLOTS; s.memory < TOY_MEMORIES; s.memory++)
        for (s.stage = 0; s.stage <= 3; s.stage++)
            for (int every = 0; every < 2; every++) {
                int spans = s.memory == TOY_SPANS || s.memory == TOY_SPANS_ADD;
                s.mode = every ? "every" : "last";
                s.micro_steps = 2 + s.stage % 2, s.depth = (uint32_t)(s.memory + every) % 3;
                if (s.stage < 3 || !spans) same(s);
            }
}

/* An overflow in the first of a step's micro-batches; evaluations; one more micro-step than ranks. */
static void others(void) {
    struct toy_setup s = toy_setup_default();
    s.steps = 4, s.micro_steps = 4, s.ranks = 3, s.nan_step = 1, s.evaluate = 1;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.compute = s.stage % 2 ? ZERO_BF16 : ZERO_F16, s.scale_power = 6;
        same(s);
    }
}

/* ---- traffic ---- */

/* At stage 3 every unit but the last is gathered twice in a pass, and the last once: its backward follows its forward. */
static void traffic(void) {
    struct toy_setup s = toy_setup_default();
    s.stage = 3, s.threshold = 0, s.steps = 4, s.flush = 1, s.micro_steps = 4;
    static const char *const tiers[] = {"\"offload_param\": " NVME, ALL_NVME, ALL_NVME GRADS_TOO};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        s.tiers = tiers[i];
        if (!same(s)) continue;
        CHECK_INT(flat.last.gather_calls, s.micro_steps * upright.last.gather_calls);
        CHECK_INT(flat.last.gather_elements, s.micro_steps * upright.last.gather_elements);
        CHECK_INT(upright.last.reduce_calls, flat.last.reduce_calls);
        CHECK_INT(upright.last.drive_read_bytes - upright.first.drive_read_bytes,
                  (s.steps - 1) * upright.plan.drive_read_bytes);
        CHECK_INT(upright.last.drive_write_bytes - upright.first.drive_write_bytes,
                  (s.steps - 1) * upright.plan.drive_write_bytes);
        /* The update reads what it writes. All else is read by gathers. */
        uint64_t gathers = upright.plan.drive_read_bytes - upright.plan.drive_write_bytes;
        if (i == 0)
            CHECK_INT(flat.plan.drive_read_bytes,
                      upright.plan.drive_read_bytes + (s.micro_steps - 1) * gathers);
        if (i == 0) continue;
        /* A reduced gradient is written, and read by its update. Each further micro-step of another order reads and writes it again. */
        uint64_t more = s.micro_steps - 1,
                 sums = (flat.plan.drive_write_bytes - upright.plan.drive_write_bytes) / more;
        CHECK(sums > 0);
        CHECK_INT(flat.plan.drive_write_bytes, upright.plan.drive_write_bytes + more * sums);
        CHECK_INT(flat.plan.drive_read_bytes, upright.plan.drive_read_bytes + more * (gathers + sums));
    }
    /* Reduced in the last micro-step: a gradient lives for one use, so that no rank keeps all of them whole. */
    s.mode = "last", s.tiers = NULL;
    CHECK(same(s) && upright.plan.grad_bytes + upright.plan.gathered_bytes <
                         flat.plan.grad_bytes + flat.plan.gathered_bytes);
}

/* ---- ties ---- */

/* The same weights, losses and norms at every stage and on every tier, with updates in the backward, too; planned bytes are measured. The
 * first loss is that of horizontal order, and later ones are near it: sums have another order. */
static void ties(void) {
    static const char *const tiers[] = {NULL, NULL, NULL, NULL, ALL_NVME, ALL_NVME GRADS_TOO};
    struct toy_setup s = toy_setup_default();
    static struct toy_result first, got;
    s.ties = 1, s.steps = 3, s.micro_steps = 3, s.clip = 0;
    for (int every = 0; every < 2; every++)
        for (uint32_t place = 0; place < 12; place++) {
            s.mode = every ? "every" : "last";
            s.stage = place % 6 < 3 ? place % 6 : 3;
            s.tiers = tiers[place % 6], s.updates = place >= 6, s.depth = place % 3;
            s.vertical = 1;
            toy_train(&s, place ? &got : &first);
            if (place == 0) {
                s.vertical = 0;
                toy_train(&s, &got);
                CHECK_DOUBLE(got.loss[0], first.loss[0], 0);
                for (uint32_t i = 1; i < s.steps; i++) CHECK_DOUBLE(got.loss[i], first.loss[i], 1e-4);
                continue;
            }
            int same = CHECK_STRING(got.error, "") && CHECK_STRING(got.hash, first.hash);
            for (uint32_t i = 0; i < s.steps && same; i++)
                same =
                    CHECK_DOUBLE(got.loss[i], first.loss[i], 0) & CHECK_DOUBLE(got.norm[i], first.norm[i], 0);
            for (int t = 0; t < ZERO_TIERS && same; t++) same = CHECK_INT(got.measured[t], got.planned[t]);
            if (!same) fprintf(stderr, "with ties, place %u, %s\n", place, s.mode);
        }
}

/* ---- calls ---- */

static const struct plain_param params[] = {
    {"a", "a.w", 500, 0, NULL}, {"b", "b.w", 300, 0, NULL}, {"b", "b.f", 30, ZERO_FROZEN, NULL}};
enum { PARAMS = sizeof params / sizeof *params, MICROS = 3, STEPS = 2 };

static void refused(zero_status got, zero_status expected, const char *part1, const char *part2, int line) {
    int good = CHECK_INT(got, expected) & CHECK_CONTAINS(zero_last_error(), part1);
    good &= CHECK_CONTAINS(zero_last_error(), part2);
    if (!good) fprintf(stderr, "from line %d\n", line);
}

#define ORDER(call, part1, part2) refused(call, ZERO_E_ORDER, part1, part2, __LINE__)

/* A use whose every call is disturbed. */
static zero_status disturbed_use(struct plain *p, uint32_t unit, int backward) {
    zero_unit *it = p->unit[unit], *other = p->unit[!unit];
    zero_status (*ends)(zero_unit *) = backward ? zero_backward_end : zero_forward_end;
    zero_status status = backward ? zero_backward_begin(it) : zero_forward_begin(it);
    for (uint32_t m = 0; m < MICROS && !status; m++) {
        if (m) {
            ORDER(ends(it), "of 3 micro-steps are done", "zero_unit_next_micro");
            status = zero_unit_next_micro(it);
        }
        ORDER(zero_unit_next_micro(other), "between begin and end", params[!unit].unit);
        ORDER(zero_engine_step(p->engine, NULL), "still in use", params[unit].unit);
        if (backward && !status) plain_give(p, unit, m);
    }
    ORDER(zero_unit_next_micro(it), "all 3 micro-steps are done", params[unit].unit);
    return status ? status : ends(it);
}

static zero_status disturbed_step(struct plain *p) {
    ORDER(zero_unit_next_micro(p->unit[0]), "between begin and end", "\"a\"");
    refused(zero_unit_next_micro(NULL), ZERO_E_ARGUMENT, "zero_unit_next_micro", "NULL", __LINE__);
    ORDER(zero_engine_step(p->engine, NULL), "0 of 3 micro-steps", "do the others");
    zero_status status = zero_micro_begin(p->engine, ZERO_TRAIN);
    for (int i = 0; i < 4 && !status; i++) status = disturbed_use(p, i % 3 != 0, i >= 2);
    ORDER(zero_micro_begin(p->engine, ZERO_TRAIN), "3 micro-steps of this step are done", "in one pass");
    return status ? status : zero_engine_step(p->engine, NULL);
}

struct run {
    int disturbed;
    char hash[33];
};

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine)) return;
    zero_status status = plain_open(&p, engine, params, PARAMS, NULL);
    for (int step = 0; step < STEPS && !status; step++)
        status = run->disturbed ? disturbed_step(&p) : plain_step(&p, MICROS, NULL);
    char hash[33] = "";
    if (!status) status = zero_engine_hash(engine, hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    if (rank == 0) strcpy(run->hash, hash);
}

static void calls(void) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = MICROS;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        struct run plain = {0}, ordered = {0}, disturbed = {.disturbed = 1};
        char json[2048];
        s.vertical = 0;
        toy_config(&s, json, sizeof json);
        ranks_run(s.ranks, json, run_rank, &plain);
        s.vertical = 1;
        toy_config(&s, json, sizeof json);
        ranks_run(s.ranks, json, run_rank, &ordered);
        ranks_run(s.ranks, json, run_rank, &disturbed);
        CHECK_STRING(ordered.hash, plain.hash);
        if (!CHECK_STRING(disturbed.hash, plain.hash)) fprintf(stderr, "in stage %u\n", s.stage);
    }
}

/* In horizontal order a use has one micro-batch. */
static void one_micro(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(zero_engine_use_micros(engine), 1);
    CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    ORDER(zero_unit_next_micro(p.unit[0]), "a use has one micro-step", "zero_optimization.micro_order");
    CHECK_INT(zero_forward_end(p.unit[0]), ZERO_OK);
}

/* One rank is a micro-batch behind the others of the same use: nothing is dropped. Then all of them cancel, and train. */
static void apart(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    if (rank) CHECK_INT(zero_unit_next_micro(p.unit[0]), ZERO_OK);
    ORDER(zero_micro_cancel(engine), "at another place of its pass", "nothing is dropped");
    if (!rank) CHECK_INT(zero_unit_next_micro(p.unit[0]), ZERO_OK);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK_INT(plain_step(&p, MICROS, NULL), ZERO_OK);
}

/* ---- what cannot be ---- */

struct other {
    const struct plain_param *param;
    uint32_t params;
    int hold, free_order;
    const char *name;
};

static void cannot(zero_engine *engine, uint32_t rank, void *user) {
    const struct other *o = user;
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_declare(&p, engine, o->param, o->params), ZERO_OK);
    if (o->hold) CHECK_INT(zero_unit_hold(p.unit[0]), ZERO_OK);
    if (o->free_order) CHECK_INT(zero_engine_free_order(engine), ZERO_OK);
    refused(zero_engine_commit(engine, NULL), ZERO_E_UNSUPPORTED, o->name, "micro_order \"vertical\"",
            __LINE__);
}

static void refusals(void) {
    static const struct plain_param twice[] = {
        {"a", "x", 4, 0, NULL}, {"a", "y", 4, 0, NULL}, {"b", "of x", 4, 0, "x"}, {"c", "of y", 4, 0, "y"}};
    struct other others[] = {{params, PARAMS, 1, 0, "unit \"a\" is held"},
                             {params, PARAMS, 0, 1, "zero_engine_free_order"},
                             {twice, 4, 0, 0, "tied to both \"x\" and \"y\" of unit \"a\""}};
    struct toy_setup s = toy_setup_default();
    char json[2048];
    s.micro_steps = MICROS;
    toy_config(&s, json, sizeof json);
    ranks_run(1, json, one_micro, NULL);
    s.vertical = 1;
    toy_config(&s, json, sizeof json);
    ranks_run(2, json, apart, NULL);
    for (int i = 0; i < 3; i++) ranks_run(1, json, cannot, &others[i]);
}

/* ---- sums that wait on a device ---- */

enum { MANY = 12 };

/* Each step uses two of the units. The sums of all others are cleared, and stored, in one event. */
static void use_few(zero_engine *engine, uint32_t rank, void *user) {
    char names[MANY][2][16];
    struct plain_param many[MANY];
    struct plain p;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i][0], sizeof names[i][0], "u%d", i),
            snprintf(names[i][1], sizeof names[i][1], "w%d", i);
        many[i] = (struct plain_param){names[i][0], names[i][1], 300, 0, NULL};
    }
    if (!CHECK(engine)) return;
    zero_status status = plain_open(&p, engine, many, MANY, NULL);
    for (int step = 0; step < STEPS && !status; step++) {
        status = zero_micro_begin(engine, ZERO_TRAIN);
        for (uint32_t u = 0; u < 2 && !status; u++) status = plain_forward(&p, u);
        for (uint32_t u = 2; u-- && !status;) status = plain_backward(&p, u, 0);
        if (!status) status = zero_engine_step(engine, NULL);
    }
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void unused_units(void) {
    struct toy_setup s = toy_setup_default();
    char json[2048];
    s.vertical = 1, s.micro_steps = MICROS, s.mode = "every";
    s.tiers = "\"offload_optimizer\": {\"device\": \"cpu\"}";
    for (s.stage = 1; s.stage <= 3; s.stage++) {
        toy_config(&s, json, sizeof json);
        ranks_run_discrete(2, json, use_few, NULL);
    }
}

int main(void) {
    memories();
    others();
    traffic();
    ties();
    calls();
    refusals();
    unused_units();
    return check_end();
}
