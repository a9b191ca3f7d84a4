/* Damaged and wrong checkpoints: every flipped bit is found. A message names a file or tensor that is missing,
 * duplicated, cut short or of another model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/steps.h"
#include "kernels/checksum.h"
#include "tests/check.h"
#include "tests/engine/disk.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/seeds.h"

static const struct plain_param params[] = {{"a", "long", 301, 0, NULL},
                                            {"a", "tiny", 5, ZERO_NO_DECAY, NULL},
                                            {"b", "fixed", 40, ZERO_FROZEN, NULL}};
enum { PARAMS = sizeof params / sizeof *params, FLIPS_MIN = 10000 };

static float block[BLOCK_ELEMENTS];

static void save_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (int i = 0; i < 3; i++) plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, disk_storage(user), "/run"), ZERO_OK);
}

static struct disk *saved_by(uint32_t ranks) {
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    struct disk *disk = disk_create();
    setup.ranks = ranks, setup.stage = 3;
    toy_config(&setup, json, sizeof json);
    ranks_run(ranks, json, save_rank, disk);
    return disk;
}

static zero_status verify(struct disk *disk, struct zero_error *error) {
    struct checkpoint checkpoint;
    error_clear(error);
    zero_status status = checkpoint_open(disk_storage(disk), "/run", &checkpoint, error);
    if (!status) status = checkpoint_verify(&checkpoint, block, error);
    checkpoint_close(&checkpoint);
    return status;
}

/* ---- single bits ---- */

static void every_bit_counts(void) {
    struct disk *disk = saved_by(2);
    struct zero_error error;
    const char *name;
    uint8_t *bytes;
    uint64_t count, flips = 0;
    CHECK_INT(verify(disk, &error), ZERO_OK);
    for (uint32_t file = 0; disk_file(disk, file, &name, &bytes, &count); file++) {
        uint64_t stride =
            (count < 100 ? 1 : 3) * seeds_divisor() | 1; /* odd: every bit of a byte has its turn */
        for (uint64_t bit = 0; bit < 8 * count; bit += stride, flips++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            int found = verify(disk, &error) != ZERO_OK;
            if (!CHECK(found && *error.message)) fprintf(stderr, "%s: bit %d\n", name, (int)bit);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    CHECK_INT(verify(disk, &error), ZERO_OK);
    CHECK(flips >= FLIPS_MIN / seeds_divisor());
    printf("%d bits flipped, all found\n", (int)flips);
    disk_free(disk);
}

/* ---- what an engine says to a wrong checkpoint ---- */

struct trial {
    struct disk *disk;
    const struct plain_param *params; /* NULL: those that were saved */
    uint32_t count;
    const char *optimizer;
    zero_status expected;
    const char *says;
    int sticky;
};

static void load_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct trial *t = user;
    struct plain p;
    plain_declare(&p, engine, t->params ? t->params : params, t->params ? t->count : PARAMS);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(engine_load(engine, disk_storage(t->disk), "/run", 0), t->expected);
    CHECK_CONTAINS(zero_last_error(), t->says);
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), t->sticky ? t->expected : ZERO_OK);
}

static void try_load(struct trial trial) {
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    int failures = atomic_load(&check_failures);
    setup.ranks = 3, setup.stage = 2, setup.optimizer = trial.optimizer;
    toy_config(&setup, json, sizeof json);
    ranks_run(setup.ranks, json, load_rank, &trial);
    if (atomic_load(&check_failures) != failures) fprintf(stderr, "expected \"%s\"\n", trial.says);
}

static void other_models(void) {
    static const struct plain_param lacks[] = {{"a", "long", 301, 0, NULL}, {"a", "tiny", 5, 0, NULL}};
    static const struct plain_param more[] = {{"a", "long", 301, 0, NULL},
                                              {"a", "tiny", 5, 0, NULL},
                                              {"b", "fixed", 40, ZERO_FROZEN, NULL},
                                              {"b", "extra", 7, 0, NULL}};
    static const struct plain_param longer[] = {
        {"a", "long", 302, 0, NULL}, {"a", "tiny", 5, 0, NULL}, {"b", "fixed", 40, ZERO_FROZEN, NULL}};
    static const struct plain_param trained[] = {
        {"a", "long", 301, 0, NULL}, {"a", "tiny", 5, 0, NULL}, {"b", "fixed", 40, 0, NULL}};
    struct disk *d = saved_by(2);
    zero_status wrong = ZERO_E_ARGUMENT;
    try_load((struct trial){d, lacks, 2, NULL, wrong,
                            "has a parameter \"fixed\", which this model does not have", 0});
    try_load((struct trial){d, more, 4, NULL, wrong, "lacks the parameter \"extra\"", 0});
    try_load((struct trial){d, longer, 3, NULL, wrong, "\"long\" has 301 elements", 0});
    try_load((struct trial){d, trained, 3, NULL, wrong, "\"fixed\" is frozen", 0});
    try_load((struct trial){d, NULL, 0, "{\"type\": \"Lion\"}", wrong, "optimizer adamw of 2 states", 0});
    disk_free(d);
}

