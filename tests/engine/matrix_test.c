/* All ways to train the same model, cell by cell: stages x types x meshes x accumulation x tiers x scaling x
 * recomputation x frozen parameters x interrupted passes x parameters that stay fp32 x updates in the backward x optimizers, on
 * four ranks. The head is tied to the embedding, and frozen with it or not; in
 * vertical order it has weights of its own.
 * Weights equal the serial oracle's byte for byte, so all cells of one class (type, order of additions over the mesh,
 * accumulation and its mode, scaling before the sum, frozen parameters, kept ones, clipping) are equal. The allocated memory equals the
 * plan. A cell that is not possible is refused with the reason. Then, class by class, the test prints the loss after
 * 200 steps beside that of fp32 on the plain mesh; not in a short run.
 *
 * matrix_test: cells that contain every pair of values of any two axes, and all refused cells.
 * matrix_test --whole: all cells. A new axis is a row of `axes`. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

enum { RANKS = 4, STEPS = 5, LONG_STEPS = 200, VALUES_MAX = 7 };

struct value {
    const char *name;
    uint32_t number;  /* the setup's field, as the axis' function has it */
    const char *zero; /* keys of zero_optimization, each after a comma */
    const char *comm; /* keys of comm, each after a comma */
    const char *mode;
    int stage3;  /* only there; `why` says what it is refused with elsewhere */
    int sharded; /* the same: not at stage 0 */
    const char *why;
    uint32_t shard_ranks;
    const char *extra;  /* more keys, each after a comma */
    const char *groups; /* param_groups, each after a comma */
    float factor;
    int sum;
    int vertical;          /* the head is not tied */
    int clipped;           /* with updates in the backward, and a shadow */
    const char *no_shadow; /* refused with one */
    uint32_t cpu_bytes;    /* memory.cpu has so many bytes more than the least */
};

/* An evaluation between forward and backward; passes that are begun and cancelled. */
enum { EVALUATED = 1, CANCELLED = 2 };

enum { MUON = 1, LAMB = 2 };

#define CLIP 0.07 /* some norms are above it, some below */
#define WHOLE_PARAMETERS "parameters are whole on every rank"
#define WHOLE_GRADIENTS "gradients are whole on every rank"
#define NVME "{\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"
#define TIERED "{\"device\": \"tiered\", \"nvme_path\": \"/tmp\", \"ratio\": 0.6}"
#define NO_DRIVE "nvme.shadow: it keeps optimizer state on a drive"
#define NO_GRADIENTS ", \"offload_gradients\": {\"device\": \"none\"}"

enum {
    STAGE,
    TYPE,
    MESH,
    ACCUMULATION,
    TIER,
    SCALING,
    AGAIN,
    FROZEN,
    PASSES,
    KEPT,
    UPDATES,
    OPTIMIZER,
    AXES_COUNT
};

