/* Training on a faulty drive: every seed is a schedule of faults on one of two ranks. A run ends either with the same
 * weights and moments as a run without faults, or with a failure that both ranks report and that stays. It never ends
 * with other bits, and it always ends.
 * offload_fault_test [FIRST SEED] [SEEDS]: of 200 schedules or more, each class of fault occurs in at least one of
 * 20, and each way of training in at least one of 40. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/disk.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/offload/faults.h"
#include "tests/seeds.h"

enum {
    RANKS = 2,
    STEPS = 3,
    COUNT = 16500,
    CHUNKS_MIN = 64,
    SECONDS_MAX = 120,
    SCRIPTS = 2,
    DIRECTIONS_KIB = 2 * COUNT * 4 / 1024 + 150 /* with the scratch of matrices */
};

/* Each rank's half of a unit has nine chunks. One parameter is frozen, one has no decay, one is persistent. */
static const struct plain_param model[] = {
    {"a", "a.w", COUNT, 0, NULL},         {"b", "b.w", COUNT, 0, NULL},          {"c", "c.w", COUNT, 0, NULL},
    {"d", "d.w", COUNT, 0, NULL},         {"e", "e.w", COUNT, 0, NULL},          {"f", "f.w", COUNT, 0, NULL},
    {"g", "g.w", COUNT, 0, NULL},         {"g", "g.b", 17, ZERO_NO_DECAY, NULL}, {"h", "h.w", COUNT, 0, NULL},
    {"h", "h.f", 3000, ZERO_FROZEN, NULL}};

enum { PARAMS = sizeof model / sizeof *model, KINDS = 3 };

/* Where whole matrices are updated: of all but the biases and frozen ones. */
static const uint64_t columns[PARAMS] = {660, 660, 660, 660, 660, 660, 660, 0, 660, 0};
static const zero_kind kinds[KINDS] = {ZERO_PARAM, ZERO_STATE0, ZERO_STATE1};

/* ---- a seed's schedule ---- */

static const enum fault harmful[] = {FAULT_EIO, FAULT_ENOSPC, FAULT_FLIPPED, FAULT_MISPLACED, FAULT_STALE};
static const enum fault benign[] = {FAULT_EINTR,
                                    FAULT_EAGAIN,
                                    FAULT_SHORT,
                                    FAULT_ONE_BYTE,
                                    FAULT_TRANSFER_REORDERED,
                                    FAULT_TRANSFER_DELAYED,
                                    FAULT_DELAYED,
                                    FAULT_REORDERED};

enum { HARMFUL = sizeof harmful / sizeof *harmful, BENIGN = sizeof benign / sizeof *benign };