/* ---- files that are gone, or not what they were ---- */

static char *path_of(const char *name) {
    static char path[STORAGE_PATH_BYTES];
    snprintf(path, sizeof path, "/run/step_00000003/%s", name);
    return path;
}

static void cut(struct disk *d, const char *name, int64_t by) {
    struct storage *s = disk_storage(d);
    struct zero_error error;
    char *text;
    size_t bytes;
    error_clear(&error);
    CHECK_INT(storage_read_text(s, path_of(name), 1 << 20, &text, &bytes, &error), ZERO_OK);
    s->ops->remove(s, path_of(name));
    if (by < 0) text = realloc(text, bytes + (size_t)-by), memset(text + bytes, ' ', (size_t)-by);
    CHECK_INT(storage_write_text(s, path_of(name), text, (size_t)((int64_t)bytes - by), &error), ZERO_OK);
    free(text);
}

static void flip_data(struct disk *d) {
    const char *name;
    uint8_t *bytes;
    uint64_t count;
    for (uint32_t i = 0; disk_file(d, i, &name, &bytes, &count); i++)
        if (strcmp(name, "rank_00001.safetensors") == 0) bytes[count - 3] ^= 8;
}

static void damaged_files(void) {
    struct disk *d = saved_by(2);
    struct storage *s = disk_storage(d);
    struct trial t = {.disk = d, .expected = ZERO_E_IO};
    flip_data(d), t.says = "rank_00001.safetensors: bytes ", t.sticky = 1;
    try_load(t);
    flip_data(d), t.sticky = 0;
    cut(d, "rank_00000.safetensors", 4), t.says = "rank_00000.safetensors has";
    try_load(t);
    cut(d, "rank_00000.safetensors", -8), t.says = "rank_00000.safetensors has";
    try_load(t);
    s->ops->remove(s, path_of("rank_00000.safetensors")),
        t.says = "cannot open /run/step_00000003/rank_00000";
    try_load(t);
    cut(d, "manifest.json", 1), t.says = "manifest.json is damaged";
    try_load(t);
    s->ops->remove(s, path_of("manifest.json")), t.says = "cannot open /run/step_00000003/manifest.json";
    try_load(t);
    s->ops->remove(s, "/run/latest"); /* one step: it is meant */
    try_load(t);
    s->ops->make_directory(s, "/run/step_00000002");
    t.says = "name a step's directory in it, such as step_00000003";
    try_load(t);
    disk_free(d);
}

/* A manifest that readers would refuse is not written. */
static void large_manifest(void) {
    struct disk *d = saved_by(2);
    struct storage *s = disk_storage(d);
    struct manifest m = {.optimizer = "", .ranks = 2};
    struct zero_error error;
    char *name = malloc(MANIFEST_BYTES_MAX + 1);
    memset(name, 'n', MANIFEST_BYTES_MAX), name[MANIFEST_BYTES_MAX] = 0;
    manifest_add_param(&m, &(struct manifest_param){.name = name, .dims = 1, .shape = {1}, .count = 1});
    s->ops->remove(s, path_of("manifest.json"));
    error_clear(&error);
    CHECK_INT(manifest_write(s, "/run/step_00000003", &m, &error), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "manifest.json would have");
    CHECK_INT(s->ops->open(s, path_of("manifest.json")), -2);
    manifest_free(&m);
    free(name);
    disk_free(d);
}

/* ---- checkpoints that are well made, but not right ---- */

static zero_status count_up(void *user, const struct piece *piece, uint64_t first, uint64_t count, float *out,
                            struct zero_error *error) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)(first + i);
    return ZERO_OK;
}

struct forged {
    struct piece piece[4];
    uint32_t count[2]; /* of each rank's file */
    const char *says;
};

