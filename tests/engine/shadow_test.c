/* With a shadow a run may end at any moment: a new run continues from the last step that was complete on all ranks, and
 * ends with the bits of a run that never stopped. Also where steps are updated in the backward, and then again because they are clipped, or
 * not at all because they are skipped.
 * shadow_test [SEEDS] [KILLS]: seeds of faults on one rank's drive; calls between which kill -9 ends the run */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_number.h"
#include "tests/offload/faults.h"
#include "tests/seeds.h"

enum { STEPS = 6, WORLD_MAX = 2, LR_STEP = 1, SPOILED = 2 };

static const struct plain_param model[] = {
    {"a", "a.w", 13015, 0, NULL},          {"a", "a.b", 17, ZERO_NO_DECAY, NULL},
    {"b", "b.w", 9009, 0, NULL},           {"b", "b.r", 7003, ZERO_KEEP_FP32, NULL},
    {"c", "c.w", 2600, ZERO_FROZEN, NULL}, {"d", "d.w", 5000, 0, NULL}};

enum { PARAMS = sizeof model / sizeof *model };

/* Of whole matrices. */
static const uint64_t columns[PARAMS] = {137, 0, 99, 149, 0, 50};

/* One life of the ranks: it starts or recovers, trains, and stops without any notice. */
struct life {
    bool recovers, flushes, in_pass; /* in_pass: stops in the midst of the pass after `stop` */
    bool spoils;                     /* a step is skipped */
    bool segment;                    /* its first units are declared to be computed again together */
    uint64_t stop;                   /* steps done when it ends */
    /* Calls of rank 0 in passes and steps; the last one ends the process. 0: none does. */
    uint32_t calls, last_call;
    struct faults *faults; /* on the last rank's drive; NULL: none */
    zero_status status;
    char error[600], hash[STEPS + 1][33];
    uint64_t began; /* the step that it went on from */
    uint64_t found; /* the step that it found */
    double norm[STEPS + 1];
    uint64_t repeated, skipped;
};

/* Looks at the shadow of an earlier life before this one begins: its note belongs to the last complete step. */
static void look(const zero_engine *engine, struct life *life) {
    uint64_t step = 0;
    int found = zero_engine_shadow(engine, &step);
    const char *note = zero_engine_shadow_note(engine, "at");
    CHECK((note != NULL) == (found && step));
    if (note) CHECK_INT(strtoull(note, NULL, 10), step);
    if (zero_engine_rank(engine) == 0) life->found = found ? step : 0;
}

/* Between two calls; the other ranks are wherever they are. */
static zero_status go_on(zero_engine *engine, struct life *life, zero_status status) {
    if (zero_engine_rank(engine) == 0 && ++life->calls == life->last_call) raise(SIGKILL);
    return status;
}

/* On the last rank the gradient of the first parameter is not a number, where the training has skipped no step yet. */
static void spoil(zero_engine *engine, struct plain *p, uint64_t step) {
    bool odd = zero_engine_rank(engine) == zero_engine_size(engine) - 1;
    if (odd && step == SPOILED && !zero_engine_note(engine, "skipped"))
        toy_store(zero_param_dtype(zero_engine_param(engine, "a.w")), p->slot[0].grad, 0, NAN);
}

