/* The bytes that a step sends, measured by the counters, against numbers derived here by hand, not by the policy. With
 * N ranks and f = (N - 1) / N, a ring or an all-to-all of a region of P padded elements sends f P per rank. With n
 * micro-steps, and T the trainable elements (Rajbhandari et al. 2020, section 7):
 *
 *   stage 0 reductions f T, once ("last") or per micro-step ("every"); then the gradients are gathered, f T
 *   stage 1 reductions as stage 0; then the updated parameters are gathered, f T
 *   stage 2 the same
 *   stage 3 reductions as stage 0; gathers per micro-step: each unit for its forward and for its backward,
 *            but once for both if the backward follows at once (the last unit); and once per step the
 *            persistent trainable parameters
 *
 * In groups of S ranks, R = N / S of them:
 *
 *   HSDP any stage: the traffic above happens inside a group, with f = (S - 1) / S; and once per step each group's
 *            sums, P / S elements a rank, are added over the R groups by an all-reduce of 2 (R - 1) P / N
 *   hpZ stage 3: reductions and the refresh of persistent parameters go over all ranks, and so does the first
 *            gather in a micro-step; every other gather is from the second shard, (S - 1) / S P
 *   kept stage 3 with reshard_after_forward false: one gather per micro-step
 *
 * There is one call per region, whatever its size. The depth of prefetching changes nothing. An element is 4 bytes, or
 * the 2 of bf16: gathers of parameters use the compute type, reductions the narrower of the compute and communication
 * types, stage 0's gathers of gradients the type of the reduced gradients. */
#include <stdio.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

struct model {
    const char *name;
    const struct plain_param *param;
    uint32_t params, threshold;
    /* Unpadded elements of every region, by what happens to it; the hand's part. A region is padded to a
     * multiple of N cache lines. */
    struct count {
        uint32_t elements;
        uint32_t stage3_uses; /* gathers in a micro-step at stage 3; 0: persistent */
        uint32_t trainable;
    } region[16];
};

static const struct plain_param three_units[] = {
    {"a", "a.w", 100, 0, NULL}, {"b", "b.w", 300, 0, NULL}, {"c", "c.w", 77, 0, NULL}};

/* in (130 + 6 persistent), a (200 trainable, 50 frozen, 3 frozen and persistent), b (90), out: tied to in,
 * and 40 of its own. In-unit alignment is 16 elements; no sharded region here has two parameters but "a". */
static const struct plain_param everything[] = {
    {"in", "in.w", 130, 0, NULL}, {"in", "in.b", 6, ZERO_NO_DECAY, NULL}, {"a", "a.w", 200, 0, NULL},
    {"a", "a.v", 20, 0, NULL},    {"a", "a.f", 50, ZERO_FROZEN, NULL},    {"a", "a.s", 3, ZERO_FROZEN, NULL},
    {"b", "b.w", 90, 0, NULL},    {"out", "out.w", 130, 0, "in.w"},       {"out", "out.b", 40, 0, NULL}};

static const struct model models[] = {
    {"three units",
     three_units,
     3,
     0,
     {{100, 2, 1},  /* a: forward, backward */
      {300, 2, 1},  /* b */
      {77, 1, 1}}}, /* c: its backward follows its forward */
    {"everything",
     everything,
     9,
     10,
     {{130, 3, 1},  /* in.w: in's forward; out's forward and backward, at the turn; in's backward */
      {6, 0, 1},    /* in.b is persistent */
      {228, 2, 1},  /* a.w, rounded up to 208, and a.v */
      {50, 2, 0},   /* a.f: gathered, never reduced */
      {3, 0, 0},    /* a.s: always there, never changes */
      {90, 2, 1},   /* b.w */
      {40, 1, 1}}}, /* out.b: at the turn */
};

struct mesh {
    const char *name, *zero, *comm;
    uint32_t shards;  /* S; 0: all ranks */
    int second, kept; /* hpZ; kept */
};

