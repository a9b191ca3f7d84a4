/* Updates in the backward: weights, losses and norms after 10 steps are those of updates at the step, at every stage, in each order of
 * micro-steps and mode, on every tier, with recomputation, ties, a schedule and interrupted passes. What is planned is taken and moved,
 * and gradients take less of it. With a shadow, steps that are clipped and steps that are skipped end in the same weights too. Without one,
 * a gradient that is not a number ends the run. What cannot be exact is refused in a sentence. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define STATE "\"offload_optimizer\": " NVME
#define ALL STATE ", \"offload_param\": " NVME
#define SMALL ", \"sub_group_size\": 100"

#define CLIP 0.05
#define PAGE 4096 /* of a commit; no plan has it */

static struct toy_result late, early;

static struct toy_setup setup(void) {
    struct toy_setup s = toy_setup_default();
    s.clip = 0, s.steps = 5;
    return s;
}

/* Trains both ways. */
static int same(struct toy_setup s) {
    s.untied = s.vertical;
    toy_train(&s, &late);
    s.updates = 1;
    toy_train(&s, &early);
    int same =
        CHECK_STRING(early.error, "") && CHECK_STRING(late.error, "") && CHECK_STRING(early.hash, late.hash);
    for (uint32_t i = 0; i < s.steps && same; i++)
        same = CHECK_DOUBLE(early.loss[i], late.loss[i], 0) & CHECK_DOUBLE(early.norm[i], late.norm[i], 0);
    for (int t = 0; t < ZERO_TIERS && same; t++) same = CHECK_INT(early.measured[t], early.planned[t]);
    if (!same)
        fprintf(stderr, "in stage %u, %u ranks, %u micro-steps, %s%s, type %d, recomputing %u, %s\n", s.stage,
                s.ranks, s.micro_steps, s.mode, s.vertical ? ", vertical" : "", s.compute, s.recompute,
                s.tiers ? s.tiers : s.offload),
            fprintf(stderr, "%g of the updates wait\n", s.waits);
    return same;
}

/* ---- equal ---- */

/* The step counter, the schedule and weight decay are those of the step that is at work. The last steps follow the schedule's end. */
static void past_the_schedule(void) {
    struct toy_setup s = setup();
    s.steps = 10, s.compute = ZERO_BF16;
    s.extra = ", \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 8, "
              "\"warmup_num_steps\": 4, \"warmup_max_lr\": 0.02}}";
    for (s.stage = 0; s.stage <= 3; s.stage++) s.tiers = s.stage == 3 ? ALL SMALL : NULL, same(s);
}

/* In a short run, one order of micro-steps for each stage and tier: every order is there, but not with each of the others. */
static bool is_taken(uint32_t order, uint32_t orders, uint32_t turn) {
    return seeds_divisor() == 1 || order == turn % orders;
}

static void kinds(void) {
    static const char *const tiers[] = {NULL, "\"offload_optimizer\": {\"device\": \"cpu\"}", STATE SMALL,
                                        ALL SMALL};
    struct toy_setup s = setup();
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (uint32_t k = 0; k < 3u + (s.stage == 3); k++)
            for (uint32_t order = 0; order < 4; order++) {
                if (!is_taken(order, 4, s.stage + k)) continue;
                s.tiers = tiers[k], s.vertical = order > 1, s.mode = order % 2 ? "every" : "last";
                s.micro_steps = 1 + (order + k) % 3;
                if (s.vertical && s.micro_steps == 1) s.micro_steps = 4;
                s.compute = (order + s.stage) % 2 ? ZERO_BF16 : ZERO_F32;
                s.recompute = (s.stage + k) % 4, s.depth = k % 3;
                s.interrupt = order % 2 && !s.recompute;
                s.skip_unit = order == 1 && !s.recompute ? 2 : -1;
                s.waits = (order + s.stage + k) % 3 / 2.;
                same(s);
            }
}