/* Reads the manifest of a good one, writes files with other pieces, and the manifest that belongs to them. */
static void forge(struct disk *d, const struct manifest *good, const struct forged *f) {
    struct storage *s = disk_storage(d);
    struct manifest m = *good;
    struct manifest_file files[2];
    struct zero_error error;
    size_t bytes;
    const struct piece *at = f->piece;
    error_clear(&error);
    for (uint32_t r = 0; r < 2; at += f->count[r++]) {
        char name[32];
        manifest_file_name(r, name);
        s->ops->remove(s, path_of(name));
        shard_write(s, "/run/step_00000003", r, &m, at, f->count[r],
                    &(struct shard_source){count_up, NULL, block}, &files[r], &error);
    }
    m.file = files, m.files = m.ranks = 2;
    char *text = manifest_print(&m, &bytes);
    s->ops->remove(s, path_of("manifest.json"));
    storage_write_text(s, path_of("manifest.json"), text, bytes, &error);
    CHECK_STRING(error.message, "");
    free(text);
    if (f->says) {
        CHECK_INT(verify(d, &error), ZERO_E_IO);
        CHECK_CONTAINS(error.message, f->says);
    } else if (!CHECK_INT(verify(d, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
    }
}

static void wrong_pieces(void) {
    struct manifest_param one = {.name = "one", .dims = 1, .shape = {100}, .count = 100, .frozen = true},
                          two = {.name = "two", .dims = 1, .shape = {50}, .count = 50, .frozen = true};
    struct manifest m = {.ranks = 2, .optimizer = "adamw", .states = 1, .state = {"exp_avg"}};
    struct manifest_param list[] = {one, two},
                          stranger = {.name = "else", .dims = 1, .shape = {100}, .count = 100};
    m.param = list, m.params = 2;
    const struct forged forged[] = {
        {{{list, 0, 0, 60, 0}, {list, 0, 60, 40, 0}, {list + 1, 0, 0, 50, 0}}, {1, 2}, NULL},
        {{{list, 0, 60, 40, 0}, {list, 0, 0, 60, 3}, {list + 1, 0, 0, 50, 0}},
         {2, 1},
         NULL}, /* parts, in any order */
        {{{list, 0, 90, 10, 0}, {list, 0, 0, 60, 1}, {list + 1, 0, 0, 50, 0}},
         {2, 1},
         "60 to 90 of \"one\" (param) are missing"},
        {{{list, 0, 50, 50, 0}, {list, 0, 0, 60, 1}, {list + 1, 0, 0, 50, 0}},
         {2, 1},
         "50 to 60 of \"one\" (param) are there twice"},
        {{{list, 0, 0, 60, 0}, {list, 0, 61, 39, 0}, {list + 1, 0, 0, 50, 0}},
         {1, 2},
         "60 to 61 of \"one\" (param) are missing"},
        {{{list, 0, 0, 60, 0}, {list, 0, 50, 50, 0}, {list + 1, 0, 0, 50, 0}},
         {1, 2},
         "50 to 60 of \"one\" (param) are there twice"},
        {{{list, 0, 0, 60, 0}, {list, 0, 60, 30, 0}, {list + 1, 0, 0, 50, 0}},
         {1, 2},
         "90 to 100 of \"one\" (param) are missing"},
        {{{list, 0, 0, 60, 0}, {list, 0, 60, 41, 0}, {list + 1, 0, 0, 50, 0}},
         {1, 2},
         "reaches past the end"},
        {{{list, 0, 0, 100, 0}}, {1, 0}, "0 to 50 of \"two\" (param) are missing"},
        {{{list, 0, 0, 100, 0}, {list, 1, 0, 100, 0}, {list + 1, 0, 0, 50, 0}}, {1, 2}, "\"one\" is frozen"},
        {{{list, 0, 0, 100, 0}, {&stranger, 0, 0, 100, 0}, {list + 1, 0, 0, 50, 0}},
         {1, 2},
         "belongs to no parameter"},
    };
    struct disk *d = saved_by(2);
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) forge(d, &m, &forged[i]);
    disk_free(d);
}

static void put_manifest(struct disk *d, const char *from, const char *to, const char *says,
                         zero_status expected) {
    struct storage *s = disk_storage(d);
    struct zero_error error;
    char *text, sum[CHECKSUM_DIGITS + 1], *out = NULL;
    size_t bytes, length;
    error_clear(&error);
    if (!CHECK_INT(storage_read_text(s, path_of("manifest.json"), 1 << 20, &text, &bytes, &error), ZERO_OK))
        return;
    char *at = strstr(text, from), *tail = strstr(text, "\"checksum\": ");
    if (!CHECK(at != NULL)) fprintf(stderr, "%s\n", from);
    FILE *file = open_memstream(&out, &length);
    fwrite(text, 1, (size_t)(at - text), file);
    fputs(to, file);
    at += strlen(from);
    fwrite(at, 1, (size_t)(tail - at), file);
    fflush(file);
    checksum_print(checksum(out, length), sum);
    fprintf(file, "\"checksum\": \"%s\"}\n", sum);
    fclose(file);
    struct manifest m = {0};
    CHECK_INT(manifest_parse(out, length, "manifest.json", &m, &error), expected);
    CHECK_CONTAINS(error.message, says);
    manifest_free(&m);
    free(out);
    free(text);
}

static void wrong_manifests(void) {
    static const struct {
        const char *from, *to, *says;
    } edits[] = {
        {"\"files\": [\n  {\"name\": \"rank_00000.safetensors\"",
         "\"files\": [\n  {\"name\": \"../../etc/passwd\"", "list of files"},
        {"\"ranks\": 2", "\"ranks\": 3", "list of files"},
        {"\"ranks\": 2", "\"ranks\": 99999999999", "counters"},
        {"\"shape\": [301]", "\"shape\": [-301]", "list of parameters"},
        {"\"shape\": [301]", "\"shape\": [4294967296, 4294967296]", "list of parameters"},
        {"\"name\": \"tiny\"", "\"name\": \"long\"", "list of parameters"},
        {"\"step\": 3", "\"step\": -3", "counters"},
        {"\"step\": 3", "\"step\": 9223372036854775808", "counters"},
        {"\"lr\": [0.02", "\"lr\": [NaN", "JSON"},
        {"\"lr\": [0.02", "\"lr\": [1e999", "counters"},
        {"\"format\": \"zero checkpoint\"", "\"format\": \"other\"", "not the manifest"},
        {"{\n \"format\"", "[\n \"format\"", "not JSON"},
    };
    struct disk *d = saved_by(2);
    put_manifest(d, "\"version\": 1", "\"version\": 2", "has version 2 of the format", ZERO_E_UNSUPPORTED);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        put_manifest(d, edits[i].from, edits[i].to, edits[i].says, ZERO_E_IO);
    disk_free(d);
}

/* ---- saves that cannot be: the training is none the worse ---- */

enum { APART = 2 };

struct doomed {
    struct disk *disk[APART]; /* of each rank */
    const char *says;
};

static void fail_to_save(zero_engine *engine, uint32_t rank, void *user) {
    const struct doomed *d = user;
    struct plain p;
    char before[33], after[33];
    if (!CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    plain_step(&p, 1, NULL);
    zero_engine_hash(engine, before);
    CHECK_INT(engine_save(engine, disk_storage(d->disk[rank]), "/run"), ZERO_E_IO);
    CHECK_CONTAINS(zero_last_error(), d->says); /* the same sentence on both */
    zero_engine_hash(engine, after);
    CHECK_STRING(after, before);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    struct storage *s = disk_storage(d->disk[rank]);
    CHECK_INT(s->ops->open(s, "/run/latest"), -2);
    CHECK_INT(s->ops->open(s, "/run/.step_00000001.saving/token"), -2); /* nothing is left */
}

static void doomed_saves(void) {
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    setup.ranks = APART, setup.stage = 1;
    toy_config(&setup, json, sizeof json);
    struct disk *one = disk_create(), *two = disk_create();
    ranks_run(APART, json, fail_to_save,
              &(struct doomed){{one, two},
                               "rank 1: /run/.step_00000001.saving is not the directory that rank 0 made"});
    disk_set_free(one, 5000);
    ranks_run(APART, json, fail_to_save, &(struct doomed){{one, one}, "rank 0: /run: a checkpoint needs "});
    disk_free(one);
    disk_free(two);
}

/* ---- what cannot be deleted: it stays whole, and no later save fails of it ---- */

static void count_warnings(void *user, zero_log_level level, const char *line) {
    if (level >= ZERO_LOG_WARN && strstr(line, "/run/")) ++*(int *)user;
}

static bool has(struct storage *s, const char *path) { return s->ops->open(s, path) != -2; }

static void put_directory(struct storage *s, const char *path) {
    CHECK_INT(s->ops->make_directory(s, path), 0);
}

static void deletes_whole_or_not(void) {
    char json[2048];
    int warnings = 0;
    struct toy_setup setup = toy_setup_default();
    struct plain p;
    struct disk *disk = disk_create();
    struct storage *s = disk_storage(disk);
    toy_config(&setup, json, sizeof json);
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = count_warnings, .log_user = &warnings};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (int step = 1; step <= 3; step++) {
        plain_step(&p, 1, NULL);
        CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    }
    put_directory(s, "/run/step_00000001/zz"); /* after the checkpoint's own files */
    put_directory(s, "/run/.step_00000009.removed");
    put_directory(s, "/run/.step_00000009.removed/hf");
    put_directory(s, "/run/.step_00000005.saving");
    put_directory(s, "/run/.step_00000005.saving/hf");
    CHECK_INT(engine_prune(engine, s, "/run", 1), ZERO_E_IO);
    CHECK_CONTAINS(zero_last_error(), "cannot remove /run/step_00000001/zz: it is a directory");
    CHECK(has(s, "/run/step_00000001/manifest.json"));
    CHECK(has(s, "/run/step_00000001/rank_00000.safetensors"));
    CHECK(!has(s, "/run/step_00000002"));
    plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    CHECK_INT(warnings, 1);
    plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_E_IO);
    CHECK_CONTAINS(zero_last_error(), "cannot remove /run/.step_00000005.saving/hf: it is a directory");
    CHECK(has(s, "/run/.step_00000005.saving/hf"));
    plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    put_directory(s, "/run/step_00000006/zz");
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK); /* in place of it */
    CHECK_INT(warnings, 1);
    CHECK(has(s, "/run/.step_00000006.saving/manifest.json") && !has(s, "/run/step_00000006/zz"));
    CHECK_INT(engine_load(engine, s, "/run", 0), ZERO_OK);
    CHECK_INT(zero_engine_steps(engine), 6);
    zero_engine_destroy(engine);
    disk_free(disk);
}