static const struct mesh plain_mesh = {.name = "plain"};
static const struct mesh meshes[] = {
    {"HSDP", "\"mics_shard_size\": 2", NULL, 2, 0, 0},
    {"HSDP of replicas", "\"mics_shard_size\": 1", NULL, 1, 0, 0},
    {"hpZ", "\"zero_hpz_partition_size\": 2", NULL, 2, 1, 0},
    {"hpZ by its other name", "\"mics_shard_size\": -1", ", \"reshard_after_forward\": 2", 2, 1, 0},
    {"kept", "\"mics_shard_size\": -1", ", \"reshard_after_forward\": false", 0, 0, 1},
    {"kept in HSDP", "\"mics_shard_size\": 2", ", \"reshard_after_forward\": false", 2, 0, 1},
};

struct expected {
    uint64_t added_calls, added_elements; /* of the reductions: over the groups */
    uint64_t gather_calls, gather_elements, reduce_calls, reduce_elements;
};

static int reduces_every(const struct toy_setup *s) {
    return !strcmp(s->mode, "every") || (!strcmp(s->mode, "auto") && s->stage >= 2);
}

static struct expected by_hand(const struct model *m, const struct toy_setup *s, const struct mesh *mesh) {
    struct expected e = {0};
    uint32_t S = mesh->shards ? mesh->shards : s->ranks, R = s->ranks / S;
    int every = reduces_every(s);
    for (const struct count *c = m->region; c->elements; c++) {
        uint64_t unit = (s->compute == ZERO_F32 ? 16 : 32) * s->ranks,
                 padded = (c->elements + unit - 1) / unit * unit;
        uint64_t inside = padded / S * (S - 1), all = padded / s->ranks * (s->ranks - 1);
        uint64_t sent = mesh->second ? all : inside;
        uint32_t reductions = c->trainable * (every ? s->micro_steps : 1);
        uint32_t firsts = c->trainable; /* stage 0: of gradients; else: of parameters after the update */
        uint32_t others = 0;
        if (s->stage == 3 && c->stage3_uses) {
            firsts = s->micro_steps;
            others = mesh->kept ? 0 : (c->stage3_uses - 1) * s->micro_steps;
        }
        if (R > 1 && !mesh->second) {
            e.added_calls += c->trainable;
            e.added_elements += c->trainable * 2 * (R - 1) * (padded / s->ranks);
        }
        e.reduce_calls += reductions, e.reduce_elements += reductions * sent;
        e.gather_calls += firsts + others, e.gather_elements += firsts * sent + others * inside;
    }
    e.reduce_calls += e.added_calls, e.reduce_elements += e.added_elements;
    return e;
}

static uint64_t bytes_by_hand(const struct expected *e, const struct toy_setup *s) {
    int narrow = s->compute != ZERO_F32,
        in_fp32 = !s->communication ? !narrow : !strcmp(s->communication, "fp32");
    int accumulates = s->micro_steps > 1 && reduces_every(s);
    uint64_t reduced = narrow || !in_fp32 ? 2 : 4, param = narrow ? 2 : 4,
             grad = accumulates || in_fp32 ? 4 : 2;
    return reduced * (e->reduce_elements - e->added_elements) + grad * e->added_elements +
           (s->stage == 0 ? grad : param) * e->gather_elements;
}

struct task {
    const struct model *model;
    const struct toy_setup *setup;
    const struct mesh *mesh;
};

static void compare(const zero_counters *a, const zero_counters *b, const struct task *t) {
    struct expected e = by_hand(t->model, t->setup, t->mesh);
    uint64_t bytes = bytes_by_hand(&e, t->setup);
    int same = CHECK_INT(b->gather_calls - a->gather_calls, e.gather_calls);
    same &= CHECK_INT(b->gather_elements - a->gather_elements, e.gather_elements);
    same &= CHECK_INT(b->reduce_calls - a->reduce_calls, e.reduce_calls);
    same &= CHECK_INT(b->reduce_elements - a->reduce_elements, e.reduce_elements);
    same &= CHECK_INT(b->wire_bytes - a->wire_bytes, bytes);
    /* One agreement in a step, and nothing else beside the data. */
    same &= CHECK_INT(b->control_messages - a->control_messages, 1);
    const struct toy_setup *s = t->setup;
    if (!same)
        fprintf(
            stderr,
            "in %s, %s, stage %u, ranks %u, micro-steps %u, mode %s, depth %u, type %d, communication %s\n",
            t->model->name, t->mesh->name, s->stage, s->ranks, s->micro_steps, s->mode, s->depth, s->compute,
            s->communication ? s->communication : "the same");
}