static zero_status one_step(zero_engine *engine, struct plain *p, struct life *life, uint64_t step,
                            zero_step_info *info) {
    zero_status status = go_on(engine, life, zero_micro_begin(engine, ZERO_TRAIN));
    for (uint32_t u = 0; u < p->units && !status; u++) {
        status = go_on(engine, life, zero_forward_begin(p->unit[u]));
        if (!status) status = go_on(engine, life, zero_forward_end(p->unit[u]));
    }
    for (uint32_t u = p->units; u-- > 0 && !status;) {
        status = go_on(engine, life, zero_backward_begin(p->unit[u]));
        if (!status) plain_give(p, u, 0);
        if (!status && u == 0 && life->spoils) spoil(engine, p, step);
        if (!status) status = go_on(engine, life, zero_backward_end(p->unit[u]));
    }
    return status ? status : go_on(engine, life, zero_engine_step(engine, info));
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct life *life = user;
    struct plain p;
    uint64_t step = 0;
    zero_status status = engine ? ZERO_OK : ZERO_E_CONFIG;
    if (!status && life->faults && rank == zero_engine_size(engine) - 1)
        engine_running(engine)->hook = faults_hook(life->faults);
    if (!status) status = plain_declare_matrices(&p, engine, model, PARAMS, columns);
    if (!status && life->segment) status = zero_engine_add_segment(p.unit[0], p.unit[1]);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) look(engine, life);
    if (!status && !life->recovers) status = zero_engine_discard_shadow(engine);
    if (!status)
        status = life->recovers ? zero_engine_recover(engine, toy_fill, NULL, &step)
                                : zero_engine_fill(engine, toy_fill, NULL);
    if (rank == 0 && !status) life->began = step;
    if (life->recovers && !status && step) { /* the note is of the step that is whole */
        const char *note = zero_engine_note(engine, "at");
        CHECK_INT(note ? strtoull(note, NULL, 10) : 0, step);
    }
    if (rank == 0 && !status)
        status = zero_engine_hash(engine, life->hash[step]);
    else if (!status)
        status = zero_engine_hash(engine, (char[33]){0});
    while (step < life->stop && !status) {
        zero_step_info info = {.struct_size = sizeof info};
        /* The host changes the learning rate once: who recovers later has not done so. */
        if (step == LR_STEP) status = zero_engine_set_lr(engine, 0, 0.004);
        if (!status) status = one_step(engine, &p, life, step, &info);
        if (!status) step = info.step; /* as before, if it was skipped */
        char note[24];
        snprintf(note, sizeof note, "%" PRIu64, step);
        if (!status && step) status = zero_engine_set_note(engine, "at", note);
        if (!status && info.skipped) status = zero_engine_set_note(engine, "skipped", "yes");
        if (!status && life->flushes) {
            char hash[33];
            status = go_on(engine, life, zero_engine_flush(engine));
            if (!status) status = zero_engine_hash(engine, hash);
            if (!status && rank == 0) strcpy(life->hash[step], hash);
        }
        if (rank || status) continue;
        life->norm[step] = info.grad_norm;
        life->repeated = info.repeated_total, life->skipped = info.skipped_total;
    }
    if (life->in_pass && !status) status = zero_micro_begin(engine, ZERO_TRAIN);
    if (life->in_pass && !status) status = plain_forward(&p, 0);
    if (!status) return;
    static pthread_mutex_t told = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&told);
    life->status = status;
    snprintf(life->error, sizeof life->error, "%s", zero_last_error());
    pthread_mutex_unlock(&told);
}

struct setting {
    uint32_t stage, ranks;
    bool params; /* on the drive too */
    const char *type;
    const char *path;
    const char *mesh; /* more keys of zero_optimization, each after a comma; or NULL */
    bool updates;     /* in the backward */
    double clip;
    bool spoils;       /* a step is skipped once */
    const char *whole; /* the optimizer of whole matrices or tensors, beside AdamW; or NULL */
    const char *extra; /* more keys, each after a comma; or NULL */
};

static const char *const types[] = {
    "", ", \"bf16\": {\"enabled\": true}",
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, \"loss_scale_window\": 2}"};

static const char *directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

static void live(const struct setting *s, bool shadow, struct life *life) {
    char json[3000], path[1000];
    snprintf(path, sizeof path, "[\"%s/%s.a\", \"%s/%s.b\"]", directory(), s->path, directory(), s->path);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": %.17g, \"threads\": 1, "
             "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}, %s"
             "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": 100, "
             "\"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
             "%s}%s%s%s%s%s}, "
             "\"aio\": {\"block_size\": 4096}, \"nvme\": {\"shadow\": %s}%s%s}",
             s->clip, s->whole ? s->whole : "AdamW",
             s->whole ? "\"param_groups\": [{\"match\": \"a.b\", \"optimizer\": \"AdamW\"}], " : "", s->stage,
             path, s->params ? ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": " : "",
             s->params ? path : "", s->params ? "}" : "", s->mesh ? s->mesh : "",
             s->updates && shadow ? ", \"update_in_backward\": true" : "", shadow ? "true" : "false", s->type,
             s->extra ? s->extra : "");
    life->status = ZERO_OK;
    life->error[0] = 0;
    life->spoils = s->spoils;
    ranks_run(s->ranks, json, body, life);
}