/* The content of a chunk. */
static const struct format {
    const char *name, *masters, *json;
} formats[] = {
    {"fp32", "auto", ""},
    {"bf16", "split", ", \"bf16\": {\"enabled\": true}"},
    {"bf16 with whole masters", "fp32", ", \"bf16\": {\"enabled\": true}"},
    {"bf16 states", "auto", ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"},
    {"fp16", "auto", ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 4}"},
};

enum { FORMATS = sizeof formats / sizeof *formats };

/* Which of these keys a schedule has. Sums over two micro-steps, clipping and Muon change what is trained. */
enum way {
    TIERED,    /* state on the device, in host memory and on the drive */
    SUMS,      /* two micro-steps, */
    VERTICAL,  /* in one use */
    UPDATES,   /* in the backward, without clipping */
    SHADOW,    /* on the drive, */
    REPEATS,   /* with updates in the backward, which are made again: every norm is above the bound */
    PIECES,    /* the smallest */
    GRADIENTS, /* on the drive */
    MATRICES,  /* are updated whole, by Muon */
    WAYS
};

static const char *const way_names[WAYS] = {
    "tiered",        "two micro-steps",    "vertical",     "updates in the backward",
    "a shadow",      "updates made again", "small pieces", "gradients on the drive",
    "whole matrices"};

struct schedule {
    uint64_t seed;
    uint32_t stage, rank; /* rank: whose drive */
    uint32_t format;
    bool resident;             /* a part of the chunks stays in memory */
    bool shared;               /* a fifth of the state is on the device */
    bool params, state, grads; /* which of them are on the drive */
    uint32_t paths, block_bytes, depth, slots;
    bool uring, evaluates, flushes;
    bool meddles;    /* changes what is trained: the script */
    bool ways[WAYS]; /* enum way */
    bool clips;
    uint32_t piece_bytes; /* 0: the default */
    bool reloads;         /* saves a checkpoint and loads it */
    uint32_t harmed_from; /* the step before which `harm` begins; 0: with the fill */
    double harm[FAULTS];
    struct faults faults;
};

static uint32_t pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* Most seeds have one class that does harm, some two, some none; and half of the others. */
static void draw_faults(struct schedule *s, uint64_t *state) {
    static const double rates[] = {0.0005, 0.001, 0.003, 0.02};
    uint32_t harms = (0x0112 >> 4 * pick(state, 4)) & 3;
    s->faults.seed = s->seed;
    s->harmed_from = pick(state, STEPS);
    for (uint32_t i = 0; i < harms; i++) s->harm[harmful[pick(state, HARMFUL)]] = rates[pick(state, 4)];
    for (uint32_t i = 0; i < BENIGN; i++)
        if (pick(state, 2)) s->faults.probability[benign[i]] = 0.02;
}

/* A part of the state in memory has little room there. A shadow has all of it on the drive, with whole masters. */
static void draw_ways(struct schedule *s, uint64_t *state) {
    bool *ways = s->ways, fp16 = strcmp(formats[s->format].name, "fp16") == 0;
    ways[TIERED] = s->resident && pick(state, 2);
    ways[SUMS] = !s->resident && pick(state, 3) == 0;
    ways[VERTICAL] = ways[SUMS] && pick(state, 2);
    ways[SHADOW] = s->state && !s->resident && !s->shared && pick(state, 4) == 0;
    ways[UPDATES] = !ways[SHADOW] && !fp16 && pick(state, 4) == 0;
    ways[REPEATS] = ways[SHADOW] && pick(state, 3);
    ways[PIECES] = pick(state, 3) == 0;
    ways[GRADIENTS] = s->grads;
    ways[MATRICES] = !ways[UPDATES] && !ways[REPEATS] && pick(state, 3) == 0;
    if (ways[PIECES]) s->piece_bytes = 65536; /* the least */
    s->clips = !ways[UPDATES];
}

static void draw(uint64_t seed, struct schedule *s) {
    static const uint32_t blocks[] = {4096, 8192, 1 << 20}, slots[] = {1, 2, 4, 9};
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    *s = (struct schedule){.seed = seed, .stage = pick(&state, 4), .rank = pick(&state, RANKS)};
    s->params = s->stage == 3 && pick(&state, 3);
    s->state = !s->params || pick(&state, 3);
    s->paths = 1 + pick(&state, 2);
    s->block_bytes = blocks[pick(&state, 3)];
    s->depth = 1 + pick(&state, 8);
    s->slots = slots[pick(&state, 4)];
    s->uring = pick(&state, 8);
    s->evaluates = pick(&state, 2);
    s->flushes = pick(&state, 2);
    s->meddles = pick(&state, 2);
    s->format = pick(&state, 2) ? pick(&state, FORMATS) : 0;
    s->resident = s->state && pick(&state, 4) == 0;
    draw_faults(s, &state);
    s->reloads = pick(&state, 3) == 0;
    s->grads = s->state && s->stage && pick(&state, 2);
    if (s->grads && s->resident && s->slots > 2) s->slots = 2;
    s->shared = s->state && pick(&state, 4) == 0;
    draw_ways(s, &state);
}

static void begin_harm(struct schedule *s) {
    for (uint32_t i = 0; i < HARMFUL; i++) s->faults.probability[harmful[i]] = s->harm[harmful[i]];
}

static const char *directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static void describe(const struct schedule *s, FILE *file) {
    fprintf(
        file,
        "  stage %u, %s, %s%s%s%s, faults on rank %u, %u paths, blocks of %u, depth %u, slots %u%s%s%s%s;",
        s->stage, formats[s->format].name,
        s->resident ? "a part of "
        : s->shared ? "four fifths of "
                    : "",
        s->state ? "state " : "", s->params ? "parameters" : "", s->grads ? " gradients" : "", s->rank,
        s->paths, s->block_bytes, s->depth, s->slots, s->uring ? "" : ", no io_uring",
        s->evaluates ? ", evaluates" : "", s->flushes ? ", flushes" : "", s->meddles ? ", meddles" : "");
    for (int w = 0; w < WAYS; w++)
        if (s->ways[w]) fprintf(file, " %s;", way_names[w]);
    fprintf(file, "%s", s->reloads ? " saves and loads;" : "");
    fprintf(file, " harm from step %u;", s->harmed_from);
    for (int f = 0; f < FAULTS; f++)
        if (s->faults.probability[f] > 0)
            fprintf(file, " %s %g (%u)", fault_names[f], s->faults.probability[f],
                    (unsigned)atomic_load(&s->faults.fired[f]));
    fputc('\n', file);
}

/* A shadow's files stay, and are as large as its state. */
static const char *folder(const struct schedule *s) { return s->ways[SHADOW] ? "shadow" : "swap"; }

static void remove_shadow(const struct schedule *s) {
    char command[2200];
    snprintf(command, sizeof command, "rm -rf '%s/shadow.a' '%s/shadow.b'", directory(), directory());
    if (s->ways[SHADOW]) CHECK_INT(system(command), 0);
}

static void configure(const struct schedule *s, char *json, size_t capacity) {
    char path[1200], offload[3000], pieces[64] = "", memory[64] = "";
    if (s->resident)
        snprintf(memory, sizeof memory, ", \"memory\": {\"cpu\": \"%dKiB\"}",
                 (s->grads ? 640 : 400) + (s->ways[MATRICES] ? DIRECTIONS_KIB : 0));
    int used = snprintf(path, sizeof path, "[\"%s/%s.a\"", directory(), folder(s));
    used += s->paths > 1
                ? snprintf(path + used, sizeof path - (size_t)used, ", \"%s/%s.b\"", directory(), folder(s))
                : 0;
    snprintf(path + used, sizeof path - (size_t)used, "]");
    if (s->piece_bytes) snprintf(pieces, sizeof pieces, ", \"piece_bytes\": %u", s->piece_bytes);
    used = snprintf(offload, sizeof offload, "\"stage\": %u", s->stage);
    for (int k = 0; k < 2; k++)
        if (k ? s->params : s->state)
            used +=
                snprintf(offload + used, sizeof offload - (size_t)used,
                         ", \"offload_%s\": {\"device\": \"%s\", \"nvme_path\": %s, \"buffer_count\": %u%s}",
                         k ? "param" : "optimizer", !k && s->ways[TIERED] ? "tiered" : "nvme", path, s->slots,
                         !k && (s->shared || s->ways[TIERED]) ? ", \"ratio\": 0.8" : "");
    snprintf(offload + used, sizeof offload - (size_t)used,
             ", \"offload_gradients\": {\"device\": \"%s\"}%s%s%s", s->grads ? "nvme" : "none", pieces,
             s->ways[VERTICAL] ? ", \"micro_order\": \"vertical\"" : "",
             s->ways[UPDATES] || s->ways[REPEATS] ? ", \"update_in_backward\": true" : "");
    snprintf(
        json, capacity,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %u, "
        "\"gradient_accumulation_mode\": \"every\", \"gradient_clipping\": %d, \"threads\": 1, "
        "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}%s, "
        "\"zero_optimization\": {%s, \"stage3_param_persistence_threshold\": 100, "
        "\"sub_group_size\": 1024}, \"aio\": {\"block_size\": %u, \"queue_depth\": %u}, "
        "\"nvme\": {\"io_uring\": \"%s\", \"masters\": \"%s\", \"shadow\": %s}, \"comm\": {\"timeout_s\": "
        "60}%s%s}",
        1 + s->ways[SUMS], s->clips, s->ways[MATRICES] ? "Muon" : "AdamW",
        s->ways[MATRICES] ? ", \"param_groups\": [{\"match\": [\"*.b\", \"*.f\"], \"optimizer\": \"AdamW\"}]"
                          : "",
        offload, s->block_bytes, s->depth, s->uring ? "auto" : "never",
        s->state && !s->ways[SHADOW] ? formats[s->format].masters : "auto",
        s->ways[SHADOW] ? "true" : "false", memory, formats[s->format].json);
}

/* ---- one rank's training ---- */

struct result {
    zero_status status;
    char error[1024], hash[33];
    float value[KINDS][PARAMS][COUNT];
};

struct run {
    struct schedule *schedule;
    struct result result[RANKS];
};

/* Moments and weights are read, changed and written back. */
static zero_status meddle(zero_engine *engine, float *piece) {
    zero_status status = ZERO_OK;
    for (int k = 0; k < KINDS && !status; k++) {
        status = zero_engine_get(engine, "d.w", kinds[k], piece, 5000, 5000);
        for (int i = 0; i < 5000; i++) piece[i] *= 0.5f;
        if (!status) status = zero_engine_put(engine, "d.w", kinds[k], piece, 5000, 5000);
    }
    return status;
}

static zero_status read_all(zero_engine *engine, struct result *r) {
    zero_status status = ZERO_OK;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < PARAMS && !status; i++)
            if (k == 0 || !(model[i].flags & ZERO_FROZEN))
                status = zero_engine_get(engine, model[i].name, kinds[k], r->value[k][i], 0, model[i].count);
    return status ? status : zero_engine_hash(engine, r->hash);
}