/* A power loss between the two renames of a replacement: the older checkpoint is read, and gets its name back. */
static void a_step_that_has_its_hidden_name_alone(void) {
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    struct plain p;
    struct disk *disk = disk_create();
    struct storage *s = disk_storage(disk);
    toy_config(&setup, json, sizeof json);
    zero_engine *engine = zero_engine_init(json);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    CHECK_INT(s->ops->rename(s, "/run/step_00000001", "/run/.step_00000001.replaced"), 0);
    CHECK_INT(engine_load(engine, s, "/run", 0), ZERO_OK);
    CHECK_INT(zero_engine_steps(engine), 1);
    plain_step(&p, 1, NULL);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    CHECK(has(s, "/run/step_00000001/manifest.json") && has(s, "/run/step_00000002/manifest.json"));
    CHECK_INT(s->ops->make_directory(s, "/run/.step_00000002.replaced"),
              0); /* there is a step 2: a leftover */
    CHECK_INT(engine_load(engine, s, "/run", 0), ZERO_OK);
    CHECK_INT(zero_engine_steps(engine), 2);
    CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    CHECK(!has(s, "/run/.step_00000002.replaced"));
    zero_engine_destroy(engine);
    disk_free(disk);
}

/* ---- a trial before the first step ---- */

static const struct storage_ops *whole_ops;
static int refused_call, calls; /* which of the calls is refused */