static const struct axis {
    const char *name;
    struct value value[VALUES_MAX];
} axes[AXES_COUNT] = {
    [STAGE] = {"stage",
               {{.name = "stage 0", .number = 0},
                {.name = "stage 1", .number = 1},
                {.name = "stage 2", .number = 2},
                {.name = "stage 3", .number = 3}}},
    [TYPE] = {"type",
              {{.name = "fp32", .number = ZERO_F32},
               {.name = "bf16", .number = ZERO_BF16},
               {.name = "fp16", .number = ZERO_F16}}},
    [MESH] =
        {"mesh",
         {{.name = "plain"},
          {.name = "HSDP 2x2", .zero = ", \"mics_shard_size\": 2", .shard_ranks = 2},
          {.name = "hpZ 2", .zero = ", \"zero_hpz_partition_size\": 2", .stage3 = 1, .why = WHOLE_PARAMETERS},
          {.name = "kept",
           .comm = ", \"reshard_after_forward\": false",
           .stage3 = 1,
           .why = WHOLE_PARAMETERS}}},
    [ACCUMULATION] = {"accumulation",
                      {{.name = "1 micro-step", .number = 1, .mode = "auto"},
                       {.name = "3, last", .number = 3, .mode = "last"},
                       {.name = "3, every", .number = 3, .mode = "every"},
                       {.name = "last, vert.", .number = 3, .mode = "last", .vertical = 1},
                       {.name = "every, vert.", .number = 3, .mode = "every", .vertical = 1}}},
    [TIER] =
        {"tier",
         {{.name = "device", .zero = "", .no_shadow = NO_DRIVE},
          {.name = "cpu", .no_shadow = NO_DRIVE, .zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}"},
          {.name = "nvme", .zero = ", \"offload_optimizer\": " NVME NO_GRADIENTS},
          {.name = "all on nvme", /* below stage 3 the parameters are on the device all the same */
           .zero = ", \"offload_optimizer\": " NVME ", \"offload_param\": " NVME NO_GRADIENTS},
          {.name = "grads too",
           .sharded = 1,
           .why = WHOLE_GRADIENTS,
           .zero = ", \"offload_optimizer\": " NVME ", \"offload_gradients\": {\"device\": \"nvme\"}"},
          {.name = "no memory", .zero = ", \"offload_optimizer\": " NVME ", \"offload_param\": " NVME},
          {.name = "tiered",
           .zero = ", \"offload_optimizer\": " TIERED,
           .no_shadow = "nvme.shadow keeps all optimizer state on the drive",
           .cpu_bytes = 40700}}},
    [SCALING] = {"scaling",
                 {{.name = "mean"},
                  {.name = "prescaled", .extra = ", \"prescale_gradients\": true", .factor = 1.0f / RANKS},
                  {.name = "predivided", .extra = ", \"gradient_predivide_factor\": 3", .factor = 1.0f / 3},
                  {.name = "sum", .extra = ", \"gradient_allreduce_op\": \"sum\"", .sum = 1}}},
    [AGAIN] = {"recomputation",
               {{.name = "all kept"},
                {.name = "every block", .number = 1},
                {.name = "every 2nd", .number = 2}}},
    [FROZEN] = {"frozen",
                {{.name = "fix"},
                 {.name = "embedding too",
                  .number = 1 << 0 | 1 << 1,
                  .groups = ", {\"match\": \"in.*\", \"frozen\": true}"},
                 {.name = "parts of b too",
                  .number = 1 << 5 | 1 << 7,
                  .groups = ", {\"match\": [\"b.w\", \"b.g\"], \"frozen\": true}"}}},
    [PASSES] = {"passes",
                {{.name = "straight"},
                 {.name = "evaluated", .number = EVALUATED},
                 {.name = "cancelled", .number = CANCELLED},
                 {.name = "both", .number = EVALUATED | CANCELLED}}},
    [KEPT] = {"kept in fp32", /* the embedding, with the head that is tied to it; a.g; b.w; fix.f */
              {{.name = "none"}, {.name = "some", .number = 1 << 0 | 1 << 4 | 1 << 5 | 1 << 11}}},
    [UPDATES] = {"updates", /* in the backward, without clipping; or with it, and a shadow */
                 {{.name = "at the step"},
                  {.name = "in backward", .number = 1},
                  {.name = "again", .number = 1, .clipped = 1}}},
    [OPTIMIZER] = {"optimizer",
                   {{.name = "AdamW"}, {.name = "Muon", .number = MUON}, {.name = "Lamb", .number = LAMB}}},
};

struct cell {
    uint8_t value[AXES_COUNT];
};

static const struct value *value_of(const struct cell *c, int axis) {
    return &axes[axis].value[c->value[axis]];
}

static uint32_t values_of(int axis) {
    static uint32_t counts[AXES_COUNT];
    while (counts[axis] < VALUES_MAX && axes[axis].value[counts[axis]].name) counts[axis]++;
    return counts[axis];
}

/* Why the cell cannot be, by its values of the first axes alone; NULL: it can. */
static const char *refusal(const struct cell *c, int axes) {
    for (int a = 0; a < axes; a++)
        if ((value_of(c, a)->stage3 && value_of(c, STAGE)->number != 3) ||
            (value_of(c, a)->sharded && value_of(c, STAGE)->number == 0))
            return value_of(c, a)->why;
    if (axes <= UPDATES) return NULL;
    int clipped = value_of(c, UPDATES)->clipped, skips = value_of(c, TYPE)->number == ZERO_F16;
    if (clipped && value_of(c, TIER)->no_shadow) return value_of(c, TIER)->no_shadow;
    if (skips && value_of(c, UPDATES)->number && !clipped)
        return "a step whose fp16 gradients overflow is skipped";
    return NULL;
}

