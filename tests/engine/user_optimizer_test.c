/* A host's own optimizer: AdamW through zero_engine_set_optimizer must end in the bits of the engine's, at all stages,
 * tiers and types; one with one state and one with none must end alike everywhere; checkpoints know them by name. */
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

/* ---- three optimizers ---- */

static void adamw_prepare(void *user, const zero_optimizer_params *p, uint64_t step, float scalars[16]) {
    struct optimizer_scalars out;
    struct optimizer_params params = {.lr = p->lr,
                                      .beta1 = p->beta1,
                                      .beta2 = p->beta2,
                                      .eps = p->eps,
                                      .weight_decay = p->weight_decay,
                                      .bias_correction = true};
    optimizer_find("adamw")->prepare(&params, step, &out);
    memcpy(scalars, out.value, sizeof out.value);
}

static void adamw_update(void *user, float *weight, float *m, float *v, const float *gradient, float scale,
                         const float *scalars, uint64_t count) {
    struct optimizer_scalars s = {{0}, NULL};
    memcpy(s.value, scalars, sizeof s.value);
    optimizer_find("adamw")->update[KERNEL_SCALAR](weight, m, v, gradient, scale, &s, count);
}

enum { LR, DECAY, KEEP };

static void simple_prepare(void *user, const zero_optimizer_params *p, uint64_t step, float scalars[16]) {
    scalars[LR] = (float)p->lr, scalars[DECAY] = (float)p->weight_decay, scalars[KEEP] = (float)p->beta1;
}

/* Signum (Bernstein et al. 2018): the sign of a mean of gradients. */
static void signum(void *user, float *weight, float *mean, float *none, const float *gradient, float scale,
                   const float *s, uint64_t count) {
    CHECK(none == NULL);
    for (uint64_t i = 0; i < count; i++) {
        mean[i] = s[KEEP] * mean[i] + (1 - s[KEEP]) * (gradient[i] * scale);
        float sign = (float)((mean[i] > 0) - (mean[i] < 0));
        weight[i] -= s[LR] * (sign + s[DECAY] * weight[i]);
    }
}

static void descent(void *user, float *weight, float *none, float *none_either, const float *gradient,
                    float scale, const float *s, uint64_t count) {
    CHECK(!none && !none_either);
    for (uint64_t i = 0; i < count; i++) weight[i] -= s[LR] * (gradient[i] * scale + s[DECAY] * weight[i]);
}

static const zero_optimizer brought[] = {
    {.struct_size = sizeof(zero_optimizer),
     .name = "my_adamw",
     .states = 2,
     .rounds_states = 1,
     .prepare = adamw_prepare,
     .update = adamw_update,
     .state_names = {"m", "v"}},
    {.struct_size = sizeof(zero_optimizer),
     .name = "signum",
     .states = 1,
     .prepare = simple_prepare,
     .update = signum,
     .state_names = {"mean"}},
    {.struct_size = sizeof(zero_optimizer), .name = "descent", .prepare = simple_prepare, .update = descent},
};

static void set_adamw(zero_engine *e) { CHECK_INT(zero_engine_set_optimizer(e, &brought[0]), ZERO_OK); }
static void set_signum(zero_engine *e) { CHECK_INT(zero_engine_set_optimizer(e, &brought[1]), ZERO_OK); }
static void set_descent(zero_engine *e) { CHECK_INT(zero_engine_set_optimizer(e, &brought[2]), ZERO_OK); }

/* ---- over stages, tiers and types ---- */

static void check_all(struct toy_setup s, const char *hash, const char *what) {
    static struct toy_result got;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (int t = 0; t < TOY_TIERS; t++) {
            s.tiers = toy_tiers[t].json;
            if (s.stage < toy_tiers[t].stage_min) continue;
            toy_train(&s, &got);
            if (!CHECK_STRING(got.error, "") || !CHECK_STRING(got.hash, hash))
                fprintf(stderr, "in %s at stage %u, %s\n", what, s.stage, toy_tiers[t].name);
        }
}

static void the_same_as_the_engines(void) {
    static const char *const more[] = {"", ", \"bf16\": {\"enabled\": true}",
                                       ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        static struct toy_result expected;
        struct toy_setup s = toy_setup_default();
        char extra[256];
        snprintf(extra, sizeof extra, ", \"param_groups\": [{\"match\": \"*.b\", \"lr\": 0.01}]%s", more[i]);
        s.extra = extra;
        toy_train(&s, &expected);
        s.begin = set_adamw;
        check_all(s, expected.hash, extra);
    }
}

static void fewer_states(void) {
    static struct toy_result signs, slopes;
    struct toy_setup s = toy_setup_default();
    s.steps = 8; /* then the loss has fallen */
    s.optimizer = "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.002, \"weight_decay\": 0.1}}";
    s.begin = set_signum;
    toy_train(&s, &signs);
    check_all(s, signs.hash, "signum");
    s.begin = set_descent;
    toy_train(&s, &slopes);
    check_all(s, slopes.hash, "descent");
    CHECK(strcmp(signs.hash, slopes.hash) != 0);
    CHECK(signs.loss[s.steps - 1] < signs.loss[0]);
    CHECK_INT(slopes.plan.state_bytes, 0);
    CHECK(signs.plan.state_bytes > 0);
}

/* ---- beside an optimizer that keeps more ---- */