/* A held unit is final with the last backward of all; groups of ranks; frozen parameters, and some in fp32. */
static void others(void) {
    struct toy_setup s = setup();
    s.micro_steps = 2;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.hold = 1 << 2, s.ranks = 3;
        same(s);
        s.hold = 0, s.ranks = 4, s.frozen = 1 << 5, s.kept = 1 << 4;
        s.tiers = s.stage ? STATE SMALL ", \"mics_shard_size\": 2" : "\"mics_shard_size\": 2",
        s.shard_ranks = 2;
        same(s);
        s.frozen = s.kept = 0, s.tiers = NULL, s.shard_ranks = 0;
    }
}

/* ---- with a shadow: made again where the norm is above the bound, taken back where it is none ---- */

static uint32_t above(const struct toy_result *r, const struct toy_setup *s) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->steps; i++) count += r->norm[i] > s->clip; /* not where it is no number */
    return count;
}

static const char *directory(void) {
    return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp/zero_updates_test";
}

/* The keys, with a path of this test alone. */
static const char *drive(const char *keys) {
    static char text[2000];
    char *at = text, *end = text + sizeof text;
    for (const char *path; (path = strstr(keys, "/tmp")); keys = path + strlen("/tmp"))
        at += snprintf(at, (size_t)(end - at), "%.*s%s", (int)(path - keys), keys, directory());
    snprintf(at, (size_t)(end - at), "%s", keys);
    return text;
}

static void shadowed(struct toy_setup s) {
    s.shadow = 1;
    int good = same(s) && CHECK_INT(early.skipped, late.skipped);
    if (good && s.clip > 0) good = CHECK_INT(early.repeated, above(&late, &s));
    good &= CHECK_INT(late.repeated, 0);
    if (!good) fprintf(stderr, "clipped to %g, with a shadow\n", s.clip);
}

/* The bound is within the norms of the first steps: some are above, some below. */
static void with_a_shadow(void) {
    static const char *const tiers[] = {STATE SMALL, ALL SMALL,
                                        STATE SMALL ", \"offload_gradients\": {\"device\": \"nvme\"}",
                                        STATE SMALL ", \"offload_gradients\": {\"device\": \"none\"}"};
    static const zero_dtype types[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    struct toy_setup s = setup();
    uint64_t repeated = 0, kept = 0;
    s.scale_power = 6, s.steps = 6;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (uint32_t k = 0; k < 4; k++) {
            if ((k == 1 && s.stage < 3) || (k == 2 && s.stage == 0)) continue;
            for (uint32_t order = 0; order < 3; order++) {
                if (!is_taken(order, 3, s.stage + k)) continue;
                s.tiers = drive(tiers[k]), s.compute = types[(s.stage + k + order) % 3];
                s.vertical = order == 2, s.mode = order % 2 ? "every" : "last", s.micro_steps = 1 + order;
                s.recompute = (s.stage + k) % 4, s.flush = k % 2, s.clip = CLIP;
                s.nan_step = -1;
                shadowed(s);
                repeated += early.repeated, kept += s.steps - early.repeated;
                s.nan_step = (int)order; /* the first step, or one after a clipped one */
                shadowed(s);
                s.clip = 0;
                shadowed(s);
                CHECK_INT(early.repeated, 0);
                CHECK_INT(early.skipped, 1);
            }
        }
    CHECK(repeated > 0 && kept > 0);
}

/* The last unit is left out of the last pass: the first backward is that of another, and the first update that of the last. */
static void skips_the_last(void) {
    struct toy_setup s = setup();
    s.micro_steps = 2, s.skip_unit = TOY_UNITS - 1, s.skip_micro = 1, s.steps = 6;
    s.clip = CLIP;
    uint64_t repeated = 0;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.tiers = drive(s.stage == 3 ? ALL SMALL : STATE SMALL), s.recompute = s.stage % 2 ? 2 : 0;
        shadowed(s);
        repeated += early.repeated;
        CHECK(early.repeated < s.steps);
    }
    CHECK(repeated > 0);
}

