/* Saves in the background: training continues to the same bits, and the checkpoint holds the bits of the moment of the
 * save. A save that fails, is slow or is abandoned harms nothing. */
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/seeds.h"

enum { COUNT = 90001, BEFORE = 2, AFTER = 3, SAVED_S = 300 };

/* A frozen parameter; a unit that is used first though it was declared last cannot be, but one that is small can. */
static const struct plain_param params[] = {{"a", "a.w", COUNT, 0, NULL},
                                            {"a", "a.b", 17, ZERO_NO_DECAY, NULL},
                                            {"b", "b.fixed", 400, ZERO_FROZEN, NULL},
                                            {"b", "b.w", COUNT, 0, NULL},
                                            {"c", "c.w", 5, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

/* Where whole matrices are updated: of the two large parameters. */
static const uint64_t columns[PARAMS] = {1, 0, 0, 1, 0};

/* ---- a drive that is slow, stands still or fails ---- */

static struct {
    long delay_ns;
    sem_t *gate, *sync_gate; /* every write, every sync waits for it; NULL: none */
    const char *fails;       /* a part of the path of files that cannot be written; NULL: none */
    const char *unread;      /* the same, of files for which the device cannot copy; NULL: none */
} drive;

static _Thread_local bool unread; /* this thread writes such a file */

struct named { /* what storage_posix opened, and its path */
    storage_handle handle;
    char path[STORAGE_PATH_BYTES];
};

static storage_handle named_create(struct storage *s, const char *path, uint64_t bytes,
                                   const struct storage_staging *staging) {
    struct named *named = malloc(sizeof *named);
    unread = drive.unread && strstr(path, drive.unread);
    named->handle = storage_posix()->ops->create(storage_posix(), path, bytes, staging);
    snprintf(named->path, sizeof named->path, "%s", path);
    if (named->handle >= 0) return (storage_handle)named;
    storage_handle failed = named->handle;
    free(named);
    return failed;
}

static storage_handle named_open(struct storage *s, const char *path) {
    struct named *named = malloc(sizeof *named);
    named->handle = storage_posix()->ops->open(storage_posix(), path);
    snprintf(named->path, sizeof named->path, "%s", path);
    if (named->handle >= 0) return (storage_handle)named;
    storage_handle failed = named->handle;
    free(named);
    return failed;
}

static int64_t named_size(struct storage *s, storage_handle h) {
    return storage_posix()->ops->size(storage_posix(), ((struct named *)h)->handle);
}

static int64_t named_read(struct storage *s, storage_handle h, void *to, size_t bytes, uint64_t offset) {
    return storage_posix()->ops->read(storage_posix(), ((struct named *)h)->handle, to, bytes, offset);
}

static int64_t named_write(struct storage *s, storage_handle h, const void *from, size_t bytes,
                           uint64_t offset) {
    const struct named *named = (struct named *)h;
    bool shard = strstr(named->path, ".safetensors");
    if (shard && drive.delay_ns) nanosleep(&(struct timespec){.tv_nsec = drive.delay_ns}, NULL);
    if (shard && drive.gate) sem_wait(drive.gate), sem_post(drive.gate);
    if (drive.fails && strstr(named->path, drive.fails)) return -EIO;
    return storage_posix()->ops->write(storage_posix(), named->handle, from, bytes, offset);
}

static int named_sync(struct storage *s, storage_handle h) {
    const struct named *named = (struct named *)h;
    if (drive.sync_gate && strstr(named->path, ".safetensors"))
        sem_wait(drive.sync_gate), sem_post(drive.sync_gate);
    return storage_posix()->ops->sync(storage_posix(), ((struct named *)h)->handle);
}

static void named_close(struct storage *s, storage_handle h) {
    storage_posix()->ops->close(storage_posix(), ((struct named *)h)->handle);
    free((struct named *)h);
}

static struct storage *slow(void) {
    static struct storage_ops ops;
    static struct storage storage = {&ops};
    return &storage;
}

/* Before any rank runs. */
static void open_slow(void) {
    struct storage_ops *ops = (struct storage_ops *)(uintptr_t)slow()->ops;
    *ops = *storage_posix()->ops;
    ops->create = named_create, ops->open = named_open, ops->size = named_size, ops->read = named_read;
    ops->write = named_write, ops->sync = named_sync, ops->close = named_close;
}

/* ---- a device that fails in the save's thread ---- */

static zero_status failing_copy(struct device *device, enum device_stream stream, void *target,
                                const void *source, uint64_t bytes, uint64_t *out_ticket,
                                struct zero_error *error) {
    if (unread) return error_set(error, ZERO_E_INTERNAL, "the device does not copy for %s", drive.unread);
    return device_table[DEVICE_SIM]->copy(device, stream, target, source, bytes, out_ticket, error);
}

static struct device_ops failing_device;

/* ---- runs ---- */

static char directory[512];

struct run {
    const char *swap; /* of zero_optimization */
    const char *type;
    uint32_t ranks, stage;
    bool muon;                            /* and AdamW for the small ones */
    bool discrete;                        /* on a device whose memory the host cannot touch */
    bool looks;                           /* reads what the first step after the save has made */
    float last[5];                        /* of it, the first moments of the parameter that is saved last */
    char before[33], next[33], after[33]; /* hashes, of rank 0 */
};

static void configure(const struct run *run, bool async, char *json, size_t capacity) {
    char tiers[1500];
    snprintf(tiers, sizeof tiers, run->swap, directory);
    snprintf(json, capacity,
             "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"%s\", \"params\": "
             "{\"lr\": 0.01}}, %s"
             "\"threads\": 1, \"checkpoint\": {\"async\": %s, \"async_bytes\": \"1MiB\"}, "
             "\"zero_optimization\": {\"stage\": %u, \"sub_group_size\": 8192, "
             "\"stage3_param_persistence_threshold\": 0%s}%s}",
             run->muon ? "Muon" : "AdamW",
             run->muon ? "\"param_groups\": [{\"match\": [\"a.b\", \"c.w\"], \"optimizer\": \"AdamW\"}], "
                       : "",
             async ? "true" : "false", run->stage, tiers, run->type);
}

static void train(struct plain *p, int steps) {
    for (int i = 0; i < steps; i++)
        if (!CHECK_INT(plain_step(p, 1, NULL), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void hash(zero_engine *engine, char out[33]) {
    char mine[33];
    CHECK_INT(zero_engine_hash(engine, mine), ZERO_OK);
    if (!zero_engine_rank(engine)) memcpy(out, mine, sizeof mine);
}

static void never_saves(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine) ||
        !CHECK_INT(plain_declare_matrices(&p, engine, params, PARAMS, run->muon ? columns : NULL), ZERO_OK) ||
        !CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK) ||
        !CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK))
        return;
    train(&p, BEFORE);
    hash(engine, run->before);
    float last[5];
    train(&p, 1);
    CHECK_INT(zero_engine_get(engine, "c.w", ZERO_STATE0, last, 0, 5), ZERO_OK);
    if (!rank) memcpy(run->last, last, sizeof last);
    hash(engine, run->next);
    train(&p, AFTER - 1);
    hash(engine, run->after);
}

static void saves(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char after[33] = "";
    if (!CHECK(engine) ||
        !CHECK_INT(plain_declare_matrices(&p, engine, params, PARAMS, run->muon ? columns : NULL), ZERO_OK) ||
        !CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK) ||
        !CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK))
        return;
    train(&p, BEFORE);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
    train(&p, 1);
    if (run->looks) {
        float last[5];
        CHECK_INT(zero_engine_get(engine, "c.w", ZERO_STATE0, last, 0, 5), ZERO_OK);
        CHECK_BYTES(last, run->last, sizeof last);
        hash(engine, after);
    }
    if (run->looks && !rank) CHECK_STRING(after, run->next);
    train(&p, AFTER - 1);
    hash(engine, after);
    if (!rank) CHECK_STRING(after, run->after);
    if (!CHECK_INT(zero_engine_save_wait(engine), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void loads(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char got[33] = "";
    if (!CHECK(engine) ||
        !CHECK_INT(plain_declare_matrices(&p, engine, params, PARAMS, run->muon ? columns : NULL), ZERO_OK))
        return;
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    if (!CHECK_INT(zero_engine_load(engine, directory), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    hash(engine, got);
    if (!rank) CHECK_STRING(got, run->before);
    train(&p, AFTER);
    hash(engine, got);
    if (!rank) CHECK_STRING(got, run->after);
}

static void on(struct run *run, bool async, ranks_fn body) {
    char json[4096];
    configure(run, async, json, sizeof json);
    (run->discrete ? ranks_run_discrete : ranks_run)(run->ranks, json, body, run);
}

static void save_and_load(struct run *run) {
    on(run, false, never_saves);
    for (int k = 0; k < 2; k++) { /* with staging past the page cache, and with a slow drive */
        drive.delay_ns = k ? 3000000 : 0;
        run->looks = k;
        on(run, true, saves);
        on(run, false, loads);
    }
}

/* In a short run, each tier and stage in one type. */
static void test_everywhere(void) {
    static const char *const swaps[] = {
        "", ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}",
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\", \"buffer_count\": 2}",
        (", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}, "
         "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}")};
    static const char *const types[] = {"", ", \"bf16\": {\"enabled\": true}"};
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (uint32_t swap = 0; swap < (stage == 3 ? 4 : 3); swap++)
            for (uint32_t type = 0; type < 2; type++) {
                struct run run = {.swap = swaps[swap],
                                  .type = types[type],
                                  .ranks = 1 + (stage + swap + type) % 2,
                                  .stage = stage};
                int failures = atomic_load(&check_failures);
                if (seeds_divisor() > 1 && type != (stage & swap & 1)) continue;
                save_and_load(&run);
                if (atomic_load(&check_failures) != failures)
                    fprintf(stderr, "stage %u, swap %u, type %u, %u ranks\n", stage, swap, type, run.ranks);
            }
    drive.delay_ns = 0;
}

/* Updates in the backward wait for the save, too. */
static void test_updates(void) {
    static const char *const swaps[] = {
        ", \"update_in_backward\": true",
        (", \"update_in_backward\": true, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"%1$s/swap\"}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}")};
    for (uint32_t k = 0; k < 2; k++) {
        struct run run = {.swap = swaps[k], .type = ", \"gradient_clipping\": 0", .ranks = 2, .stage = 2 + k};
        save_and_load(&run);
    }
    drive.delay_ns = 0;
}

/* Ranks that still save hold back the others' directions; the momentum is saved as it was before them. */
static void test_matrices(void) {
    static const char *const swaps[] = {
        "", (", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\", "
             "\"buffer_count\": 2}, "
             "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/swap\"}")};
    for (uint32_t k = 0; k < 2; k++) {
        struct run run = {.swap = swaps[k],
                          .type = k ? ", \"bf16\": {\"enabled\": true}" : "",
                          .muon = true,
                          .ranks = 2,
                          .stage = 2 + k};
        save_and_load(&run);
    }
    drive.delay_ns = 0;
}

/* ---- what a save does not wait for ---- */

static struct run plain_run(uint32_t ranks) {
    return (struct run){.swap = "", .type = "", .ranks = ranks, .stage = 3};
}

/* Runs a whole pass while nothing is written. */
static void pass_meanwhile(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    double sum = 1;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, BEFORE);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_EVAL, 0), ZERO_OK);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK);
    if (!rank) sem_post(drive.gate);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save_wait(engine), ZERO_OK);
}

