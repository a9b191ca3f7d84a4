/* Reading and writing state by element range, and the hash, at every stage and number of ranks, in every type
 * of compute. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_number.h"
#include "tests/engine/toy_trainer.h"

/* 300 elements on 4 ranks are shards of 80, so ranges cross them; "tiny" is persistent. */
enum { WIDE = 300, TINY = 5, MICRO_STEPS = 2 };
static const struct plain_param params[] = {{"a", "wide", WIDE, 0, NULL},
                                            {"a", "tiny", TINY, ZERO_NO_DECAY, NULL},
                                            {"b", "fixed", 40, ZERO_FROZEN, NULL},
                                            {"b", "other", 33, 0, NULL},
                                            {"c", "tied", WIDE, 0, "wide"}};
enum { PARAMS = sizeof params / sizeof *params };

static const struct {
    uint64_t first, count;
} ranges[] = {{0, WIDE}, {0, 1}, {WIDE - 1, 1}, {79, 2}, {80, 1}, {60, 200}, {WIDE, 0}, {5, 0}, {159, 1}};

#define GRADIENTS_ON_DRIVE                                                                                   \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, "                               \
    "\"offload_gradients\": {\"device\": \"nvme\"}"

typedef void (*body_fn)(struct plain *p, const struct toy_setup *s);

struct run {
    body_fn body;
    const struct toy_setup *setup;
};

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    run->body(&p, run->setup);
}

static void everywhere_in(zero_dtype compute, uint32_t first_stage, const char *tiers, body_fn body) {
    struct toy_setup s = toy_setup_default();
    s.micro_steps = MICRO_STEPS;
    s.compute = compute;
    s.tiers = tiers;
    for (s.stage = first_stage; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= 4; s.ranks++)
            for (int every = 0; every < 2; every++) {
                int failures = atomic_load(&check_failures);
                char json[2048];
                s.mode = every ? "every" : "last";
                toy_config(&s, json, sizeof json);
                ranks_run(s.ranks, json, run_rank, &(struct run){body, &s});
                if (atomic_load(&check_failures) != failures)
                    fprintf(stderr, "in type %d, stage %u, %u ranks, mode %s\n", compute, s.stage, s.ranks,
                            s.mode);
            }
}

static void everywhere(body_fn body) {
    for (zero_dtype compute = ZERO_F32; compute <= ZERO_F16; compute++) everywhere_in(compute, 0, NULL, body);
}

/* ---- what was written is read, and nothing beside it ---- */

static void put_and_get(struct plain *p, const struct toy_setup *s) {
    static const zero_kind kinds[] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};
    for (size_t k = 0; k < 3; k++) {
        float expected[WIDE], got[WIDE], tied[WIDE];
        if (kinds[k] == ZERO_PARAM) toy_fill(NULL, "wide", 0, WIDE, expected);
        if (kinds[k] != ZERO_PARAM) memset(expected, 0, sizeof expected);
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            uint64_t first = ranges[i].first, count = ranges[i].count;
            float some[WIDE];
            for (uint64_t e = 0; e < count; e++)
                some[e] = expected[first + e] = (float)(1000 * (i + 1) + e) + 0.5f;
            CHECK_INT(zero_engine_put(p->engine, "wide", kinds[k], some, first, count), ZERO_OK);
            memset(got, 0xff, sizeof got);
            CHECK_INT(zero_engine_get(p->engine, "wide", kinds[k], got, 0, WIDE), ZERO_OK);
            CHECK_BYTES(got, expected, sizeof got);
            CHECK_INT(zero_engine_get(p->engine, "tied", kinds[k], tied, 0, WIDE), ZERO_OK);
            CHECK_BYTES(tied, expected, sizeof tied);
            memset(got, 0xff, sizeof got);
            CHECK_INT(zero_engine_get(p->engine, "wide", kinds[k], got, first, count), ZERO_OK);
            CHECK_BYTES(got, expected + first, count * sizeof *got);
        }
    }
    float tiny[TINY] = {1, 2, 3, 4, 5}, got[TINY], fixed = 7;
    CHECK_INT(zero_engine_put(p->engine, "tiny", ZERO_PARAM, tiny, 0, TINY), ZERO_OK);
    CHECK_INT(zero_engine_get(p->engine, "tiny", ZERO_PARAM, got, 0, TINY), ZERO_OK);
    CHECK_BYTES(got, tiny, sizeof got);
    CHECK_INT(zero_engine_put(p->engine, "fixed", ZERO_PARAM, &fixed, 39, 1), ZERO_OK);
    /* The forward sees it. */
    CHECK_INT(zero_micro_begin(p->engine, ZERO_EVAL), ZERO_OK);
    CHECK_INT(zero_forward_begin(p->unit[0]), ZERO_OK);
    for (int i = 0; i < TINY; i++) CHECK_DOUBLE(toy_load(s->compute, p->slot[1].param, i), tiny[i], 0);
    CHECK_INT(zero_forward_end(p->unit[0]), ZERO_OK);
    CHECK_INT(zero_forward_begin(p->unit[1]), ZERO_OK);
    CHECK_DOUBLE(toy_load(s->compute, p->slot[2].param, 39), 7, 0);
    CHECK_INT(zero_forward_end(p->unit[1]), ZERO_OK);
    CHECK_INT(zero_engine_flush(p->engine), ZERO_OK); /* no rank leaves while another gathers ahead */
}