/* Removes the files: those of another setting would be refused, and not emptied. */
static void begin_anew(const char *path) {
    char command[2200];
    snprintf(command, sizeof command, "rm -rf '%s/%s.a' '%s/%s.b'", directory(), path, directory(), path);
    CHECK_INT(system(command), 0);
}

/* The hash after every step of a run without interruption and without a shadow. */
static void reference(const struct setting *s, struct life *out) {
    *out = (struct life){.flushes = true, .stop = STEPS};
    live(s, false, out);
    CHECK_STRING(out->error, "");
}

static bool goes_on(const struct setting *s, const struct life *expected, uint64_t least, uint64_t most) {
    static struct life life;
    life = (struct life){.recovers = true, .flushes = true, .stop = STEPS};
    live(s, true, &life);
    return CHECK_STRING(life.error, "") && CHECK_INT(life.found, life.began) &&
           CHECK(life.began >= least && life.began <= most) &&
           CHECK_STRING(life.hash[life.began], expected->hash[life.began]) &&
           CHECK_STRING(life.hash[STEPS], expected->hash[STEPS]);
}

/* It ends after a step that was flushed, one that was not, and within a pass. In a short run, in one of these ways, in turn. */
static void stops(const struct setting *s) {
    static struct life expected, life;
    static int turn;
    reference(s, &expected);
    turn++;
    for (int how = 0; how < 3; how++) {
        if (seeds_divisor() > 1 && how != turn % 3) continue;
        life = (struct life){.flushes = how == 0, .in_pass = how == 2, .stop = 4};
        live(s, true, &life);
        /* Within a pass one rank may miss the other, which has left. */
        bool good = (how == 2 || CHECK_STRING(life.error, "")) && goes_on(s, &expected, how == 0 ? 4 : 3, 4);
        /* A second interruption, of a run that had recovered. */
        life = (struct life){.recovers = true, .stop = STEPS};
        live(s, true, &life);
        good = good && CHECK_STRING(life.error, "") && CHECK_INT(life.began, STEPS);
        if (!good)
            fprintf(stderr, "in stage %u, %u ranks, params %d, type \"%s\", ended %d\n", s->stage, s->ranks,
                    s->params, s->type, how);
    }
}

/* In a short run, each in one type. */
static void every_setting(void) {
    struct setting s = {.path = "stops", .clip = 1};
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (s.ranks = 1; s.ranks <= WORLD_MAX; s.ranks++)
            for (int t = 0; t < 3; t++)
                for (int params = 0; params <= (s.stage == 3); params++) {
                    if (seeds_divisor() > 1 && t != (int)(s.stage + s.ranks + params) % 3) continue;
                    s.type = types[t];
                    s.params = params;
                    begin_anew(s.path);
                    stops(&s);
                }
}