static bool refuses_now(void) { return calls++ == refused_call; }
static int try_rename(struct storage *s, const char *from, const char *to) {
    return refuses_now() ? -95 : whole_ops->rename(s, from, to); /* EOPNOTSUPP */
}
static int try_make(struct storage *s, const char *path) {
    return refuses_now() ? -95 : whole_ops->make_directory(s, path);
}
static int try_sync(struct storage *s, const char *path) {
    return refuses_now() ? -95 : whole_ops->sync_directory(s, path);
}

static void count_name(void *user, const char *name) { ++*(int *)user; }

/* Whatever the file system refuses of what a save does is said, and nothing stays: neither in a new directory nor beside a
 * checkpoint. */
static void a_trial_says_what_is_refused(void) {
    struct disk *disk = disk_create();
    struct storage *s = disk_storage(disk);
    struct storage_ops ops = *s->ops;
    struct zero_error error;
    whole_ops = s->ops, ops.rename = try_rename, ops.make_directory = try_make, ops.sync_directory = try_sync;
    s->ops = &ops;
    for (int there = 0; there < 2; there++) {
        int names = 0, entries = 0;
        zero_status status = ZERO_E_IO;
        for (refused_call = 0; status; refused_call++) {
            calls = 0;
            error_clear(&error);
            status = steps_try(s, "/run", &error);
            if (status) CHECK_CONTAINS(error.message, "no checkpoint can be saved: cannot ");
            if (status) CHECK_CONTAINS(error.message, "/run");
            if (status) CHECK_CONTAINS(error.message, ": Operation not supported: name another directory");
            whole_ops->list(s, "/", count_name, &names);
            if (there) whole_ops->list(s, "/run", count_name, &entries);
        }
        CHECK_INT(refused_call, 7); /* six calls are tried */
        CHECK_INT(names, there ? refused_call : 0);
        CHECK_INT(entries, 0);
        if (!there) CHECK_INT(whole_ops->make_directory(s, "/run"), 0);
    }
    s->ops = whole_ops;
    disk_free(disk);
}