static void meshes_with_a_shadow(void) {
    struct toy_setup s = setup();
    s.ranks = 4, s.shard_ranks = 2, s.frozen = 1 << 5, s.kept = 1 << 4, s.compute = ZERO_BF16;
    s.clip = CLIP, s.nan_step = 2;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.tiers = drive(STATE SMALL ", \"mics_shard_size\": 2");
        shadowed(s);
    }
    s.stage = 3, s.tiers = drive(ALL SMALL ", \"zero_hpz_partition_size\": 2");
    shadowed(s);
}

/* ---- memory and traffic ---- */

/* One micro-step: no reduced gradient outlives its unit, in memory or on the drive; but those whose updates wait for the next forward. */
static void takes_less(void) {
    struct toy_setup s = setup();
    uint64_t before = 0;
    s.stage = 3, s.threshold = 0, s.steps = 4, s.flush = 1, s.tiers = ALL;
    for (s.waits = 0; s.waits < 1; s.waits += 0.5) {
        if (!same(s)) return;
        CHECK(early.plan.grad_bytes < late.plan.grad_bytes);
        CHECK(early.plan.drive_write_bytes > before &&
              early.plan.drive_write_bytes < late.plan.drive_write_bytes);
        CHECK_INT(early.last.drive_read_bytes - early.first.drive_read_bytes,
                  (s.steps - 1) * early.plan.drive_read_bytes);
        CHECK_INT(early.last.drive_write_bytes - early.first.drive_write_bytes,
                  (s.steps - 1) * early.plan.drive_write_bytes);
        before = early.plan.drive_write_bytes;
    }
}

/* Every step is made again. */
static void moves_more(void) {
    struct toy_setup s = setup();
    s.stage = 3, s.threshold = 0, s.steps = 4, s.flush = 1, s.shadow = 1, s.clip = 1e-6;
    for (int grads = 0; grads < 2; grads++) {
        s.tiers = drive(grads ? ALL SMALL ", \"offload_gradients\": {\"device\": \"nvme\"}"
                              : ALL SMALL ", \"offload_gradients\": {\"device\": \"none\"}");
        if (!same(s)) return;
        CHECK_INT(early.repeated, s.steps);
        CHECK_INT(late.plan.repeat_write_bytes, 0);
        CHECK_INT(early.last.drive_read_bytes - early.first.drive_read_bytes,
                  (s.steps - 1) * (early.plan.drive_read_bytes + early.plan.repeat_read_bytes));
        CHECK_INT(early.last.drive_write_bytes - early.first.drive_write_bytes,
                  (s.steps - 1) * (early.plan.drive_write_bytes + early.plan.repeat_write_bytes + PAGE));
    }
}

/* ---- the end of a run ---- */

static void not_a_number(void) {
    struct toy_setup s = setup();
    s.nan_step = 2, s.updates = 1;
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        toy_train(&s, &early);
        CHECK_INT(early.status, ZERO_E_OVERFLOW);
        CHECK_CONTAINS(early.error, "step 3: on rank ");
        CHECK_CONTAINS(early.error, "gradients of unit \"");
        CHECK_CONTAINS(early.error, "go on from the last checkpoint, and remove that key or set nvme.shadow");
    }
}

/* ---- what the host writes between steps ---- */

static const struct plain_param written[] = {
    {"a", "a.w", 5000, 0, NULL}, {"a", "a.b", 30, ZERO_NO_DECAY, NULL}, {"b", "b.w", 3000, 0, NULL}};

/* A shadow of an earlier run in the same directory is discarded. */
static zero_status open_written(struct plain *p, zero_engine *engine) {
    zero_status status = plain_declare(p, engine, written, sizeof written / sizeof *written);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_discard_shadow(engine);
    return status ? status : zero_engine_fill(engine, toy_fill, NULL);
}

struct writing {
    const char *saved;
    char hash[33];
    uint64_t repeated;
};

