/* What commit finds of an earlier run's shadow: none, usable, another's, damaged. Each has its sentence, and a fill or a load never
 * writes over one unless the host says so. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

static const struct plain_param model[] = {{"a", "a.w", 9000, 0, NULL}, {"b", "b.w", 7000, 0, NULL}},
                                other_model[] = {{"a", "a.w", 9000, 0, NULL}, {"b", "b.v", 7000, 0, NULL}},
                                adding_model[] = {{"a", "a.w", 9000, ZERO_ADDS_GRAD, NULL},
                                                  {"b", "b.w", 7000, 0, NULL}};
enum { PARAMS = 2, PAGE = 4096 };

struct setting {
    uint32_t stage, ranks;
    bool decoupled; /* AdamW */
    const struct plain_param *model;
    const uint64_t *columns; /* of plain_declare_matrices */
};
static const struct setting usual = {2, 2, true, model, NULL};

/* What a run does after commit, and what it should find. */
struct visit {
    const char *is;                   /* for messages */
    zero_shadow kind;                 /* to be found */
    uint64_t step;                    /* and its step */
    const char *text;                 /* part of the sentence */
    bool discards, recovers, guarded; /* guarded: a fill and a load are refused without `discards` */
    bool refused;                     /* recovery */
    uint64_t steps;                   /* then trained and flushed */
    const struct setting *setting;
};