struct keys {
    char zero[2048], comm[128], extra[320], groups[160];
};

/* A shadow's files have names, so they are in a directory of this test. */
static void add_keys(const char *add, int shadow, char *keys) {
    const char *own = getenv("TEST_TMPDIR"), *path;
    for (; add && shadow && own && (path = strstr(add, "/tmp")); add = path + strlen("/tmp")) {
        strncat(keys, add, (size_t)(path - add));
        strcat(keys, own);
    }
    strcat(keys, add ? add : "");
}

static void set_up(const struct cell *c, struct toy_setup *s, struct keys *keys) {
    *s = toy_setup_default();
    s->ranks = RANKS;
    s->steps = STEPS;
    s->scale_power = 6;
    s->stage = value_of(c, STAGE)->number;
    s->compute = (zero_dtype)value_of(c, TYPE)->number;
    s->micro_steps = value_of(c, ACCUMULATION)->number;
    s->mode = value_of(c, ACCUMULATION)->mode;
    s->vertical = value_of(c, ACCUMULATION)->vertical;
    s->shard_ranks = value_of(c, MESH)->shard_ranks;
    s->recompute = value_of(c, AGAIN)->number;
    s->frozen = value_of(c, FROZEN)->number;
    s->kept = value_of(c, KEPT)->number;
    s->updates = value_of(c, UPDATES)->number;
    s->shadow = value_of(c, UPDATES)->clipped;
    if (s->updates) s->clip = s->shadow ? CLIP : 0;
    s->interrupt = value_of(c, PASSES)->number & EVALUATED;
    s->cancels = value_of(c, PASSES)->number & CANCELLED ? 1 + c->value[STAGE] : 0;
    memset(keys, 0, sizeof *keys);
    for (int a = 0; a < AXES_COUNT; a++) {
        add_keys(value_of(c, a)->zero, s->shadow, keys->zero);
        strcat(keys->comm, value_of(c, a)->comm ? value_of(c, a)->comm : "");
        strcat(keys->groups, value_of(c, a)->groups ? value_of(c, a)->groups : "");
        strcat(keys->extra, value_of(c, a)->extra ? value_of(c, a)->extra : "");
    }
    s->tiers = *keys->zero ? keys->zero + 2 : NULL; /* without the first comma */
    s->comm = keys->comm;
    s->groups = *keys->groups ? keys->groups : NULL;
    s->muon = value_of(c, OPTIMIZER)->number == MUON;
    s->lamb = value_of(c, OPTIMIZER)->number == LAMB;
    s->extra = keys->extra; /* limit_memory adds to it */
    s->factor = value_of(c, SCALING)->factor;
    s->sum = value_of(c, SCALING)->sum;
}

static void print_cell(const struct cell *c, const char *outcome) {
    for (int a = 0; a < AXES_COUNT; a++) printf("%-13s", value_of(c, a)->name);
    printf("%s\n", outcome);
}

/* ---- classes: what the oracle made of the like ---- */

static const struct toy_result *expected(const struct cell *c, const struct toy_setup *s) {
    static struct toy_result *known[VALUES_MAX][VALUES_MAX][VALUES_MAX][VALUES_MAX][2][2][3][3];
    struct toy_result **k =
        &known[c->value[TYPE]][c->value[ACCUMULATION]][c->value[SCALING]][c->value[FROZEN]]
              [s->shard_ranks > 0][c->value[KEPT]][c->value[UPDATES]][c->value[OPTIMIZER]];
    if (!*k) toy_oracle(s, *k = calloc(1, sizeof **k));
    return *k;
}

/* State in all three tiers: the device has what the ratio says, and the host's memory room for some of the rest. */
static void limit_memory(const struct cell *c, struct toy_setup *s, struct keys *keys,
                         struct toy_result *got) {
    static const char memory[] = ", \"memory\": {\"cpu\": %llu}", says[] = "the plan needs ";
    uint32_t more = value_of(c, TIER)->cpu_bytes;
    size_t end = strlen(keys->extra);
    if (!more) return;
    snprintf(keys->extra + end, sizeof keys->extra - end, memory, 1ull);
    toy_train(s, got);
    const char *need = strstr(got->error, says);
    keys->extra[end] = 0;
    if (CHECK_INT(got->status, ZERO_E_BUDGET) && CHECK(need))
        snprintf(keys->extra + end, sizeof keys->extra - end, memory,
                 strtoull(need + strlen(says), NULL, 10) + more);
}