/* A step whose updates are made again needs what was before them: what was filled, put or loaded, too. */
static void write_between(zero_engine *engine, uint32_t rank, void *user) {
    static const float values[] = {0.25f, -0.5f, 3};
    struct writing *w = user;
    struct plain p;
    char hash[33];
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine)) return;
    zero_status status = open_written(&p, engine);
    for (int k = 0; k < 7 && !status; k++) {
        status = plain_step(&p, 1, &info);
        if (!status && k % 2)
            status = zero_engine_flush(engine); /* commits what was updated, before the put */
        if (!status && k < 3) status = zero_engine_put(engine, "a.w", ZERO_PARAM, values, 2400, 3);
        if (!status && k == 3) status = zero_engine_put(engine, "b.w", ZERO_STATE0, values, 0, 3);
        if (!status && k == 4) status = zero_engine_save(engine, w->saved);
        if (!status && k == 5) status = zero_engine_load(engine, w->saved);
    }
    if (!status) status = zero_engine_hash(engine, hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    if (rank == 0) strcpy(w->hash, hash), w->repeated = info.repeated_total;
}

/* ---- what the host reads before the step ---- */

enum { READ_STEPS = 4, READ_ELEMENTS = 5000 + 30 + 3000 };

struct reading {
    uint32_t micro_steps;
    float grads[READ_STEPS][READ_ELEMENTS]; /* of all parameters, one after another */
    char hash[33];
    uint64_t repeated;
};

static zero_status read_step(struct plain *p, struct reading *r, int k, bool first, zero_step_info *info) {
    static float unused[READ_ELEMENTS]; /* of the other rank */
    float *at = first ? r->grads[k] : unused;
    zero_status status = ZERO_OK;
    for (uint32_t m = 0; m < r->micro_steps && !status; m += (uint32_t)zero_engine_use_micros(p->engine))
        status = plain_pass(p, ZERO_TRAIN, m);
    for (uint32_t i = 0; i < p->params && !status; at += p->param[i++].count)
        status = zero_engine_get(p->engine, p->param[i].name, ZERO_GRAD, at, 0, p->param[i].count);
    return status ? status : zero_engine_step(p->engine, info);
}

static void read_gradients(zero_engine *engine, uint32_t rank, void *user) {
    struct reading *r = user;
    struct plain p;
    char hash[33];
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine)) return;
    zero_status status = open_written(&p, engine);
    for (int k = 0; k < READ_STEPS && !status; k++) status = read_step(&p, r, k, rank == 0, &info);
    if (!status) status = zero_engine_hash(engine, hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    if (rank == 0 && !status) strcpy(r->hash, hash), r->repeated = info.repeated_total;
}

/* Under clipping the updates of the backward leave the gradients for a repetition, and for the host. */
static void gradients_stay(void) {
    static const char nvme[] = "{\"device\": \"nvme\", \"nvme_path\": \"%s/read_%u\"}";
    static const char *const tiers[] = {"", ", \"offload_gradients\": {\"device\": \"none\"}"};
    static struct reading late_read, early_read;
    char path[1200], json[4000];
    for (uint32_t k = 0; k < 16; k++) {
        snprintf(path, sizeof path, nvme, directory(), k);
        uint32_t stage = k % 4, order = (k / 4 + k) % 4; /* one micro-step; last; every; vertical */
        bool clipped = k % 3 != 0;
        for (int updates = 0; updates < 2; updates++) {
            struct reading *r = updates ? &early_read : &late_read;
            *r = (struct reading){.micro_steps = order ? 3 : 1};
            snprintf(
                json, sizeof json,
                "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %u, "
                "\"gradient_accumulation_mode\": \"%s\", \"gradient_clipping\": %s, \"bf16\": "
                "{\"enabled\": %s}, \"nvme\": {\"shadow\": true}, \"zero_optimization\": {\"stage\": %u, "
                "\"sub_group_size\": 1024, \"micro_order\": \"%s\", \"offload_optimizer\": %s%s%s%s}}",
                r->micro_steps, order == 2 ? "every" : "last", clipped ? "1" : "1e9",
                k / 8 ? "true" : "false", stage, order == 3 ? "vertical" : "horizontal", path,
                k % 5 == 3 && stage == 3 ? ", \"offload_param\": " : "",
                k % 5 == 3 && stage == 3 ? path : tiers[stage && k / 4 % 2],
                updates ? ", \"update_in_backward\": true" : "");
            ranks_run(2, json, read_gradients, r);
        }
        bool same = CHECK(memcmp(early_read.grads, late_read.grads, sizeof late_read.grads) == 0) &
                    CHECK_STRING(early_read.hash, late_read.hash) &
                    CHECK_INT(early_read.repeated, clipped ? READ_STEPS : 0);
        if (!same) fprintf(stderr, "%s\n", json);
    }
    CHECK(late_read.grads[0][0] != 0);
}

