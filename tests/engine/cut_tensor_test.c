/* A tensor that is cut into several parameters (zero_param.tensor) trains to the bits of the whole one, and its checkpoints and hash do
 * not tell how it was cut: at every stage, number of ranks and tier. What cannot be a part is refused. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

/* Rows of "table" in each part; the unit "h" is used between the first part and the others. */
enum { ROWS = 300, COLUMNS = 5, PARTS_MAX = 4, STEPS = 2 };
static const struct cut {
    uint32_t parts, rows[PARTS_MAX];
} cuts[] = {{1, {ROWS}}, {2, {1, 299}}, {4, {100, 100, 99, 1}}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static const struct place {
    const char *name, *keys; /* of zero_optimization */
    uint32_t stage, ranks;
} places[] = {
    {"0", "", 0, 2},
    {"1", "", 1, 3},
    {"2_cpu", ", \"offload_optimizer\": {\"device\": \"cpu\"}", 2, 2},
    {"3", "", 3, 2},
    {"3_alone", "", 3, 1},
    {"3_nvme",
     ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}, \"offload_param\": "
     "{\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}",
     3, 2}};
enum { PLACES = sizeof places / sizeof *places };

struct model {
    zero_engine *engine;
    const struct cut *cut;
    zero_unit *unit[PARTS_MAX + 1];
    zero_slot slot[PARTS_MAX + 1];
    uint64_t first[PARTS_MAX + 1], count[PARTS_MAX + 1];
    uint32_t units;
};

static void add(struct model *m, const char *name, const char *tensor, uint32_t rows, uint64_t first) {
    uint32_t u = m->units++;
    m->first[u] = first, m->count[u] = (uint64_t)rows * COLUMNS;
    zero_param param = {.struct_size = sizeof param,
                        .name = name,
                        .dims = 2,
                        .shape = {rows, COLUMNS},
                        .tensor = tensor,
                        .slot = &m->slot[u]};
    CHECK_INT(zero_engine_add_unit(m->engine, name, &m->unit[u]), ZERO_OK);
    if (!CHECK_INT(zero_unit_add_param(m->unit[u], &param), ZERO_OK))
        fprintf(stderr, "%s\n", zero_last_error());
}

static void declare(struct model *m, zero_engine *engine, const struct cut *cut) {
    *m = (struct model){.engine = engine, .cut = cut};
    uint64_t first = 0;
    for (uint32_t i = 0; i < cut->parts; first += cut->rows[i++] * COLUMNS) {
        char name[32];
        snprintf(name, sizeof name, "table.%u", i);
        add(m, cut->parts > 1 ? name : "table", cut->parts > 1 ? "table" : NULL, cut->rows[i], first);
        if (i == 0) add(m, "h", NULL, 7, 0);
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
}

/* The gradient of an element depends on its weight and on its place in the tensor. */
static void step(struct model *m) {
    uint32_t rank = zero_engine_rank(m->engine);
    CHECK_INT(zero_micro_begin(m->engine, ZERO_TRAIN), ZERO_OK);
    for (uint32_t u = 0; u < m->units; u++) {
        CHECK_INT(zero_forward_begin(m->unit[u]), ZERO_OK);
        CHECK_INT(zero_forward_end(m->unit[u]), ZERO_OK);
    }
    for (uint32_t u = m->units; u-- > 0;) {
        if (!CHECK_INT(zero_backward_begin(m->unit[u]), ZERO_OK)) return;
        const float *weight = m->slot[u].param;
        float *grad = m->slot[u].grad;
        for (uint64_t k = 0; k < m->count[u]; k++)
            grad[k] = weight[k] / 8 + (float)((m->first[u] + k + 3 * rank) % 7) - 3;
        CHECK_INT(zero_backward_end(m->unit[u]), ZERO_OK);
    }
    CHECK_INT(zero_engine_step(m->engine, NULL), ZERO_OK);
}

static void check_hash(zero_engine *engine, char expected[33]) {
    char hash[33];
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (zero_engine_rank(engine) == 0 && !*expected) strcpy(expected, hash);
    if (zero_engine_rank(engine) == 0) CHECK_STRING(hash, expected);
}

struct run {
    const struct place *place;
    const struct cut *cut;
    const char *dir;     /* saves there */
    const char *from;    /* or loads from there */
    char *saved, *ended; /* hashes: of the first run with this number of ranks; "" until then */
};

static void train_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct model m;
    if (!CHECK(engine)) return;
    declare(&m, engine, run->cut);
    if (run->from) {
        if (!CHECK_INT(zero_engine_load(engine, run->from), ZERO_OK))
            fprintf(stderr, "%s\n", zero_last_error());
    } else {
        CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
        for (int i = 0; i < STEPS; i++) step(&m);
        if (!CHECK_INT(zero_engine_save(engine, run->dir), ZERO_OK))
            fprintf(stderr, "%s\n", zero_last_error());
    }
    check_hash(engine, run->saved);
    if (!run->ended) return; /* other ranks add in another order */
    for (int i = 0; i < STEPS; i++) step(&m);
    check_hash(engine, run->ended);
}