static const char *root(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static void refused(zero_status status, zero_status code, const char *call, const char *part) {
    char begin[64];
    CHECK_INT(status, code);
    snprintf(begin, sizeof begin, "%s: ", call);
    CHECK(strncmp(zero_last_error(), begin, strlen(begin)) == 0);
    CHECK_CONTAINS(zero_last_error(), part);
}

static void check_guard(zero_engine *engine, const struct visit *v) {
    const char *leave = "or let this run write over it (zero_engine_discard_shadow)";
    refused(zero_engine_fill(engine, toy_fill, NULL), ZERO_E_ORDER, "zero_engine_fill", leave);
    CHECK_CONTAINS(zero_last_error(), v->text);
    refused(zero_engine_load(engine, "/no/such/place"), ZERO_E_ORDER, "zero_engine_load", leave);
    refused(zero_engine_load_weights(engine, "/no/such/place"), ZERO_E_ORDER, "zero_engine_load_weights",
            leave);
}

static void visit(zero_engine *engine, uint32_t rank, void *user) {
    const struct visit *v = user;
    struct plain p;
    uint64_t step = 99;
    if (!CHECK(engine)) return;
    CHECK_INT(zero_engine_shadow(engine, NULL), ZERO_SHADOW_NONE);
    refused(zero_engine_discard_shadow(engine), ZERO_E_ORDER, "zero_engine_discard_shadow",
            "after zero_engine_commit");
    CHECK_INT(plain_declare_matrices(&p, engine, v->setting->model, PARAMS, v->setting->columns), ZERO_OK);
    if (!CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    bool good = CHECK_INT(zero_engine_shadow(engine, &step), v->kind);
    good = CHECK_INT(step, v->step) && good;
    good = CHECK_CONTAINS(zero_engine_shadow_text(engine), v->text) && good;
    if (!good && !rank) fprintf(stderr, "in \"%s\"\n", v->is);
    if (v->guarded) check_guard(engine, v);
    if (v->refused)
        refused(zero_engine_recover(engine, toy_fill, NULL, NULL), ZERO_E_IO, "zero_engine_recover", v->text);
    /* Nothing is frozen, so nothing is filled. */
    if (v->recovers) CHECK_INT(zero_engine_recover(engine, NULL, NULL, &step), ZERO_OK);
    if (v->recovers) CHECK_INT(step, v->step);
    if (v->discards) CHECK_INT(zero_engine_discard_shadow(engine), ZERO_OK);
    if (!v->recovers && (v->discards || !v->guarded))
        CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
    for (uint64_t s = 0; s < v->steps; s++) CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    if (v->steps) CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    /* From here on the shadow is this run's own, and so is the decision. */
    if (v->recovers || v->steps) CHECK_INT(zero_engine_load(engine, "/no/such/place"), ZERO_E_ABSENT);
}

static void make_json(const struct setting *s, const char *place, char *out, size_t size) {
    snprintf(out, size,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"Adam\", "
             "\"params\": {\"adam_w_mode\": %s}}, "
             "\"zero_optimization\": {\"stage\": %u, \"sub_group_size\": 2048, \"offload_optimizer\": "
             "{\"device\": \"nvme\", \"nvme_path\": \"%s/%s\"}}, \"nvme\": {\"shadow\": true}}",
             s->decoupled ? "true" : "false", s->stage, root(), place);
}

static void run(const char *place, const struct visit *given) {
    struct visit v = *given;
    char json[1500];
    if (!v.setting) v.setting = &usual;
    make_json(v.setting, place, json, sizeof json);
    ranks_run(v.setting->ranks, json, visit, &v);
}

#define VISIT(place, ...) run(place, &(struct visit){.is = place, __VA_ARGS__})
#define BEGIN(place, n) VISIT(place, .kind = ZERO_SHADOW_NONE, .text = "keeps no whole step", .steps = n)
#define GO_ON(place, n)                                                                                      \
    VISIT(place, .kind = ZERO_SHADOW_USABLE, .step = n, .text = "go on from it (zero_engine_recover)",       \
          .guarded = true, .recovers = true)

static void none_and_usable(void) {
    VISIT("usable", .kind = ZERO_SHADOW_NONE, .text = "keeps no whole step", .refused = true);
    BEGIN("usable", 3);
    GO_ON("usable", 3); /* the refused fill and load lost nothing, */
    GO_ON("usable", 3);
    VISIT("usable", .kind = ZERO_SHADOW_USABLE, .step = 3, .text = "step 3", .discards = true, .steps = 1);
    GO_ON("usable", 1); /* and an allowed one did */
}

static void others(void) {
    static const uint64_t columns[PARAMS] = {90, 0};
    static const struct setting stage = {1, 2, true, model, NULL}, named = {2, 2, true, other_model, NULL},
                                shaped = {2, 2, true, model, columns}, adam = {2, 2, false, model, NULL},
                                adds = {2, 2, true, adding_model, NULL};
    static const struct {
        const struct setting *setting;
        const char *text;
    } cases[] = {{&stage, "its stage is 2, and here it is 1"},
                 {&named, "its model has other units or parameters"},
                 {&shaped, "its model has other units or parameters"},
                 {&adam, "its optimizer is adamw, and here it is adam"}};
    BEGIN("other", 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        VISIT("other", .kind = ZERO_SHADOW_OTHER, .step = 2, .text = cases[i].text, .guarded = true,
              .refused = true, .setting = cases[i].setting);
    /* The host may now add to gradients that it overwrote: what is stored is the same. */
    VISIT("other", .kind = ZERO_SHADOW_USABLE, .step = 2, .text = "go on from it", .guarded = true,
          .recovers = true, .setting = &adds);
    VISIT("other", .kind = ZERO_SHADOW_OTHER, .step = 2, .text = "step 2 of another run", .discards = true,
          .steps = 1, .setting = &stage);
    VISIT("other", .kind = ZERO_SHADOW_OTHER, .step = 1, .text = "its stage is 1, and here it is 2",
          .refused = true, .guarded = true);
}

/* Files of another number of ranks lie beside, and stay. */
static void other_ranks(void) {
    static const struct setting one = {2, 1, true, model, NULL};
    BEGIN("ranks", 2);
    VISIT("ranks", .kind = ZERO_SHADOW_OTHER_RANKS, .step = 2, .text = "of a run on 2 ranks, and here are 1",
          .refused = true, .steps = 1, .setting = &one);
    GO_ON("ranks", 2);
    VISIT("ranks", .kind = ZERO_SHADOW_USABLE, .step = 1, .text = "step 1", .recovers = true,
          .setting = &one);
}

static void path_of(const char *place, uint32_t rank, char out[700]) {
    snprintf(out, 700, "%s/%s/zero-shadow-%05u-of-00002", root(), place, rank);
}

static void harm_page(const char *place, uint32_t rank, uint32_t page) {
    char path[700], byte = 0x55;
    path_of(place, rank, path);
    int file = open(path, O_RDWR);
    CHECK(file >= 0);
    CHECK_INT(pwrite(file, &byte, 1, page * PAGE + 100), 1);
    CHECK_INT(fsync(file), 0);
    close(file);
}

static void damaged(void) {
    const char *text = "is damaged, or of another version";
    BEGIN("damaged", 2);
    harm_page("damaged", 0, 0), harm_page("damaged", 0, 1);
    VISIT("damaged", .kind = ZERO_SHADOW_USABLE, .step = 2, .text = "step 2",
          .recovers = true); /* rank 1 knows it */
    harm_page("damaged", 1, 0), harm_page("damaged", 1, 1);
    VISIT("damaged", .kind = ZERO_SHADOW_DAMAGED, .text = text, .guarded = true, .refused = true);
    VISIT("damaged", .kind = ZERO_SHADOW_DAMAGED, .text = text, .discards = true, .steps = 1);
    GO_ON("damaged", 1);
}

static void missing(void) {
    char path[700];
    BEGIN("missing", 2);
    path_of("missing", 1, path);
    CHECK_INT(unlink(path), 0);
    VISIT("missing", .kind = ZERO_SHADOW_DAMAGED, .step = 2, .text = "the files of rank 1 are missing",
          .guarded = true, .refused = true);
}

/* Commit refuses files of another size, says what they keep, and makes them anew for a host that says so. */
static void another_size(void) {
    static const struct plain_param small[] = {{"a", "a.w", 900, 0, NULL}};
    static const struct setting one = {2, 1, true, model, NULL};
    zero_runtime runtime = {.struct_size = sizeof runtime};
    struct plain p;
    char json[1500];
    VISIT("size", .kind = ZERO_SHADOW_NONE, .text = "no whole step", .steps = 3, .setting = &one);
    make_json(&one, "size", json, sizeof json);
    for (runtime.discard_shadow = 0; runtime.discard_shadow < 2; runtime.discard_shadow++) {
        zero_engine *engine = zero_engine_init_with(json, &runtime);
        CHECK_INT(plain_declare(&p, engine, small, 1), ZERO_OK);
        CHECK_INT(zero_engine_commit(engine, NULL), runtime.discard_shadow ? ZERO_OK : ZERO_E_IO);
        if (!runtime.discard_shadow)
            CHECK_CONTAINS(zero_last_error(), "another model or configuration, at step 3,");
        zero_engine_destroy(engine);
        if (runtime.discard_shadow) break;
        VISIT("size", .kind = ZERO_SHADOW_USABLE, .step = 3, .text = "step 3", .recovers = true,
              .setting = &one);
    }
    /* It is the same leave. */
    VISIT("again", .kind = ZERO_SHADOW_NONE, .text = "no whole step", .steps = 1, .setting = &one);
    make_json(&one, "again", json, sizeof json);
    runtime.discard_shadow = 1;
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    zero_engine_destroy(engine);
}

int main(void) {
    none_and_usable();
    others();
    other_ranks();
    damaged();
    missing();
    another_size();
    return check_end();
}