/* Three checkpoints of run A, one whose run is not noted, then two of run B: B counts and deletes its own alone. */
static void prunes_its_own(void) {
    static const char *const runs[] = {"A", "A", "A", NULL, "B", "B"};
    char json[2048];
    struct toy_setup setup = toy_setup_default();
    struct plain p;
    struct disk *disk = disk_create();
    struct storage *s = disk_storage(disk);
    toy_config(&setup, json, sizeof json);
    zero_engine *engine = zero_engine_init(json);
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        plain_step(&p, 1, NULL);
        CHECK_INT(zero_engine_set_note(engine, "run", runs[i]), ZERO_OK);
        CHECK_INT(engine_save(engine, s, "/run"), ZERO_OK);
    }
    CHECK_INT(engine_prune(engine, s, "/run", 3), ZERO_OK);
    CHECK(has(s, "/run/step_00000001/manifest.json") && has(s, "/run/step_00000004/manifest.json"));
    CHECK_INT(engine_prune(engine, s, "/run", 1), ZERO_OK);
    CHECK(has(s, "/run/step_00000001/manifest.json") && has(s, "/run/step_00000003/manifest.json"));
    CHECK(!has(s, "/run/step_00000004/manifest.json") && !has(s, "/run/step_00000005/manifest.json"));
    CHECK_INT(zero_engine_set_note(engine, "run", NULL), ZERO_OK);
    CHECK_INT(engine_prune(engine, s, "/run", 1), ZERO_OK);
    CHECK(!has(s, "/run/step_00000003/manifest.json") && has(s, "/run/step_00000006/manifest.json"));
    zero_engine_destroy(engine);
    disk_free(disk);
}

static void calls_out_of_order(void) {
    char json[2048], dir[512], longest[5000];
    struct toy_setup setup = toy_setup_default();
    struct plain p;
    toy_config(&setup, json, sizeof json);
    snprintf(dir, sizeof dir, "%s/order", getenv("TEST_TMPDIR"));
    zero_engine *engine = zero_engine_init(json);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_E_ORDER);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_E_ORDER);
    plain_declare(&p, engine, params, PARAMS);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_E_ORDER);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_E_ABSENT);
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK); /* without what the micro-step has made */
    CHECK_INT(zero_engine_load(engine, dir), ZERO_E_ORDER);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, NULL), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_save(engine, ""), ZERO_E_ARGUMENT);
    memset(longest, 'x', sizeof longest - 1), longest[sizeof longest - 1] = 0;
    CHECK_INT(zero_engine_save(engine, longest), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_prune(engine, dir, 0), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_note(engine, "text", longest), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_note(engine, "", "x"), ZERO_E_ARGUMENT);
    for (int i = 0; i < 64; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        CHECK_INT(zero_engine_set_note(engine, key, "value"), ZERO_OK);
    }
    CHECK_INT(zero_engine_set_note(engine, "one more", "value"), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_note(engine, "key 7", "other"), ZERO_OK);
    CHECK_STRING(zero_engine_note(engine, "key 7"), "other");
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    zero_engine_destroy(engine);
}

/* ---- headers that ask for more memory than their file is worth ---- */

