/* Power failures during the save of a checkpoint: every prefix of the save's calls, with every kind of loss that fsync
 * allows. After the failure either the old checkpoint or the new one loads, complete. If the drive lies about fsync,
 * the load may also fail with a message that names the damage, but it never gives a mixture.
 * crash_test [ROUNDS]: of losses at each prefix. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/disk.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

static const struct plain_param params[] = {{"a", "long", 20001, 0, NULL},
                                            {"a", "tiny", 5, ZERO_NO_DECAY, NULL},
                                            {"b", "fixed", 40, ZERO_FROZEN, NULL}};
enum { PARAMS = sizeof params / sizeof *params, RANKS = 2, ROUNDS = 150 };

static const char root[] = "/run";

/* ---- what a checkpoint comes to ---- */

struct state {
    float value[3][20001 + 5 + 40];
    uint64_t steps;
};

static void take_state(zero_engine *engine, struct state *out) {
    static const zero_kind kinds[] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};
    memset(out, 0, sizeof *out);
    for (int k = 0; k < 3; k++) {
        float *at = out->value[k];
        for (int i = 0; i < PARAMS; at += params[i++].count)
            if (!k || !(params[i].flags & ZERO_FROZEN))
                zero_engine_get(engine, params[i].name, kinds[k], at, 0, params[i].count);
    }
    out->steps = zero_engine_steps(engine);
}

/* ---- the run that is interrupted ---- */

struct scenario {
    const char *name;
    int before;  /* steps until the first save; 0: there is no checkpoint yet */
    int between; /* steps from there to the save that is interrupted; 0: other weights under the same name */
    int prune;
    bool no_exchange;
    struct disk *disk;
    struct state old, new;
};

static void change_weights(struct plain *p) {
    float value = 4711;
    for (uint64_t i = 0; i < 20001; i += 100) zero_engine_put(p->engine, "long", ZERO_PARAM, &value, i, 1);
}

static void save_twice(zero_engine *engine, uint32_t rank, void *user) {
    struct scenario *s = user;
    struct plain p;
    static struct state ignored[RANKS];
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (int i = 0; i < s->before; i++) plain_step(&p, 1, NULL);
    take_state(engine, rank ? &ignored[rank] : &s->old);
    if (s->before) CHECK_INT(engine_save(engine, disk_storage(s->disk), root), ZERO_OK);
    double ranks = 1;
    zero_engine_sum(engine, &ranks, 1); /* all are done */
    if (rank == 0) disk_settle(s->disk);
    zero_engine_sum(engine, &ranks, 1);
    for (int i = 0; i < s->between; i++) plain_step(&p, 1, NULL);
    if (!s->between) change_weights(&p);
    take_state(engine, rank ? &ignored[rank] : &s->new);
    CHECK_INT(engine_save(engine, disk_storage(s->disk), root), ZERO_OK);
    if (s->prune) CHECK_INT(engine_prune(engine, disk_storage(s->disk), root, 1), ZERO_OK);
}

/* ---- what loads after a crash ---- */

enum ending { OLD, NEW, REFUSED, MIXED, OUTCOMES };

static enum ending load(struct disk *disk, const struct scenario *s, char sentence[512]) {
    static struct state got;
    char json[2048];
    struct plain p;
    struct toy_setup setup = toy_setup_default();
    setup.ranks = 1, setup.stage = 3;
    toy_config(&setup, json, sizeof json);
    zero_engine *engine = zero_engine_init(json);
    plain_declare(&p, engine, params, PARAMS);
    zero_engine_commit(engine, NULL);
    zero_status status = engine_load(engine, disk_storage(disk), root, 0);
    enum ending outcome = REFUSED;
    if (status) {
        snprintf(sentence, 512, "%s", zero_last_error());
    } else {
        take_state(engine, &got);
        outcome = !memcmp(&got, &s->new, sizeof got) ? NEW : !memcmp(&got, &s->old, sizeof got) ? OLD : MIXED;
    }
    zero_engine_destroy(engine);
    return outcome;
}

/* ---- exploring ---- */

struct seen {
    uint64_t *hash;
    uint32_t count, capacity;
};

static struct seen seen_create(void) {
    struct seen seen = {.capacity = 1 << 18};
    seen.hash = calloc(seen.capacity, sizeof *seen.hash);
    return seen;
}