static uint64_t
    repeated[2]; /* steps that were updated in the backward alone, and those that were updated again */
static uint64_t in_three_tiers; /* cells */

static int run(const struct cell *c) {
    static struct toy_result got;
    struct toy_setup s;
    struct keys keys;
    char outcome[640];
    const char *why = refusal(c, AXES_COUNT);
    set_up(c, &s, &keys);
    if (!why) limit_memory(c, &s, &keys, &got);
    toy_train(&s, &got);
    if (why) {
        int same = CHECK(got.status == ZERO_E_CONFIG || got.status == ZERO_E_UNSUPPORTED) &
                   CHECK_CONTAINS(got.error, why);
        snprintf(outcome, sizeof outcome, "refused: %s", got.error);
        print_cell(c, outcome);
        return same;
    }
    const struct toy_result *e = expected(c, &s);
    int same = CHECK_STRING(got.error, "") && CHECK_INT(got.status, ZERO_OK) &&
               CHECK_BYTES(got.weights, e->weights, sizeof got.weights) && CHECK_INT(got.skipped, e->skipped);
    for (uint32_t i = 0, above = 0; i < STEPS && same && s.shadow; i++) {
        above += got.norm[i] > CLIP;
        repeated[got.norm[i] > CLIP]++;
        if (i + 1 == STEPS) same = CHECK_INT(got.repeated, above);
    }
    for (uint32_t i = 0; i < STEPS && same; i++)
        same = CHECK_DOUBLE(got.norm[i], e->norm[i], 1e-12) & CHECK_DOUBLE(got.loss[i], e->loss[i], 1e-12);
    for (int t = 0; t < ZERO_TIERS && same; t++) {
        same = CHECK_INT(got.measured[t], got.planned[t]);
        same &= CHECK_INT(got.planned[t], got.plan.bytes[t]);
    }
    snprintf(outcome, sizeof outcome, "%s, %llu + %llu + %llu bytes planned and taken",
             same ? "the class' weights" : "FAILED", (unsigned long long)got.measured[0],
             (unsigned long long)got.measured[1], (unsigned long long)got.measured[2]);
    bool tiered = value_of(c, TIER)->cpu_bytes; /* staging may have taken more than all state does */
    if (tiered) CHECK(got.measured[ZERO_CPU]);
    in_three_tiers += tiered && got.measured[ZERO_NVME];
    print_cell(c, outcome);
    return same;
}

/* ---- which cells ---- */

static uint32_t cells_of_all(void) {
    uint32_t total = 1;
    for (int a = 0; a < AXES_COUNT; a++) total *= values_of(a);
    return total;
}

static struct cell cell_at(uint32_t index) {
    struct cell c;
    for (int a = 0; a < AXES_COUNT; index /= values_of(a), a++) c.value[a] = (uint8_t)(index % values_of(a));
    return c;
}

/* Pairs of values that a chosen cell has. */
static uint8_t had[AXES_COUNT][VALUES_MAX][AXES_COUNT][VALUES_MAX];

static bool is_new(int a, uint32_t value, int b, uint32_t other) { return !had[a][value][b][other]; }

/* New pairs of a cell's value of `axis` with its values of the axes before. */
static uint32_t new_pairs(const struct cell *c, int axis) {
    uint32_t count = 0;
    for (int b = 0; b < axis; b++) count += is_new(axis, c->value[axis], b, c->value[b]);
    return count;
}

struct search {
    struct cell cell, best;
    uint32_t most;                  /* new pairs of the best cell */
    uint32_t later[AXES_COUNT + 1]; /* at most so many new pairs between the axes from here on */
};

/* At most so many new pairs, of which one value or both are of the axes from `axis` on. */
static uint32_t bound(struct search *s, int axis) {
    uint32_t total = s->later[axis];
    for (int a = axis; a < AXES_COUNT; a++) {
        uint32_t most = 0;
        for (uint32_t v = 0; v < values_of(a); v++) {
            uint32_t pairs = 0;
            for (int b = 0; b < axis; b++) pairs += is_new(a, v, b, s->cell.value[b]);
            if (pairs > most) most = pairs;
        }
        total += most;
    }
    return total;
}