/* ---- a held unit that is declared last ---- */

/* Nothing is flushed: the next pass commits a step. */
static void hold_last(zero_engine *engine, uint32_t rank, void *user) {
    struct writing *w = user;
    struct plain p;
    char hash[33];
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine)) return;
    zero_status status = plain_declare(&p, engine, written, sizeof written / sizeof *written);
    if (!status) status = zero_unit_hold(p.unit[1]);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_discard_shadow(engine);
    if (!status) status = zero_engine_fill(engine, toy_fill, NULL);
    for (int k = 0; k < 5 && !status; k++) {
        status = zero_micro_begin(engine, ZERO_TRAIN);
        if (!status) status = plain_forward(&p, 0);
        if (!status) status = zero_backward_begin(p.unit[0]);
        if (!status) plain_give(&p, 1, 0), plain_give(&p, 0, 0);
        if (!status) status = zero_backward_end(p.unit[0]);
        if (!status) status = zero_engine_step(engine, &info);
    }
    if (!status) status = zero_engine_hash(engine, hash);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    if (rank == 0 && !status) strcpy(w->hash, hash), w->repeated = info.repeated_total;
}

static void both_ways(const char *type, void (*body)(zero_engine *engine, uint32_t rank, void *user),
                      uint64_t repeated) {
    static const char nvme[] = "{\"device\": \"nvme\", \"nvme_path\": \"%s/written_%zu\"}";
    static struct writing w[2];
    char saved[1000], json[4000], path[1200];
    snprintf(saved, sizeof saved, "%s/saved", directory());
    snprintf(path, sizeof path, nvme, directory(), strlen(type));
    for (int updates = 0; updates < 2; updates++) {
        w[updates].saved = saved;
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1, \"zero_optimization\": "
                 "{\"stage\": 3, \"offload_optimizer\": %s, \"offload_param\": %s%s, "
                 "\"sub_group_size\": 1024}, \"nvme\": {\"shadow\": true}%s}",
                 path, path, updates ? ", \"update_in_backward\": true" : "", type);
        ranks_run(2, json, body, &w[updates]);
    }
    CHECK_STRING(w[1].hash, w[0].hash);
    CHECK_INT(w[1].repeated, repeated);
    CHECK_INT(w[0].repeated, 0);
}

/* ---- calls ---- */

static const struct plain_param params[] = {
    {"a", "a.w", 500, 0, NULL}, {"b", "b.w", 300, 0, NULL}, {"b", "b.f", 30, ZERO_FROZEN, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

static void refused(zero_status got, zero_status expected, const char *part, int line) {
    int good = CHECK_INT(got, expected) & CHECK_CONTAINS(zero_last_error(), part);
    good &= CHECK_CONTAINS(zero_last_error(), "update_in_backward");
    if (!good) fprintf(stderr, "from line %d\n", line);
}

/* Once the step's last backward has begun, there is no way back. */
static void calls(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    float value;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(p.unit[0]), ZERO_OK);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK); /* nothing is updated yet */
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    for (int u = 0; u < 2; u++) {
        CHECK_INT(zero_forward_begin(p.unit[u]), ZERO_OK);
        CHECK_INT(zero_forward_end(p.unit[u]), ZERO_OK);
    }
    CHECK_INT(zero_backward_begin(p.unit[1]), ZERO_OK);
    plain_give(&p, 1, 0);
    CHECK_INT(zero_backward_end(p.unit[1]), ZERO_OK);
    refused(zero_micro_cancel(engine), ZERO_E_ORDER, "zero_micro_cancel", __LINE__);
    refused(zero_micro_begin(engine, ZERO_EVAL), ZERO_E_ORDER, "zero_micro_begin", __LINE__);
    refused(zero_engine_get(engine, "b.w", ZERO_GRAD, &value, 0, 1), ZERO_E_ORDER, "\"b.w\" is used up",
            __LINE__);
    CHECK_CONTAINS(zero_last_error(), "set gradient_clipping and nvme.shadow");
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
}