static bool is_new(struct seen *seen, uint64_t hash) {
    for (uint32_t at = (uint32_t)(hash % seen->capacity);; at = (at + 1) % seen->capacity) {
        if (seen->hash[at] == hash) return false;
        if (seen->hash[at]) continue;
        seen->hash[at] = hash;
        seen->count++;
        return true;
    }
}

static void judge(const struct scenario *s, const struct crash *crash, enum ending outcome,
                  const char *sentence) {
    bool complete = crash->calls == disk_calls(s->disk) && !crash->fsync_lies;
    bool good = outcome == OLD || outcome == NEW;
    if (outcome == REFUSED) /* nothing to load yet; or a lying drive, and the sentence says where */
        good = strstr(sentence, root) && (crash->fsync_lies || (!s->before && strstr(sentence, "/run")));
    if (complete) good = outcome == NEW;
    check_seed(crash->seed);
    if (!CHECK(good))
        fprintf(stderr, "%s: after %u of %u calls, %u %% lost, fsync %s: outcome %d, \"%s\"\n", s->name,
                crash->calls, disk_calls(s->disk), crash->lost, crash->fsync_lies ? "lies" : "holds", outcome,
                sentence);
}

/* In a short run far fewer: the states differ in bytes of files. */
static uint32_t rounds(uint32_t all) {
    uint32_t few = seeds_divisor() > 1 ? all / 20 : all;
    return few ? few : 1;
}

static void explore(struct scenario *s, bool fsync_lies, uint32_t rounds, struct seen *all) {
    static const uint32_t losses[] = {0, 100, 50, 30, 70, 10, 90, 50, 5, 95};
    uint32_t outcomes[OUTCOMES] = {0}, calls = disk_calls(s->disk);
    struct crash crash = {.fsync_lies = fsync_lies};
    struct seen seen = seen_create();
    for (uint32_t round = 0; round < rounds; round++)
        for (crash.calls = 0; crash.calls <= calls; crash.calls++, crash.seed++) {
            crash.lost = losses[round % (sizeof losses / sizeof *losses)];
            struct disk *disk = disk_crash(s->disk, &crash);
            char sentence[512] = "";
            uint64_t hash = disk_hash(disk);
            is_new(all, hash);
            if (is_new(&seen, hash)) {
                enum ending outcome = load(disk, s, sentence);
                outcomes[outcome]++;
                judge(s, &crash, outcome, sentence);
            }
            disk_free(disk);
        }
    printf("%s, fsync %s, %u calls: %u old, %u new, %u refused, %u mixed\n", s->name,
           fsync_lies ? "lies" : "holds", calls, outcomes[OLD], outcomes[NEW], outcomes[REFUSED],
           outcomes[MIXED]);
    CHECK(s->before == 0 || fsync_lies || (outcomes[OLD] && outcomes[REFUSED] == 0));
    CHECK(outcomes[NEW]);
    free(seen.hash);
}

int main(int argc, char **argv) {
    uint32_t all = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : ROUNDS;
    static struct scenario scenarios[] = {
        {.name = "the next", .before = 2, .between = 2},
        {.name = "the next, the one before deleted", .before = 2, .between = 1, .prune = 1},
        {.name = "the same step again", .before = 2},
        {.name = "the same step again, without an exchange", .before = 2, .no_exchange = true},
        {.name = "the first", .between = 2}};
    enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };
    struct seen seen = seen_create();
    for (int i = 0; i < SCENARIOS; i++) {
        char json[2048];
        struct toy_setup setup = toy_setup_default();
        setup.ranks = RANKS, setup.stage = 3;
        toy_config(&setup, json, sizeof json);
        scenarios[i].disk = disk_create();
        if (scenarios[i].no_exchange) disk_forbid_exchange(scenarios[i].disk);
        ranks_run(RANKS, json, save_twice, &scenarios[i]);
        explore(&scenarios[i], false, rounds(all), &seen);
        explore(&scenarios[i], true, rounds(all / 6), &seen);
        disk_free(scenarios[i].disk);
    }
    printf("%u different states\n", seen.count);
    CHECK(seen.count >= 15 * rounds(all < 650 ? all : 650));
    free(seen.hash);
    return check_end();
}