static struct disk *disk; /* in memory, for checkpoints: only the state's drive has faults */

static zero_status reload(zero_engine *engine) {
    zero_status status = engine_save(engine, disk_storage(disk), "/run");
    return status ? status : engine_load(engine, disk_storage(disk), "/run", 0);
}

static zero_status train(struct plain *p, struct schedule *s, struct result *r) {
    double sum = 1;
    zero_status status = ZERO_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        if (step == (int)s->harmed_from && zero_engine_rank(p->engine) == s->rank) begin_harm(s);
        zero_step_info info = {.struct_size = sizeof info};
        status = plain_step(p, 1 + s->ways[SUMS], &info);
        if (!status) CHECK_INT(info.repeated, s->ways[REPEATS]);
        if (!status) status = zero_engine_sum(p->engine, &sum, 1);
        if (s->evaluates && !status) status = plain_pass(p, ZERO_EVAL, 0);
        if (s->flushes && !status) status = zero_engine_flush(p->engine);
        if (s->reloads && step == 1 && !status) status = reload(p->engine);
        if (s->meddles && step == 1 && !status) status = meddle(p->engine, r->value[0][0]);
    }
    return status ? status : read_all(p->engine, r);
}

static void check_poisoned(struct plain *p, zero_status status) {
    char hash[33];
    float element = 0;
    double sum = 0;
    CHECK_INT(zero_micro_begin(p->engine, ZERO_TRAIN), status);
    CHECK_INT(zero_forward_begin(p->unit[0]), status);
    CHECK_INT(zero_engine_step(p->engine, NULL), status);
    CHECK_INT(zero_engine_flush(p->engine), status);
    CHECK_INT(zero_engine_hash(p->engine, hash), status);
    CHECK_INT(zero_engine_get(p->engine, "a.w", ZERO_STATE0, &element, 0, 1), status);
    CHECK_INT(zero_engine_put(p->engine, "a.w", ZERO_PARAM, &element, 0, 1), status);
    CHECK_INT(zero_engine_sum(p->engine, &sum, 1), status);
    CHECK_INT(zero_engine_fill(p->engine, toy_fill, NULL), status);
}