/* ---- the mean gradient ---- */

/* The sum over ranks of what they added up (last), or the sum over micro-steps of what ranks added (every). A
 * tied parameter's two uses come one after another in every micro-step. What a rank adds up is in the type of
 * compute, as is the sum over ranks where it is the last one. */
static float summed(float weight, uint64_t i, const struct toy_setup *s, int uses) {
    int every = !strcmp(s->mode, "every");
    uint32_t outer = every ? MICRO_STEPS : 1, inner = every ? 1 : MICRO_STEPS;
    float total = 0;
    for (uint32_t o = 0; o < outer; o++) {
        float ranks = 0;
        for (uint32_t r = 0; r < s->ranks; r++) {
            float own = 0;
            for (uint32_t m = 0; m < inner; m++)
                for (int u = 0; u < uses; u++)
                    own = toy_round(s->compute, own + plain_gradient(weight, i, r, every ? o : m));
            ranks += own;
        }
        total += every ? ranks : toy_round(s->compute, ranks);
    }
    return total;
}

static void check_gradient(struct plain *p, const struct toy_setup *s, const char *name, uint64_t count,
                           int uses) {
    float weights[WIDE], got[WIDE], expected[WIDE];
    float mean = (float)(1.0 / (s->ranks * MICRO_STEPS * (double)zero_engine_loss_scale(p->engine)));
    toy_fill(NULL, name, 0, count, weights);
    for (uint64_t i = 0; i < count; i++)
        expected[i] = summed(toy_round(s->compute, weights[i]), i, s, uses) * mean;
    CHECK_INT(zero_engine_get(p->engine, name, ZERO_GRAD, got, 0, count), ZERO_OK);
    CHECK_BYTES(got, expected, count * sizeof *got);
    CHECK_INT(zero_engine_get(p->engine, name, ZERO_GRAD, got, count / 2, 1), ZERO_OK);
    CHECK_BYTES(got, expected + count / 2, sizeof *got);
}