/* Ranks that have updated apart are told so by the step. */
static void apart(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(zero_engine_set_lr(engine, 0, 1e-3 * (1 + rank)), ZERO_OK);
    refused(plain_step(&p, 1, NULL), ZERO_E_DIVERGED, "rank 1 updated with other learning rates", __LINE__);
}

/* A last micro-step without a backward: the step is refused, also after an evaluation and a flush. The backward can still be done, or the
 * step be dropped. */
static void empty_last(zero_engine *engine, uint32_t rank, void *user) {
    const char *says = "no backward has run in the last micro-step";
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    refused(zero_engine_step(engine, NULL), ZERO_E_ORDER, says, __LINE__);
    for (uint32_t u = 0; u < 2; u++) CHECK_INT(plain_forward(&p, u), ZERO_OK);
    for (uint32_t u = 2; u-- > 0;) CHECK_INT(plain_backward(&p, u, 1), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_EVAL, 0), ZERO_OK);
    refused(zero_engine_step(engine, NULL), ZERO_E_ORDER, says, __LINE__);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    refused(zero_engine_step(engine, NULL), ZERO_E_ORDER, says, __LINE__);
    CHECK_INT(zero_micro_cancel(engine), ZERO_OK);
    CHECK_INT(plain_step(&p, 2, NULL), ZERO_OK);
}

static void free_order(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_declare(&p, engine, params, PARAMS), ZERO_OK);
    CHECK_INT(zero_engine_free_order(engine), ZERO_OK);
    refused(zero_engine_commit(engine, NULL), ZERO_E_UNSUPPORTED, "zero_engine_free_order", __LINE__);
}

static void configuration(struct toy_setup s, const char *says) {
    s.updates = 1, s.steps = 1;
    toy_train(&s, &early);
    CHECK(early.status != ZERO_OK);
    CHECK_CONTAINS(early.error, says);
    CHECK_CONTAINS(early.error, s.waits > 0 ? "remove nvme.shadow" : "update_in_backward");
}

static void refusals(void) {
    struct toy_setup s = setup(), other;
    char json[2048];
    s.updates = 1;
    toy_config(&s, json, sizeof json);
    ranks_run(2, json, calls, NULL);
    ranks_run(2, json, apart, NULL);
    ranks_run(1, json, free_order, NULL);
    other = s, other.micro_steps = 2, other.mode = "last";
    for (other.stage = 0; other.stage <= 3; other.stage++) {
        toy_config(&other, json, sizeof json);
        ranks_run(2, json, empty_last, NULL);
    }
    other = s, other.clip = 0.5;
    configuration(other, "set gradient_clipping to 0, or nvme.shadow");
    other = s, other.waits = 0.5, other.shadow = 1;
    other.tiers = drive(STATE);
    configuration(
        other, "zero_optimization.update_in_forward: updates wait for the next forward only beside others");
    other = s, other.compute = ZERO_F16;
    configuration(other, "set nvme.shadow, which can take them back, or compute in bf16");
    other = s, other.stage = 1, other.memory = TOY_SPANS;
    configuration(other, "is in memory that the program gave");
}

int main(void) {
    past_the_schedule();
    kinds();
    others();
    with_a_shadow();
    skips_the_last();
    meshes_with_a_shadow();
    both_ways("", write_between, 7);
    both_ways(", \"bf16\": {\"enabled\": true}", write_between, 7);
    both_ways("", hold_last, 5);
    gradients_stay();
    takes_less();
    moves_more();
    not_a_number();
    refusals();
    return check_end();
}
