/* A checkpoint saved at any stage, number of ranks and mesh loads at any other: the same weights, moments and counters,
 * and, where ranks and mesh are the same, the same next steps, byte for byte.
 * checkpoint_test: every two worlds, and every two stages, though not each with each of the others; --whole: all */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

/* "long" has several blocks on any rank up to 3; the odd sizes leave gaps and padding. "other" is fp32 in all runs. */
enum { LONG = 150001, STEPS_BEFORE = 3, STEPS_AFTER = 4, MICRO_STEPS = 1 };
static const struct plain_param params[] = {
    {"a", "long", LONG, 0, NULL},          {"a", "tiny", 5, ZERO_NO_DECAY, NULL},
    {"b", "fixed", 40, ZERO_FROZEN, NULL}, {"b", "other", 333, ZERO_KEEP_FP32, NULL},
    {"c", "tied", LONG, 0, "long"},        {"c", "last", 17, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params, KINDS = 3 };
static const zero_kind kinds[KINDS] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};

/* Ranks, and which of them share. */
static const struct world {
    uint32_t ranks;
    const char *mesh, *name; /* keys of zero_optimization, with a comma after each */
    uint32_t first_stage, in_narrow;
} worlds[] = {{1, "", "1", 0, 1},
              {2, "", "2", 0, 1},
              {3, "", "3", 0, 1},
              {4, "", "4", 0, 0},
              {8, "", "8", 0, 0},
              {4, "\"mics_shard_size\": 2, ", "2x2", 2, 1},
              {4, "\"zero_hpz_partition_size\": 2, ", "4_hpz", 3, 1},
              {6, "\"mics_shard_size\": 3, ", "3x2", 3, 0}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

struct state {
    float value[KINDS][LONG + 5 + 40 + 333 + 17];
    uint64_t steps;
    char hash[33];
};

/* The state for a number of ranks; it is the same at every stage. */
static struct state at_save[WORLDS], at_end[WORLDS];

static void take_state(zero_engine *engine, struct state *out) {
    for (int k = 0; k < KINDS; k++) {
        float *at = out->value[k];
        for (int i = 0; i < PARAMS; i++) {
            if (params[i].tied_to) continue;
            if (k && params[i].flags & ZERO_FROZEN)
                memset(at, 0, params[i].count * sizeof *at);
            else
                CHECK_INT(zero_engine_get(engine, params[i].name, kinds[k], at, 0, params[i].count), ZERO_OK);
            at += params[i].count;
        }
    }
    out->steps = zero_engine_steps(engine);
    CHECK_INT(zero_engine_hash(engine, out->hash), ZERO_OK);
}

/* All ranks take part; rank 0 keeps what it is, or compares it. */
static void keep_or_check(zero_engine *engine, bool keeps, struct state *reference) {
    struct state *got = calloc(1, sizeof *got);
    take_state(engine, got);
    if (zero_engine_rank(engine) == 0 && keeps) *reference = *got;
    if (zero_engine_rank(engine) == 0) {
        for (int k = 0; k < KINDS; k++) CHECK_BYTES(got->value[k], reference->value[k], sizeof got->value[k]);
        CHECK_INT(got->steps, reference->steps);
        CHECK_STRING(got->hash, reference->hash);
    }
    free(got);
}

/* Bytes of the host program: more than a call moves at once. The other ranks have them from rank 0; they are in one save. */
enum { OWN_BYTES = 300001 };

static void make_own(uint8_t *bytes) {
    for (int i = 0; i < OWN_BYTES; i++) bytes[i] = (uint8_t)(i * 7 + i / 256);
}

static void give_own(zero_engine *engine, uint8_t *bytes) {
    if (!zero_engine_rank(engine)) make_own(bytes);
    CHECK_INT(zero_engine_broadcast(engine, bytes, OWN_BYTES), ZERO_OK);
    CHECK_INT(zero_engine_broadcast_from(engine, zero_engine_size(engine) - 1, bytes, OWN_BYTES), ZERO_OK);
    CHECK_INT(zero_engine_set_file(engine, bytes, OWN_BYTES), ZERO_OK);
}

/* Each rank's own: its number and a note of its own. */
static void check_rank_files(const char *dir, uint64_t step, uint32_t ranks, bool there) {
    for (uint32_t rank = 0; rank <= ranks; rank++) {
        char path[600], expected[32], found[32] = "";
        snprintf(path, sizeof path, "%s/step_%08d/program-%05d.bin", dir, (int)step, (int)rank);
        snprintf(expected, sizeof expected, "of rank %d", (int)rank);
        FILE *file = fopen(path, "rb");
        if (!CHECK_INT(file != NULL, there && rank < ranks) || !file) continue;
        CHECK_INT(fread(found, 1, sizeof found - 1, file), strlen(expected));
        CHECK_STRING(found, expected);
        fclose(file);
    }
}

static void check_own(const char *dir, uint64_t step, bool there) {
    static uint8_t expected[OWN_BYTES], found[OWN_BYTES + 1];
    char path[600];
    snprintf(path, sizeof path, "%s/step_%08d/program.bin", dir, (int)step);
    FILE *file = fopen(path, "rb");
    if (!CHECK_INT(file != NULL, there) || !file) return;
    make_own(expected);
    CHECK_INT(fread(found, 1, sizeof found, file), OWN_BYTES);
    CHECK_BYTES(found, expected, OWN_BYTES);
    fclose(file);
}

/* ---- one run each ---- */

struct run {
    uint32_t world, stage; /* index into worlds */
    char dir[512];
    uint32_t tier; /* index into tiers */
    zero_dtype compute;
    bool keeps;        /* the first run of its number of ranks, whose state is the reference */
    uint32_t saved_by; /* index into worlds */
};

static void train(struct plain *p, int steps) {
    for (int i = 0; i < steps; i++) CHECK_INT(plain_step(p, MICRO_STEPS, NULL), ZERO_OK);
}

static void save_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, STEPS_BEFORE);
    CHECK_INT(zero_engine_set_lr(engine, 0, 0.015), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "samples", "4711"), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "gone", "x"), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "gone", NULL), ZERO_OK);
    uint8_t *own = calloc(1, OWN_BYTES);
    char of_rank[32];
    give_own(engine, own);
    snprintf(of_rank, sizeof of_rank, "of rank %d", (int)zero_engine_rank(engine));
    CHECK_INT(zero_engine_set_rank_file(engine, of_rank, strlen(of_rank)), ZERO_OK);
    if (!CHECK_INT(zero_engine_save(engine, run->dir), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    free(own);
    if (!rank) check_own(run->dir, zero_engine_steps(engine), true);
    if (!rank) check_rank_files(run->dir, zero_engine_steps(engine), zero_engine_size(engine), true);
    keep_or_check(engine, run->keeps, &at_save[run->world]);
    train(&p, STEPS_AFTER);
    keep_or_check(engine, run->keeps, &at_end[run->world]);
}

static void load_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_declare(&p, engine, params, PARAMS), ZERO_OK)) return;
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    char nowhere[600];
    snprintf(nowhere, sizeof nowhere, "%s_nowhere", run->dir);
    CHECK_INT(zero_engine_load(engine, nowhere), ZERO_E_ABSENT);
    CHECK_INT(zero_engine_load(engine, getenv("TEST_TMPDIR")), ZERO_E_ABSENT); /* it has other files */
    if (!CHECK_INT(zero_engine_load(engine, run->dir), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    CHECK_STRING(zero_engine_note(engine, "samples"), "4711");
    CHECK(zero_engine_note(engine, "gone") == NULL);
    CHECK_DOUBLE(zero_engine_lr(engine, 0), 0.015, 0);
    keep_or_check(engine, false, &at_save[run->saved_by]);
    if (run->saved_by != run->world) return; /* other ranks add in another order */
    train(&p, STEPS_AFTER);
    keep_or_check(engine, false, &at_end[run->saved_by]);
    char again[600];
    snprintf(again, sizeof again, "%s_again", run->dir);
    CHECK_INT(zero_engine_save(engine, again), ZERO_OK);
    if (!rank) check_own(again, zero_engine_steps(engine), false);
    if (!rank) check_rank_files(again, zero_engine_steps(engine), zero_engine_size(engine), false);
}

/* ---- all of them ---- */

#define ON_WITH(what, device, more)                                                                          \
    "\"offload_" what "\": {\"device\": \"" device "\", \"nvme_path\": \"%1$s/swap\"" more "}"
#define ON(what, device) ON_WITH(what, device, "")

/* Keys of zero_optimization; the last one is of stage 3. */
static const char *const tiers[] = {ON("optimizer", "none"), ON("optimizer", "cpu"), ON("optimizer", "nvme"),
                                    ON_WITH("optimizer", "nvme", ", \"ratio\": 0.5"),
                                    ON("optimizer", "nvme") ", " ON("param", "nvme")};

static void run_on(struct run *run, ranks_fn body) {
    char json[4096], on[1500], keys[1600];
    struct toy_setup s = toy_setup_default();
    int failures = atomic_load(&check_failures);
    s.ranks = worlds[run->world].ranks, s.stage = run->stage, s.compute = run->compute;
    s.scale_power = 4, s.scale_window = 2; /* fp16's scale grows while it trains, and goes on from there */
    uint32_t tier = run->tier % (run->stage == 3 ? 5 : 4);
    snprintf(on, sizeof on, tiers[tier], getenv("TEST_TMPDIR"));
    snprintf(keys, sizeof keys, "%s%s", worlds[run->world].mesh, on);
    s.tiers = keys;
    toy_config(&s, json, sizeof json);
    ranks_run(s.ranks, json, body, run);
    if (atomic_load(&check_failures) != failures)
        fprintf(stderr, "in %s, type %d, %u ranks, stage %u, %s\n", run->dir, run->compute, s.ranks, s.stage,
                keys);
}

static void place(char out[512], uint32_t world, uint32_t stage) {
    snprintf(out, 512, "%s/by_%s_at_%u", getenv("TEST_TMPDIR"), worlds[world].name, stage);
}

/* In a short run, one stage of each world: every world, stage, tier and type is there, but not with each of the others. */
static bool is_there(const struct run *run, uint32_t world, uint32_t stage) {
    uint32_t first = worlds[world].first_stage, only = first + (world + run->compute) % (4 - first);
    if (seeds_divisor() > 1 && stage != only) return false;
    return stage >= first && (run->compute == ZERO_F32 || worlds[world].in_narrow);
}

static void save_all(struct run *run) {
    bool kept[WORLDS] = {false};
    for (run->world = 0; run->world < WORLDS; run->world++)
        for (run->stage = 0; run->stage <= 3; run->stage++) {
            run->tier = run->stage + run->world;
            place(run->dir, run->world, run->stage);
            if (!is_there(run, run->world, run->stage)) continue;
            run->keeps = !kept[run->world];
            kept[run->world] = true;
            run_on(run, save_rank);
        }
}

static bool whole;

/* With other ranks, a stage loads what one stage has saved, another one for each two worlds; where worlds have not all stages, two, or each
 * one. In a short run, a few of the pairs. */
static bool is_pair(const struct run *run, uint32_t stage, uint64_t number) {
    uint32_t loads = worlds[run->world].first_stage, saves = worlds[run->saved_by].first_stage;
    uint32_t stages = 4 - (loads > saves ? loads : saves); /* of the world that has fewer */
    if (seeds_divisor() > 1) return seeds_take(number);
    return whole || run->saved_by == run->world ||
           (run->stage + stage + run->world + run->saved_by) % stages == 0;
}

static void load_all(struct run *run) {
    uint64_t pairs = 0;
    for (run->world = 0; run->world < WORLDS; run->world++)
        for (run->stage = 0; run->stage <= 3; run->stage++)
            for (run->saved_by = 0; run->saved_by < WORLDS; run->saved_by++)
                for (uint32_t stage = 0; stage <= 3; stage++) {
                    run->tier = run->stage + stage + run->saved_by;
                    place(run->dir, run->saved_by, stage);
                    if (is_there(run, run->world, run->stage) && is_there(run, run->saved_by, stage) &&
                        is_pair(run, stage, pairs++))
                        run_on(run, load_rank);
                }
}

/* All worlds in fp32, some in narrow types. */
int main(int argc, char **argv) {
    whole = argc > 1 && !strcmp(argv[1], "--whole");
    for (zero_dtype compute = ZERO_F32; compute <= ZERO_F16; compute++) {
        struct run run = {.compute = compute};
        save_all(&run);
        load_all(&run);
    }
    return check_end();
}