/* Runs whole steps once all data are copied, although nothing is durable yet. */
static void steps_meanwhile(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    double sum = 1;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, BEFORE);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
    train(&p, AFTER);
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK);
    if (!rank) sem_post(drive.sync_gate);
    CHECK_INT(zero_engine_save_wait(engine), ZERO_OK);
}

static void test_meanwhile(void) {
    sem_t gate;
    struct run run = plain_run(2);
    sem_init(&gate, 0, 0);
    drive.gate = &gate;
    on(&run, true, pass_meanwhile);
    drive.gate = NULL;
    sem_destroy(&gate);
    sem_init(&gate, 0, 0);
    drive.sync_gate = &gate;
    on(&run, true, steps_meanwhile);
    drive.sync_gate = NULL;
    sem_destroy(&gate);
}

static bool is_there(const char *name) {
    char path[600];
    struct stat found;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return stat(path, &found) == 0;
}

static bool is_saved(uint64_t step) {
    char name[64];
    snprintf(name, sizeof name, "step_%08llu/manifest.json", (unsigned long long)step);
    return is_there(name);
}

/* No rank waits: later steps complete the save. */
static void completes_by_steps(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, 1);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
    uint64_t began_ns = clock_now_ns();
    double ends[2] = {0}; /* it is saved; it has taken too long */
    while (!ends[0] && !ends[1]) {
        train(&p, 1);
        ends[0] = is_saved(1), ends[1] = (double)(clock_now_ns() - began_ns) * 1e-9 > SAVED_S;
        if (!CHECK_INT(zero_engine_sum(engine, ends, 2), ZERO_OK)) return;
    }
    CHECK(ends[0] > 0);
}