static void measure(zero_engine *engine, uint32_t rank, void *user) {
    const struct task *t = user;
    if (!CHECK(engine)) return;
    struct plain p;
    zero_counters before = {.struct_size = sizeof before}, after = before;
    zero_status status = plain_open(&p, engine, t->model->param, t->model->params, NULL);
    for (int step = 0; step < 2 && !status; step++) status = plain_step(&p, t->setup->micro_steps, NULL);
    zero_engine_counters(engine, &before);
    if (!status) status = plain_step(&p, t->setup->micro_steps, NULL);
    zero_engine_counters(engine, &after);
    if (CHECK_INT(status, ZERO_OK)) compare(&before, &after, t);

    /* A sum, a hash and a read are control messages. The flush first: at stage 3 what is persistent is
     * gathered when it is next needed. */
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    zero_engine_counters(engine, &after);
    double one = 1;
    char hash[33];
    float element;
    before = after;
    CHECK_INT(zero_engine_sum(engine, &one, 1), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    CHECK_INT(zero_engine_get(engine, "a.w", ZERO_STATE0, &element, 99, 1), ZERO_OK);
    zero_engine_counters(engine, &after);
    CHECK_INT(after.wire_bytes, before.wire_bytes);
    CHECK_INT(after.gather_calls, before.gather_calls);
    CHECK(after.control_messages >= before.control_messages + 2);
}

/* In a short run, a part of them: what differs is numbers of bytes. */
static void run(const struct model *m, const struct toy_setup *s, const struct mesh *mesh) {
    static uint64_t cases;
    char json[2048];
    if (!seeds_take(cases++)) return;
    toy_config(s, json, sizeof json);
    ranks_run(s->ranks, json, measure, &(struct task){m, s, mesh});
}

static void groups(void) {
    struct toy_setup s = toy_setup_default();
    s.ranks = 4;
    for (size_t k = 0; k < sizeof meshes / sizeof *meshes; k++)
        for (s.compute = ZERO_F32; s.compute <= ZERO_BF16; s.compute++)
            for (s.stage = meshes[k].second || meshes[k].kept ? 3 : 0; s.stage <= 3; s.stage++)
                for (s.micro_steps = 1; s.micro_steps <= 3; s.micro_steps += 2)
                    for (int every = 0; every < 2; every++)
                        for (s.depth = 0; s.depth <= 2; s.depth += 2) {
                            s.mode = every ? "every" : "last";
                            s.threshold = models[0].threshold;
                            s.tiers = meshes[k].zero, s.comm = meshes[k].comm;
                            run(&models[0], &s, &meshes[k]);
                            s.threshold = models[1].threshold;
                            if (s.compute == ZERO_F32) run(&models[1], &s, &meshes[k]);
                        }
}

/* The 228 elements of "a" are laid out for lines of 16: the second model is for fp32 alone. */
static void narrow(void) {
    static const char *const communications[] = {NULL, "fp32", "bf16"};
    struct toy_setup s = toy_setup_default();
    s.ranks = 3;
    s.threshold = models[0].threshold;
    for (s.compute = ZERO_F32; s.compute <= ZERO_BF16; s.compute++)
        for (int c = 0; c < 3; c++)
            for (s.stage = 0; s.stage <= 3; s.stage++)
                for (s.micro_steps = 1; s.micro_steps <= 3; s.micro_steps += 2)
                    for (int every = 0; every < 2; every++) {
                        s.mode = every ? "every" : "last";
                        s.communication = communications[c];
                        run(&models[0], &s, &plain_mesh);
                    }
}

int main(void) {
    static const char *const modes[] = {"last", "every", "auto"};
    struct toy_setup s = toy_setup_default();
    for (int m = 0; m < 2; m++)
        for (s.stage = 0; s.stage <= 3; s.stage++)
            for (s.ranks = 1; s.ranks <= 4; s.ranks++)
                for (s.micro_steps = 1; s.micro_steps <= 3; s.micro_steps += 2)
                    for (int mode = 0; mode < 3; mode++)
                        for (s.depth = 0; s.depth <= 2; s.depth++) {
                            s.mode = modes[mode];
                            s.threshold = models[m].threshold;
                            run(&models[m], &s, &plain_mesh);
                        }
    narrow();
    groups();
    return check_end();
}