/* What one optimizer does not keep reads as zero, and a fill clears nothing in its place: the memory there is another array's. */
static void beside_adamw(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param two[] = {{"x", "x", 3000, 0, NULL}, {"y", "y", 3000, 0, NULL}};
    static float state[3000], average[3000];
    struct plain p;
    CHECK_INT(zero_engine_set_optimizer(engine, &brought[2]), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, two, 2, NULL), ZERO_OK);
    for (int fills = 0; fills < 2; fills++) {
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
        for (int k = 0; k < 2; k++) {
            CHECK_INT(zero_engine_get(engine, "x", (zero_kind)(ZERO_STATE0 + k), state, 0, 3000), ZERO_OK);
            for (int i = 0; i < 3000 && CHECK_DOUBLE(state[i], 0, 0);) i++;
            CHECK_INT(zero_engine_get(engine, "y", (zero_kind)(ZERO_STATE0 + k), state, 0, 3000), ZERO_OK);
            CHECK(state[0] != 0 || state[1] != 0);
        }
        CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
        if (!user) continue;
        for (int i = 0; i < 2; i++) { /* the averages begin as the weights */
            CHECK_INT(zero_engine_get(engine, two[i].name, ZERO_EMA, average, 0, 3000), ZERO_OK);
            CHECK_INT(zero_engine_get(engine, two[i].name, ZERO_PARAM, state, 0, 3000), ZERO_OK);
            CHECK_BYTES(average, state, sizeof state);
        }
    }
}

static void beside(void) {
    static const char *const ema[] = {"", ", \"ema\": {\"decay\": 0.5}"};
    for (int averages = 0; averages < 2; averages++)
        for (int drive = 0; drive < 2; drive++) {
            char json[600];
            snprintf(
                json, sizeof json,
                "{\"train_micro_batch_size_per_gpu\": 1, \"param_groups\": [{\"match\": \"y\", "
                "\"optimizer\": \"AdamW\"}]%s%s}",
                ema[averages],
                drive
                    ? ", \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\", "
                      "\"nvme_path\": \"/tmp\"}}"
                    : "");
            ranks_run(1, json, beside_adamw, averages ? json : NULL);
        }
}

/* ---- checkpoints, refusals ---- */

static const struct plain_param model[] = {{"a", "a", 3000, 0, NULL}};

static void save_and_load(zero_engine *engine, uint32_t rank, void *user) {
    const char *dir = user;
    struct plain p;
    char before[33], after[33];
    static float mean[3000];
    CHECK_INT(zero_engine_set_optimizer(engine, &brought[1]), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, model, 1, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, before), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_get(engine, "a", ZERO_STATE0, mean, 0, 3000), ZERO_OK);
    CHECK(mean[0] != 0);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, after), ZERO_OK);
    CHECK_STRING(after, before);
    CHECK_INT(zero_engine_set_optimizer(engine, &brought[0]), ZERO_E_ORDER);
}

/* Each would make checkpoints that no load can read. */
static void names_of_states(zero_engine *engine) {
    static const char *const bad[][2] = {
        {"mean", "ema"}, {"param", "v"}, {"m", "m"}, {"m", "m#1"}, {"m", "m/norms"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        zero_optimizer two = brought[0];
        memcpy(two.state_names, bad[i], sizeof bad[i]);
        if (!CHECK_INT(zero_engine_set_optimizer(engine, &two), ZERO_E_ARGUMENT))
            fprintf(stderr, "with states %s and %s\n", bad[i][0], bad[i][1]);
        CHECK_CONTAINS(zero_last_error(), "cannot be the name of a state");
    }
}

static void another_refuses(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_optimizer same = brought[2], engines = brought[0], latin = brought[2];
    same.name = "adamw", latin.name = "caf\xe9";
    CHECK_INT(zero_engine_set_optimizer(engine, &latin), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "a name and at most 2 states with names of at most 31 bytes of UTF-8");
    names_of_states(engine);
    engines.states = 3;
    CHECK_INT(zero_engine_set_optimizer(engine, &same), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "choose another name");
    CHECK_INT(zero_engine_set_optimizer(engine, &engines), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_optimizer(engine, &brought[2]), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, model, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, user), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(),
                   "was saved with optimizer signum of 1 states, and this run has descent of 0");
}

/* A checkpoint has the beginnings of two optimizers' names, and no half of a character. */
static void long_names(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param two[] = {{"x", "x", 300, 0, NULL}, {"y", "y", 300, 0, NULL}};
    struct plain p;
    zero_optimizer named = brought[2];
    named.name = "descente \xc3\xa0 l'\xc3\xa9t\xc3\xa9"; /* its bytes 15 and 16 are one letter */
    CHECK_INT(zero_engine_set_optimizer(engine, &named), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, two, 2, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, user), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, user), ZERO_OK);
}

static void rounding_needs_leave(zero_engine *engine, uint32_t rank, void *user) {
    CHECK_INT(zero_engine_set_optimizer(engine, &brought[1]), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(zero_last_error(), "bf16.bf16_optimizer_states");
}

static void known_by_name(void) {
    static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1}";
    char dir[600];
    snprintf(dir, sizeof dir, "%s/signum", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    ranks_run(1, json, save_and_load, dir);
    ranks_run(1, json, another_refuses, dir);
    strcat(dir, "-long");
    ranks_run(1,
              "{\"train_micro_batch_size_per_gpu\": 1, \"param_groups\": [{\"match\": \"y\", \"optimizer\": "
              "\"AdamW\"}]}",
              long_names, dir);
    ranks_run(1,
              "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true, "
              "\"bf16_optimizer_states\": true}}",
              rounding_needs_leave, NULL);
}

int main(void) {
    the_same_as_the_engines();
    fewer_states();
    beside();
    known_by_name();
    return check_end();
}