/* Groups of two of four ranks: each rank's file has its shard, a replica's like the other's. */
static void meshes(void) {
    struct setting s = {.ranks = 4, .type = ", \"bf16\": {\"enabled\": true}", .path = "mesh", .clip = 1};
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.mesh = ", \"mics_shard_size\": 2", s.params = s.stage == 3;
        begin_anew(s.path);
        stops(&s);
    }
    s.stage = 3, s.mesh = ", \"zero_hpz_partition_size\": 2", s.params = true;
    begin_anew(s.path);
    stops(&s);
    /* A step's gradients are not part of its shadow. */
    s.mesh = ", \"mics_shard_size\": 2, \"offload_gradients\": {\"device\": \"nvme\"}";
    begin_anew(s.path);
    stops(&s);
    /* Another mesh cuts otherwise: it is not recovered. */
    static struct life life;
    s.mesh = ", \"offload_gradients\": {\"device\": \"nvme\"}";
    life = (struct life){.recovers = true, .stop = 1};
    live(&s, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    /* Recomputed segments do not change the layout. */
    struct setting again = {.stage = 3, .ranks = 2, .type = "", .path = "again", .clip = 1};
    static struct life expected;
    begin_anew(again.path);
    reference(&again, &expected);
    life = (struct life){.flushes = true, .stop = 3};
    live(&again, true, &life);
    CHECK_STRING(life.error, "");
    life = (struct life){.recovers = true, .flushes = true, .segment = true, .stop = STEPS};
    live(&again, true, &life);
    CHECK_STRING(life.error, "");
    CHECK_INT(life.began, 3);
    CHECK_STRING(life.hash[STEPS], expected.hash[STEPS]);
}

/* States and masters of whole matrices, or tensors, are stored apart in each step; averages with the masters. */
static void wholes(const char *optimizer) {
    struct setting s = {.ranks = 2, .path = "wholes", .clip = 1, .whole = optimizer};
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        s.type = types[s.stage % 3], s.params = s.stage == 3;
        s.mesh = s.stage == 2 ? ", \"offload_gradients\": {\"device\": \"nvme\"}" : NULL;
        s.extra = s.stage % 2 ? ", \"ema\": {\"decay\": 0.9}" : NULL;
        begin_anew(s.path);
        stops(&s);
    }
}

/* The bound on the norm is that of a step in the midst of a run. */
static void clip_some(struct setting *s) {
    static struct life expected;
    s->clip = 1;
    reference(s, &expected);
    s->clip = expected.norm[STEPS / 2];
}

/* A step is committed before the first update of the next one, with the notes that follow it. */
static void updates_in_backward(void) {
    static const char *const wholes[] = {NULL, "Muon", "Lamb"};
    struct setting s = {.ranks = 2, .path = "updates", .updates = true};
    static struct life life;
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (int clips = 0; clips < 2; clips++) {
            s.type = types[(s.stage + (uint32_t)clips) % 3], s.params = s.stage == 3;
            s.whole = wholes[(2 * s.stage + (uint32_t)clips) % 3];
            begin_anew(s.path);
            s.clip = 0;
            s.spoils = clips;
            if (clips) clip_some(&s);
            stops(&s);
            life = (struct life){.stop = STEPS};
            live(&s, true, &life);
            CHECK_STRING(life.error, "");
            CHECK(clips ? life.repeated > 0 && life.repeated < STEPS : life.repeated == 0);
            CHECK_INT(life.skipped, clips);
        }
}

/* ---- kill -9 ---- */

enum { KILL_SETTINGS = 6 };

static bool killed(const struct setting *s, uint32_t call) {
    pid_t child = fork();
    int status = 0;
    if (!CHECK(child >= 0)) return false;
    if (!child) {
        static struct life life;
        life = (struct life){.stop = STEPS, .last_call = call, .flushes = call % 4 == 0};
        live(s, true, &life);
        _exit(1); /* the call did not come */
    }
    return CHECK_INT(waitpid(child, &status, 0), child) && CHECK_INT(WIFSIGNALED(status), 1) &&
           CHECK_INT(WTERMSIG(status), SIGKILL);
}