/* The program leaves the directory that the save's relative path began in. */
static void goes_elsewhere(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    double sum = 1;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, 1);
    CHECK_INT(engine_save(engine, slow(), "relative"), ZERO_OK);
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK); /* all ranks have begun */
    if (!rank) CHECK_INT(chdir("/") || sem_post(drive.gate), 0);
    if (!CHECK_INT(zero_engine_save_wait(engine), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void test_elsewhere(void) {
    sem_t gate;
    struct run run = plain_run(2);
    sem_init(&gate, 0, 0);
    drive.gate = &gate;
    CHECK_INT(chdir(getenv("TEST_TMPDIR")), 0);
    on(&run, true, goes_elsewhere);
    CHECK(is_there("../relative/step_00000001/manifest.json"));
    drive.gate = NULL;
    sem_destroy(&gate);
}

/* ---- failures ---- */

static void fails(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char after[33] = "";
    const char *file = drive.fails ? drive.fails : drive.unread;
    zero_status status = drive.fails ? ZERO_E_IO : ZERO_E_INTERNAL;
    if (engine && run->discrete) engine_running(engine)->device->ops = &failing_device;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, BEFORE);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
    train(&p, AFTER);
    CHECK_INT(zero_engine_save_wait(engine), status);
    CHECK_CONTAINS(zero_last_error(), file);
    if (strstr(file, "rank_00001")) CHECK_CONTAINS(zero_last_error(), "rank 1: ");
    CHECK_INT(zero_engine_save_wait(engine), status); /* until the next one */
    hash(engine, after);
    if (!rank) CHECK_STRING(after, run->after);
    CHECK(!is_saved(BEFORE));
    double sum = 1;
    CHECK_INT(zero_engine_sum(engine, &sum, 1), ZERO_OK); /* rank 0 is past it too */
    CHECK(!is_there(".step_00000002.saving"));
    /* this one fails before it is in the background */
    CHECK_INT(zero_engine_save(engine, "/dev/null/runs"), ZERO_E_IO);
    CHECK_INT(zero_engine_save_wait(engine), ZERO_E_IO);
    CHECK_INT(zero_engine_save(engine, directory), ZERO_OK);
    CHECK_INT(zero_engine_save_wait(engine), ZERO_OK);
    CHECK(is_saved(BEFORE + AFTER));
}

/* In a file, in the manifest after all files, and in a copy from the device. */
static void test_failures(void) {
    static const char *const files[] = {"rank_00001", "manifest.json"};
    failing_device = *device_table[DEVICE_SIM];
    failing_device.copy = failing_copy;
    for (int i = 0; i < 5; i++) {
        char command[600];
        snprintf(command, sizeof command, "rm -rf '%s'/step_*", directory);
        CHECK_INT(system(command), 0);
        struct run run = plain_run(2);
        on(&run, false, never_saves);
        run.discrete = i >= 2;
        *(i < 4 ? &drive.fails : &drive.unread) = files[i < 4 ? i % 2 : 0];
        on(&run, true, fails);
        drive.fails = drive.unread = NULL;
    }
}

/* The engine is destroyed while its files are being written: the one before stays the latest. */
static void leaves(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    train(&p, BEFORE);
    CHECK_INT(zero_engine_save(engine, directory), ZERO_OK);
    train(&p, 1);
    CHECK_INT(zero_engine_save_wait(engine), ZERO_OK);
    CHECK_INT(engine_save(engine, slow(), directory), ZERO_OK);
}

static void test_leaving(void) {
    struct run run = plain_run(2);
    on(&run, false, never_saves);
    drive.delay_ns = 2000000;
    on(&run, true, leaves);
    drive.delay_ns = 0;
    on(&run, false, loads); /* of step BEFORE */
}

/* ---- the plan ---- */

static void plans(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, &plan), ZERO_OK)) return;
    uint64_t *bytes = user;
    *bytes = plan.bytes[ZERO_CPU];
}

static void test_plan(void) {
    struct run run = plain_run(1);
    uint64_t bytes[2];
    for (int async = 0; async < 2; async++) {
        char json[4096];
        configure(&run, async, json, sizeof json);
        ranks_run(1, json, plans, &bytes[async]);
    }
    CHECK_INT(bytes[0], 0);
    CHECK_INT(bytes[1], (1 << 20) + (256 << 10)); /* async_bytes, and the block that passes into it */
}

int main(void) {
    snprintf(directory, sizeof directory, "%s/saved", getenv("TEST_TMPDIR"));
    mkdir(directory, 0777);
    open_slow();
    test_everywhere();
    test_updates();
    test_matrices();
    test_meanwhile();
    struct run run = plain_run(2);
    on(&run, true, completes_by_steps);
    test_failures();
    test_leaving();
    test_plan();
    test_elsewhere();
    return check_end();
}