static uint64_t resident; /* schedules in which a part of the state was; of rank 0's thread */

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct schedule *s = run->schedule;
    struct result *r = &run->result[rank];
    struct plain p;
    check_seed(s->seed);
    if (engine && rank == s->rank) engine_running(engine)->hook = faults_hook(&s->faults);
    if (rank == s->rank && !s->harmed_from) begin_harm(s);
    r->status = engine ? plain_declare_matrices(&p, engine, model, PARAMS, columns) : ZERO_E_CONFIG;
    if (!r->status) r->status = zero_engine_commit(engine, NULL);
    if (!r->status)
        r->status = zero_engine_discard_shadow(engine); /* a flipped bit of none may look like one */
    if (!r->status) r->status = zero_engine_fill(engine, toy_fill, NULL);
    /* A page holds twice as many of the narrower elements; with gradients a chunk has a block of the norm. */
    if (engine && s->state && !s->resident)
        CHECK(engine_blueprint(engine)->plan.layout.chunks >= CHUNKS_MIN / (s->grads    ? 4
                                                                            : s->format ? 2
                                                                                        : 1));
    if (engine && s->resident && !rank)
        resident += engine_blueprint(engine)->plan.layout.resident_bytes > 0 &&
                    engine_blueprint(engine)->plan.layout.resident_bytes <
                        engine_blueprint(engine)->plan.layout.state_bytes;
    if (!r->status) r->status = train(&p, s, r);
    snprintf(r->error, sizeof r->error, "%s", r->status ? zero_last_error() : "");
    if (engine && r->status) check_poisoned(&p, r->status);
}

/* ---- what must hold ---- */

static uint64_t fired(const struct schedule *s, const enum fault *of, uint32_t count) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += atomic_load(&s->faults.fired[of[i]]);
    return sum;
}

static bool equal(const struct result *got, const struct result *expected) {
    return CHECK_STRING(got->error, "") && CHECK_STRING(got->hash, expected->hash) &&
           CHECK_BYTES(got->value, expected->value, sizeof got->value);
}