static void parse_header(const char *text, size_t count, const char *part, struct tensor_table *out) {
    struct zero_error error;
    char *bytes = malloc(8 + count + 1);
    error_clear(&error);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(count >> 8 * i);
    memcpy(bytes + 8, text, count);
    bytes[8 + count] = 0;
    CHECK_INT(safetensors_parse(bytes, 8 + count, 8 + count, "bomb", out, &error),
              part ? ZERO_E_IO : ZERO_OK);
    if (part) CHECK_CONTAINS(error.message, part);
    free(bytes);
}

/* 200,000 values in 400 kB, which json-c would keep in 20 MB: in a tensor, in its place, in a note. */
static void a_header_of_too_many_values(void) {
    enum { VALUES = 200000 };
    static const char *const begin[] = {"{\"a\":{\"shape\":[", "{\"a\":[", "{\"__metadata__\":{\"a\":["},
                             *const end[] = {"1]}}", "1]}", "1]}}"};
    struct tensor_table table;
    char *text = malloc(2 * VALUES + 64);
    for (int kind = 0; kind < 3; kind++) {
        char *at = text + sprintf(text, "%s", begin[kind]);
        for (int i = 0; i < VALUES - 1; i++) *at++ = '1', *at++ = ',';
        at += sprintf(at, "%s", end[kind]);
        parse_header(text, (size_t)(at - text), "bomb: the header's entry of \"a\" has more than 4096 bytes",
                     &table);
    }
    free(text);
}

/* Headers that are nearly objects; and names and notes with escapes, in any order. */
static void what_a_header_may_be(void) {
    static const char *const bad[] = {"{ ",
                                      "{\"a\"",
                                      "{\"a\":",
                                      "{\"a\":1",
                                      "{\"a\" 1}",
                                      "{,}",
                                      "{\"__metadata__\":{},}",
                                      "{a:1}",
                                      "{\"__metadata__\":{}} x",
                                      "{}}",
                                      "{\"__metadata__\":1 2}",
                                      "{\"\\u0000\":1}",
                                      "{\"__metadata__\":{\"a\":\"\\x\"}}",
                                      "{\"__metadata__\":{\"a\":1]}",
                                      "{\"__metadata__\":{\"a\":\"\xff\"}}"};
    static const char good[] =
        " { \"x\\\"\\u00e9\" : {\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]} ,\n\"__metadata__\": "
        "{\"n\" : 1, "
        "\"x\\u0022\xc3\xa9\": \"no\\tte\", \"l\":[{\"a\":\"]}\"}]} } \n ";
    struct tensor_table table;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        parse_header(bad[i], strlen(bad[i]), "bomb is not JSON", &table);
    parse_header(good + 1, sizeof good - 2, NULL, &table);
    CHECK_INT(table.count, 1);
    CHECK_STRING(table.tensor[0].name, "x\"\xc3\xa9");
    CHECK_STRING(table.tensor[0].note, "no\tte");
    safetensors_free(&table);
}

/* A rank's file of a terabyte has 64 MiB of checksums in its header. What transformers reads has at most 100 MB. */
static void a_large_header(void) {
    enum { CHECKSUMS = 101000000 };
    struct tensor tensor = {.name = "param/w", .dtype = DTYPE_F32, .dims = 1, .shape = {4}, .count = 4};
    struct tensor_table table = {0};
    struct zero_error error;
    char *note = malloc(CHECKSUMS + 1), *header = NULL;
    uint64_t bytes = 0;
    error_clear(&error);
    memset(note, '7', CHECKSUMS), note[CHECKSUMS] = 0, tensor.note = note;
    if (CHECK_INT(safetensors_print(&tensor, 1, NULL, &header, &bytes, &error), ZERO_OK) &&
        CHECK_INT(safetensors_parse(header, bytes, bytes + 16, "large", &table, &error), ZERO_OK))
        CHECK(table.count == 1 && strcmp(table.tensor[0].note, note) == 0);
    safetensors_free(&table);
    free(header);
    CHECK_INT(safetensors_print(&tensor, 1, "pt", &header, &bytes, &error), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "the safetensors header of 1 tensors has 1010");
    free(note);
}

int main(void) {
    a_header_of_too_many_values();
    a_large_header();
    what_a_header_may_be();
    every_bit_counts();
    other_models();
    damaged_files();
    large_manifest();
    wrong_pieces();
    wrong_manifests();
    doomed_saves();
    a_step_that_has_its_hidden_name_alone();
    a_trial_says_what_is_refused();
    deletes_whole_or_not();
    prunes_its_own();
    calls_out_of_order();
    return check_end();
}