static void gradients(struct plain *p, const struct toy_setup *s) {
    float one;
    zero_step_info info = {.struct_size = sizeof info};
    CHECK_INT(zero_engine_get(p->engine, "wide", ZERO_GRAD, &one, 0, 1), ZERO_E_ORDER);
    CHECK_INT(plain_pass(p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_engine_get(p->engine, "wide", ZERO_GRAD, &one, 0, 1), ZERO_E_ORDER);
    CHECK_INT(plain_pass(p, ZERO_TRAIN, 1), ZERO_OK);
    check_gradient(p, s, "wide", WIDE, 2);
    check_gradient(p, s, "tiny", TINY, 1);
    check_gradient(p, s, "other", 33, 1);
    CHECK_INT(zero_engine_get(p->engine, "fixed", ZERO_GRAD, &one, 0, 1), ZERO_E_ARGUMENT);
    /* Reading changed nothing: the step goes on from there. */
    if (!CHECK_INT(zero_engine_step(p->engine, &info), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    CHECK_INT(info.step, 1);
    CHECK_INT(info.skipped, 0);
    CHECK_INT(zero_engine_get(p->engine, "wide", ZERO_GRAD, &one, 0, 1), ZERO_E_ORDER);
}

/* ---- put, then train, is to have started there ---- */

static void shifted_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    toy_fill(user, param, first, count, out);
    for (uint64_t i = 0; i < count; i++) out[i] += (float)(first + i);
}

static void put_is_a_start(struct plain *p, const struct toy_setup *s) {
    char put[33], filled[33];
    CHECK_INT(plain_step(p, MICRO_STEPS, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(p->engine, toy_fill, NULL), ZERO_OK); /* states and step count start anew */
    for (uint32_t i = 0; i < PARAMS - 1; i++) {
        float values[WIDE];
        shifted_fill(NULL, params[i].name, 0, params[i].count, values);
        CHECK_INT(zero_engine_put(p->engine, params[i].name, ZERO_PARAM, values, 0, params[i].count),
                  ZERO_OK);
    }
    for (int i = 0; i < 3; i++) CHECK_INT(plain_step(p, MICRO_STEPS, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(p->engine, put), ZERO_OK);
    CHECK_INT(zero_engine_fill(p->engine, shifted_fill, NULL), ZERO_OK);
    for (int i = 0; i < 3; i++) CHECK_INT(plain_step(p, MICRO_STEPS, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(p->engine, filled), ZERO_OK);
    CHECK_STRING(put, filled);
}

/* ---- the hash ---- */

static char first_hash[33];

/* The same for the same weights everywhere (the first run, at stage 0 on one rank, leaves it). */
static void hash_is_of_weights(struct plain *p, const struct toy_setup *s) {
    char hash[33], other[33];
    CHECK_INT(zero_engine_hash(p->engine, hash), ZERO_OK);
    CHECK_INT(strlen(hash), 32);
    if (s->stage == 0 && s->ranks == 1) strcpy(first_hash, hash);
    CHECK_STRING(hash, first_hash);

    float value, negated, pair[2], swapped[2], zero = 0, minus_zero = -0.0f;
    CHECK_INT(zero_engine_get(p->engine, "wide", ZERO_PARAM, &value, 170, 1), ZERO_OK);
    negated = -value;
    zero_engine_put(p->engine, "wide", ZERO_PARAM, &negated, 170, 1);
    zero_engine_hash(p->engine, other);
    CHECK(strcmp(other, hash) != 0);
    zero_engine_put(p->engine, "wide", ZERO_PARAM, &value, 170, 1);
    zero_engine_hash(p->engine, other);
    CHECK_STRING(other, hash);

    zero_engine_get(p->engine, "wide", ZERO_PARAM, pair, 79, 2);
    swapped[0] = pair[1], swapped[1] = pair[0];
    zero_engine_put(p->engine, "wide", ZERO_PARAM, swapped, 79, 2);
    zero_engine_hash(p->engine, other);
    CHECK(strcmp(other, hash) != 0);

    /* The sign of zero counts; so do frozen parameters; optimizer state does not. */
    zero_engine_put(p->engine, "fixed", ZERO_PARAM, &zero, 3, 1);
    zero_engine_hash(p->engine, hash);
    zero_engine_put(p->engine, "fixed", ZERO_PARAM, &minus_zero, 3, 1);
    zero_engine_hash(p->engine, other);
    CHECK(strcmp(other, hash) != 0);
    zero_engine_put(p->engine, "wide", ZERO_STATE0, &value, 3, 1);
    zero_engine_hash(p->engine, hash);
    CHECK_STRING(hash, other);
}

/* Equal values under two names: exchanging the names is seen, the order of declaration is not. */
static void by_first_letter(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(first + i) + (param[0] == ((const char *)user)[0] ? 100 : 0);
}

static void hash_of(const struct plain_param *two, const char *large, char out[33]) {
    char json[2048];
    struct toy_setup s = toy_setup_default();
    struct plain p;
    toy_config(&s, json, sizeof json);
    zero_engine *engine = zero_engine_init(json);
    if (CHECK(engine) && CHECK_INT(plain_open(&p, engine, two, 2, NULL), ZERO_OK)) {
        CHECK_INT(zero_engine_fill(engine, by_first_letter, (void *)large), ZERO_OK);
        CHECK_INT(zero_engine_hash(engine, out), ZERO_OK);
    }
    zero_engine_destroy(engine);
}

static void hash_is_of_names(void) {
    static const struct plain_param xy[] = {{"u", "x", 20, 0, NULL}, {"u", "y", 20, 0, NULL}};
    static const struct plain_param yx[] = {{"u", "y", 20, 0, NULL}, {"v", "x", 20, 0, NULL}};
    char a[33], b[33], c[33];
    hash_of(xy, "x", a);
    hash_of(xy, "y", b);
    hash_of(yx, "x", c);
    CHECK(strcmp(a, b) != 0);
    CHECK_STRING(c, a);
}

int main(void) {
    everywhere(put_and_get);
    everywhere(gradients);
    everywhere_in(ZERO_BF16, 1, GRADIENTS_ON_DRIVE, gradients);
    everywhere(put_is_a_start);
    everywhere(hash_is_of_weights);
    hash_is_of_names();
    return check_end();
}