/* Both ranks report the failure: one rank says what failed and where, the other names that rank. */
static bool told(const struct run *run) {
    const struct result *odd = &run->result[run->schedule->rank],
                        *other = &run->result[1 - run->schedule->rank];
    char blames[32];
    snprintf(blames, sizeof blames, "rank %u failed: ", run->schedule->rank);
    bool good = CHECK_INT(odd->status, ZERO_E_IO) && CHECK_INT(other->status, ZERO_E_PEER);
    good &= CHECK_CONTAINS(odd->error, directory()) && CHECK_CONTAINS(odd->error, "at offset ");
    good &= CHECK(strstr(odd->error, "chunk ") || strstr(odd->error, "tier nvme: "));
    return good & CHECK_CONTAINS(other->error, blames) & CHECK_CONTAINS(other->error, odd->error);
}

/* A class of harmless faults ends well; a failed transfer is always reported. */
static bool right(const struct run *run, const struct result *expected) {
    bool failed = run->result[0].status || run->result[1].status;
    if (!fired(run->schedule, harmful, HARMFUL) && !CHECK(!failed)) return false;
    if (fired(run->schedule, harmful, 2) && !CHECK(failed)) return false;
    if (failed) return told(run);
    return equal(&run->result[0], expected) && equal(&run->result[1], expected);
}

/* ---- the watchdog ---- */

static char overdue[128];

static void give_up(int signal) {
    ssize_t ignored = write(STDERR_FILENO, overdue, strlen(overdue));
    _exit(1 + (ignored < 0));
}

static void watch(uint64_t seed) {
    snprintf(overdue, sizeof overdue, "seed %" PRIu64 ": not over after %d s\n", seed, SECONDS_MAX);
    signal(SIGALRM, give_up);
    alarm(SECONDS_MAX);
}

/* ---- many seeds ---- */

static void run_schedule(struct schedule *s, struct run *run) {
    char json[5000];
    memset(run, 0, sizeof *run);
    run->schedule = s;
    configure(s, json, sizeof json);
    watch(s->seed);
    disk = disk_create();
    remove_shadow(s);
    ranks_run(RANKS, json, body, run);
    disk_free(disk);
}

/* In memory, without a drive and without the newer keys; once for all schedules that train the same. */
static const struct result *expected(const struct schedule *of, struct run *run) {
    static struct result *known[SCRIPTS][FORMATS][2][2][2];
    struct schedule s = {.paths = 1,
                         .block_bytes = 4096,
                         .depth = 1,
                         .meddles = of->meddles,
                         .format = of->format,
                         .clips = of->clips};
    s.ways[SUMS] = of->ways[SUMS], s.ways[MATRICES] = of->ways[MATRICES];
    struct result **k = &known[s.meddles][s.format][s.ways[SUMS]][s.clips][s.ways[MATRICES]];
    if (*k) return *k;
    *k = malloc(sizeof **k);
    run_schedule(&s, run);
    CHECK_STRING(run->result[0].error, "");
    **k = run->result[0];
    return *k;
}

static void report(uint64_t seeds, uint64_t failed, const uint64_t total[FAULTS], const uint64_t ways[WAYS]) {
    printf("%" PRIu64 " schedules, %" PRIu64 " of which failed on both ranks, %" PRIu64
           " with a part of the state resident; fired:\n",
           seeds, failed, resident);
    if (seeds >= 200) CHECK(resident >= seeds / 20);
    for (int f = 0; f < FAULTS; f++) {
        printf("  %-20s %8" PRIu64 "\n", fault_names[f], total[f]);
        bool drawn = f != FAULT_STUCK; /* destroy_test has it: a run waits for such a drive */
        if (seeds >= 200 && drawn && !CHECK(total[f] >= seeds / 20))
            fprintf(stderr, "%s fired too seldom\n", fault_names[f]);
    }
    printf("schedules with:\n");
    for (int w = 0; w < WAYS; w++) {
        printf("  %-24s %8" PRIu64 "\n", way_names[w], ways[w]);
        if (seeds >= 200) CHECK(ways[w] >= seeds / 40);
    }
}

int main(int argc, char **argv) {
    static struct run run, reference;
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(200), failed = 0,
             total[FAULTS] = {0}, ways[WAYS] = {0};
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct schedule s;
        check_seed(seed);
        draw(seed, &s);
        const struct result *e = expected(&s, &reference);
        run_schedule(&s, &run);
        if (!right(&run, e)) describe(&s, stderr);
        for (int w = 0; w < WAYS; w++) ways[w] += s.ways[w];
        failed += run.result[0].status != ZERO_OK;
        for (int f = 0; f < FAULTS; f++) total[f] += atomic_load(&s.faults.fired[f]);
    }
    report(count, failed, total, ways);
    return check_end();
}