static void run_at(const struct run *run, bool async) {
    char json[2048], keys[1024];
    int failures = atomic_load(&check_failures);
    snprintf(keys, sizeof keys, run->place->keys, getenv("TEST_TMPDIR"));
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0, \"threads\": 1, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}, "
             "\"checkpoint\": {\"async\": %s}, "
             "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": 40%s}}",
             async ? "true" : "false", run->place->stage, keys);
    ranks_run(run->place->ranks, json, train_rank, (void *)run);
    if (atomic_load(&check_failures) != failures)
        fprintf(stderr, "at %s, in %u parts, from %s\n", run->place->name, run->cut->parts,
                run->from ? run->from : "the beginning");
}

static void place_of(char out[512], size_t place, size_t cut) {
    snprintf(out, 512, "%s/at_%s_in_%zu", getenv("TEST_TMPDIR"), places[place].name, cut);
}

/* All pairs of places and cuts would add nothing: a load sees elements, whoever saved them. */
static void every_cut(void) {
    char saved[4][33] = {{0}}, ended[4][33] = {{0}}, dir[512];
    for (size_t p = 0; p < PLACES; p++)
        for (size_t c = 0; c < CUTS; c++) {
            uint32_t ranks = places[p].ranks;
            place_of(dir, p, c);
            run_at(&(struct run){&places[p], &cuts[c], dir, NULL, saved[ranks], ended[ranks]}, (p + c) % 2);
        }
    for (size_t p = 0; p < PLACES; p++)
        for (size_t c = 0; c < CUTS; c++)
            for (size_t other = 0; other < CUTS; other++) {
                size_t from = (p + 1 + c) % PLACES;
                bool same = places[from].ranks == places[p].ranks;
                place_of(dir, from, other);
                run_at(&(struct run){&places[p], &cuts[c], NULL, dir, saved[places[from].ranks],
                                     same ? ended[places[p].ranks] : NULL},
                       false);
            }
}

/* ---- mistakes ---- */

static void refused(zero_unit *unit, zero_param param, const char *says) {
    static zero_slot slot;
    param.struct_size = sizeof param, param.slot = &slot, param.dims = 2;
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), says);
}

static void mistakes(zero_engine *engine, uint32_t rank, void *user) {
    struct model m = {.engine = engine};
    zero_unit *unit;
    add(&m, "first", "table", 3, 0);
    add(&m, "whole", NULL, 3, 0);
    CHECK_INT(zero_engine_add_unit(engine, "more", &unit), ZERO_OK);
    refused(unit, (zero_param){.name = "a", .shape = {3, 4}, .tensor = "table"}, "those of \"first\" differ");
    refused(unit, (zero_param){.name = "a", .shape = {3, 5}, .tensor = "table", .flags = ZERO_FROZEN},
            "the same flags, group and tensor_rows");
    refused(unit, (zero_param){.name = "a", .shape = {3, 5}, .tensor = "whole"},
            "has the name of a parameter");
    refused(unit, (zero_param){.name = "table", .shape = {3, 5}}, "has the name of a parameter");
    refused(unit, (zero_param){.name = "a", .shape = {3, 5}, .tensor = "table", .tied_to = "first"},
            "leave tensor NULL");
}

int main(void) {
    every_cut();
    ranks_run(1, "{\"train_batch_size\": 1}", mistakes, NULL);
    return check_end();
}