/* Any call of a run may be its last one, in a step that is updated once, twice or not at all. */
static void kills(uint64_t times) {
    static struct life expected[KILL_SETTINGS];
    static struct setting settings[KILL_SETTINGS];
    uint64_t at_step[STEPS + 1] = {0};
    for (uint32_t k = 0; k < KILL_SETTINGS; k++) {
        struct setting *s = &settings[k];
        *s = (struct setting){.stage = (3 + k) % 4,
                              .ranks = 2,
                              .type = types[k % 3],
                              .path = "killed",
                              .params = (3 + k) % 4 == 3,
                              .updates = k != 4,
                              .spoils = k != 3,
                              .mesh = k % 2 ? ", \"offload_gradients\": {\"device\": \"nvme\"}" : NULL};
        if (s->stage == 0) s->mesh = NULL;
        clip_some(s);
        reference(s, &expected[k]);
    }
    for (uint64_t i = 0; i < times; i++) {
        const struct setting *s = &settings[i % KILL_SETTINGS];
        static struct life life;
        uint32_t calls = 19 * STEPS; /* at least: a step of four units */
        begin_anew(s->path);
        if (!killed(s, 1 + (uint32_t)(i * 37 % calls))) continue;
        life = (struct life){.recovers = true, .flushes = true, .stop = STEPS};
        live(s, true, &life);
        if (life.status && CHECK_CONTAINS(life.error, "no whole step") && CHECK(i * 37 % calls < 2 * 19))
            continue;
        if (!CHECK_STRING(life.error, "") || !CHECK_INT(life.found, life.began) ||
            !CHECK_STRING(life.hash[life.began], expected[i % KILL_SETTINGS].hash[life.began]) ||
            !CHECK_STRING(life.hash[STEPS], expected[i % KILL_SETTINGS].hash[STEPS]))
            fprintf(stderr, "killed in call %d of setting %d\n", (int)(1 + i * 37 % calls),
                    (int)(i % KILL_SETTINGS));
        at_step[life.began]++;
    }
    for (int k = 0; k <= STEPS; k++) fprintf(stderr, "%d went on from step %d\n", (int)at_step[k], k);
    for (int k = 0; k < STEPS && times >= 50; k++) CHECK(at_step[k] > 0);
}

static void notes_too_long(zero_engine *engine, uint32_t rank, void *user) {
    static const char spaces[] = "%1000s";
    char text[1001];
    snprintf(text, sizeof text, spaces, "");
    CHECK_INT(zero_engine_set_note(engine, "a", text), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "b", text), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "c", text), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "a shadow keeps 2048 bytes of notes");
    CHECK_INT(zero_engine_set_note(engine, "b", (char[1100]){[0 ... 1098] = 'x'}), ZERO_E_ARGUMENT);
    CHECK_STRING(zero_engine_note(engine, "b"), text); /* as it was */
    CHECK_INT(zero_engine_set_note(engine, "b", "short"), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "c", text), ZERO_OK);
}

struct loaded {
    const char *dir;
    uint32_t notes, warnings;
};

static void count_warning(void *user, zero_log_level level, const char *line) {
    struct loaded *l = user;
    if (level == ZERO_LOG_WARN && strstr(line, "notes take ") && strstr(line, "a shadow keeps 2048"))
        l->warnings++;
}