static void search(struct search *s, int axis, uint32_t pairs) {
    if (axis == AXES_COUNT && pairs > s->most) s->most = pairs, s->best = s->cell;
    if (axis == AXES_COUNT || pairs + bound(s, axis) <= s->most) return;
    for (uint8_t v = 0; v < values_of(axis); v++) {
        s->cell.value[axis] = v;
        if (!refusal(&s->cell, axis + 1)) search(s, axis + 1, pairs + new_pairs(&s->cell, axis));
    }
}

static bool any_new(int a, int b) {
    for (uint32_t v = 0; v < values_of(a); v++)
        for (uint32_t w = 0; w < values_of(b); w++)
            if (is_new(a, v, b, w)) return true;
    return false;
}

/* Greedy: a cell with the most new pairs. False: no cell has a new pair; what is refused is no cover. */
static bool next_of_pairs(struct cell *out) {
    struct search s = {0};
    for (int a = AXES_COUNT - 1; a >= 0; a--) {
        s.later[a] = s.later[a + 1];
        for (int b = a + 1; b < AXES_COUNT; b++) s.later[a] += any_new(b, a);
    }
    search(&s, 0, 0);
    for (int a = 0; a < AXES_COUNT && s.most; a++)
        for (int b = 0; b < a; b++) had[a][s.best.value[a]][b][s.best.value[b]] = 1;
    *out = s.best;
    return s.most > 0;
}

/* One cell for each reason and stage: all other values are the first ones. */
static int run_refused(void) {
    int runs = 0;
    for (uint8_t stage = 0; stage < values_of(STAGE); stage++)
        for (int a = STAGE + 1; a < AXES_COUNT; a++)
            for (uint8_t v = 0; v < values_of(a); v++) {
                struct cell c = {.value = {[STAGE] = stage}};
                c.value[a] = v;
                bool bound = value_of(&c, a)->stage3 || value_of(&c, a)->sharded;
                if (bound && refusal(&c, AXES_COUNT)) run(&c), runs++;
            }
    return runs;
}

/* ---- between classes ---- */

/* The loss that narrow types and other orders of additions cost, with one stream of data. */
static void losses(void) {
    static struct toy_result reference, got;
    printf("loss after %d steps, beside fp32 on the plain mesh at stage 0\n", LONG_STEPS);
    for (uint8_t n = 0; n < values_of(ACCUMULATION); n++)
        for (uint8_t type = 0; type < values_of(TYPE); type++)
            for (uint8_t mesh = 0; mesh < 2; mesh++) {
                struct cell c = {
                    .value = {
                        [STAGE] = mesh || type ? 3 : 0, [TYPE] = type, [MESH] = mesh, [ACCUMULATION] = n}};
                struct toy_setup s;
                struct keys keys;
                char outcome[128];
                set_up(&c, &s, &keys);
                s.steps = LONG_STEPS;
                toy_train(&s, &got);
                if (!type && !mesh) reference = got;
                double loss = got.loss[LONG_STEPS - 1], far = loss - reference.loss[LONG_STEPS - 1];
                CHECK_STRING(got.error, "");
                CHECK_DOUBLE(loss, reference.loss[LONG_STEPS - 1], type ? 2e-2 : 1e-3);
                snprintf(outcome, sizeof outcome, "%.6f, %+.2e", loss, far);
                print_cell(&c, outcome);
            }
}

int main(int argc, char **argv) {
    int whole = argc > 1 && !strcmp(argv[1], "--whole"), runs = 0;
    uint32_t all = cells_of_all();
    struct cell c;
    for (uint32_t i = 0; i < all && whole; i++, runs++) c = cell_at(i), run(&c);
    if (!whole) runs = run_refused();
    for (; !whole && next_of_pairs(&c); runs++) run(&c);
    if (seeds_divisor() == 1) losses();
    CHECK(repeated[false] && repeated[true] && in_three_tiers);
    printf("%d of %u cells\n", runs, all);
    return check_end();
}