static void save_notes(zero_engine *engine, uint32_t rank, void *user) {
    struct loaded *l = user;
    struct plain p;
    char text[1001], key[2] = "a";
    snprintf(text, sizeof text, "%1000s", "");
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    for (uint32_t i = 0; i < l->notes; i++, key[0]++)
        CHECK_INT(zero_engine_set_note(engine, key, text), ZERO_OK);
    if (!CHECK_INT(zero_engine_save(engine, l->dir), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void load_notes(zero_engine *engine, uint32_t rank, void *user) {
    struct loaded *l = user;
    struct plain p;
    if (!CHECK(engine)) return;
    engine_running(engine)->ranks->log = (struct log){count_warning, l};
    CHECK_INT(plain_declare(&p, engine, model, PARAMS), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    if (!CHECK_INT(zero_engine_load(engine, l->dir), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    CHECK((zero_engine_note(engine, "c") != NULL) == (l->notes > 2));
}

/* A checkpoint may contain more than a shadow keeps: the run has it, and reports that a recovery will not. */
static void notes_of_a_checkpoint(void) {
    for (uint32_t notes = 2; notes <= 3; notes++) {
        char dir[1000], json[1300];
        snprintf(dir, sizeof dir, "%s/notes_%u", directory(), notes);
        struct loaded l = {dir, notes, 0};
        begin_anew("notes");
        snprintf(json, sizeof json,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"offload_optimizer\": "
                 "{\"device\": "
                 "\"nvme\", \"nvme_path\": \"%s/notes.a\"}}, \"nvme\": {\"shadow\": true}}",
                 directory());
        ranks_run(1, "{\"train_micro_batch_size_per_gpu\": 1}", save_notes, &l);
        ranks_run(1, json, load_notes, &l);
        CHECK_INT(l.warnings, notes > 2);
    }
}

/* Recovery invents nothing: there is no run, or the shadow is another model's, or the run began anew and committed
 * nothing. */
static void nothing_to_recover(void) {
    struct setting s = {.stage = 1, .ranks = 2, .type = "", .path = "nothing", .clip = 1}, other = s;
    static struct life life;
    life = (struct life){.recovers = true, .stop = 1};
    live(&s, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    CHECK_CONTAINS(life.error, "no whole step");
    life = (struct life){.flushes = true, .stop = 2};
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    other.stage = 2; /* as many bytes, of another layout */
    life = (struct life){.recovers = true, .stop = 1};
    live(&other, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    CHECK_CONTAINS(life.error, "its stage is 1, and here it is 2");
    CHECK_INT(life.found, 2); /* but its existence is reported, although it belongs to another model */
    other.type = ", \"bf16\": {\"enabled\": true}, \"wall_clock_breakdown\": false";
    other.stage = 0; /* another number of bytes: refused, and left as it is */
    life = (struct life){.stop = 1};
    live(&other, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    CHECK_CONTAINS(life.error, "another model or configuration");
    life = (struct life){.recovers = true, .stop = 2};
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    CHECK_INT(life.began, 2);
    life = (struct life){.stop = 0};
    live(&s, true, &life);
    life = (struct life){.recovers = true, .stop = 1};
    live(&s, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    life = (struct life){.recovers = true, .stop = 1};
    live(&s, false, &life);
    CHECK_INT(life.status, ZERO_E_ARGUMENT);
}

/* A run that differs from the shadow's only in `type`, for which the shadow's chunks are as large. */
static void other_meaning(const char *type, const char *other_type) {
    struct setting s = {.stage = 3, .ranks = 2, .type = type, .path = "meaning", .clip = 1}, other = s;
    static struct life life;
    begin_anew(s.path);
    life = (struct life){.flushes = true, .stop = 2};
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    other.type = other_type;
    life = (struct life){.recovers = true, .stop = 3};
    live(&other, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    CHECK_CONTAINS(life.error, "its types, mesh, chunks or parameter groups are others");
    life = (struct life){.recovers = true, .stop = 3};
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    CHECK_INT(life.began, 2);
}

#define GROUP(match, member) ", \"param_groups\": [{\"match\": \"" match "\", " member "}]"

/* Other codes of gathers put parameters into other regions. The same two optimizers may update each other's parameters. */
static void other_groups(void) {
    other_meaning(GROUP("b.w", "\"zero_quantized_weights\": \"fp8_e4m3\""),
                  GROUP("b.r", "\"zero_quantized_weights\": \"fp8_e4m3\""));
    other_meaning(GROUP("a.*", "\"optimizer\": \"Adam\""), GROUP("d.w", "\"optimizer\": \"Adam\""));
}

/* A file that other users can read may belong to another user. */
static void strangers_files(void) {
    struct setting s = {.stage = 1, .ranks = 1, .type = "", .path = "stranger", .clip = 1};
    static struct life life;
    char path[1200];
    begin_anew(s.path);
    life = (struct life){.flushes = true, .stop = 2};
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    snprintf(path, sizeof path, "%s/%s.a/zero-shadow-00000-of-00001", directory(), s.path);
    CHECK_INT(chmod(path, 0644), 0);
    life = (struct life){.recovers = true, .stop = 2};
    live(&s, true, &life);
    CHECK_INT(life.status, ZERO_E_IO);
    CHECK_CONTAINS(life.error, "not private to this user");
    CHECK_INT(chmod(path, 0600), 0);
    live(&s, true, &life);
    CHECK_STRING(life.error, "");
    CHECK_INT(life.began, 2);
}

/* Nothing is stored and there is nothing to commit; that must not fail. */
static void frozen_body(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param frozen[] = {{"a", "a.w", 3000, ZERO_FROZEN, NULL}};
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_open(&p, engine, frozen, 1, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    if (!CHECK_INT(zero_engine_flush(engine), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void all_frozen(void) {
    char json[1000];
    begin_anew("frozen");
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
             "\"offload_param\": {\"device\": \"cpu\"}, \"offload_optimizer\": {\"device\": \"nvme\", "
             "\"nvme_path\": \"%s/frozen.a\"}}, \"nvme\": {\"shadow\": true}}",
             directory());
    ranks_run(2, json, frozen_body, NULL);
}

static uint32_t pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* A drive that fails, or reads wrong, ends the run; what it had committed is whole. One that writes elsewhere or not at
 * all may have harmed that too: then recovery says so. */
static void fails(uint64_t seed, const struct life *expected, const struct setting *s,
                  uint32_t recovered[2]) {
    static const enum fault honest[] = {FAULT_EIO, FAULT_ENOSPC, FAULT_FLIPPED},
                            liars[] = {FAULT_MISPLACED, FAULT_STALE};
    static struct life life;
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    bool lies = pick(&state, 4) == 0;
    struct faults faults = {.seed = seed};
    faults.probability[lies ? liars[pick(&state, 2)] : honest[pick(&state, 3)]] =
        0.002 * (1 + pick(&state, 4));
    life = (struct life){.flushes = true, .stop = 2};
    live(s, true, &life);
    if (!CHECK_STRING(life.error, "")) return;
    life = (struct life){.recovers = true, .stop = STEPS, .faults = &faults};
    live(s, true, &life);
    if (!life.status) return;
    life = (struct life){.recovers = true, .flushes = true, .stop = STEPS};
    live(s, true, &life);
    recovered[life.status != 0]++;
    if (life.status && lies && CHECK_CONTAINS(life.error, "damaged")) return;
    CHECK_STRING(life.error, "");
    CHECK(life.began >= 2);
    CHECK_STRING(life.hash[life.began], expected->hash[life.began]);
    CHECK_STRING(life.hash[STEPS], expected->hash[STEPS]);
}

static void drives_that_fail(uint64_t seeds) {
    struct setting s[2] = {{.stage = 2, .ranks = 2, .type = "", .path = "fails", .clip = 1}};
    static struct life expected[2];
    uint32_t recovered[2] = {0};
    s[1] = s[0], s[1].updates = s[1].spoils = true;
    clip_some(&s[1]);
    for (int k = 0; k < 2; k++) reference(&s[k], &expected[k]);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        check_seed(seed);
        fails(seed, &expected[seed % 2], &s[seed % 2], recovered);
    }
    fprintf(stderr, "%u runs failed and went on from the step before, %u had lost it and said so\n",
            recovered[0], recovered[1]);
    CHECK(recovered[0] >= seeds / 10);
}

int main(int argc, char **argv) {
    alarm(900); /* a hang is a failure */
    every_setting();
    meshes();
    wholes("Muon");
    wholes("Lamb");
    updates_in_backward();
    nothing_to_recover();
    other_groups();
    ranks_run(
        1,
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"offload_optimizer\": {\"device\": "
        "\"nvme\", \"nvme_path\": \"/tmp\"}}, \"nvme\": {\"shadow\": true}}",
        notes_too_long, NULL);
    notes_of_a_checkpoint();
    strangers_files();
    all_frozen();
    kills(argc > 2 ? strtoull(argv[2], NULL, 10) : 50 / seeds_divisor());
    drives_that_fail(argc > 1 ? strtoull(argv[1], NULL, 10) : seeds_count(60));
    return check_end();
}
