/* "checkpoint": {"writers_per_node": N}: at most N ranks of a node have their file of a checkpoint open at a time. The files have the
 * same bytes as without the key, and load at another number of ranks. A file that cannot be written ends the save on all ranks, and a
 * rank that is gone ends the training. Nodes need not have equally many ranks. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "engine/checkpoint/storage.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tcp_ranks.h"

enum { RANKS = 4, NODE = 2, HOSTS = 0, COUNT = 90001, LOOKS = 60000, PEER_S = 60 };

static const struct plain_param params[] = {{"a", "a.w", COUNT, 0, NULL}, {"b", "b.w", 300, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

/* ---- a file system that counts the open files of checkpoints ---- */

static atomic_int writing[RANKS], most; /* by node */
static int together;                    /* a file waits until so many of its node are open; 0: none waits */
static int node_ranks;                  /* HOSTS: by the hosts' names */
static int failing, gone;               /* the rank whose file fails, or whose process ends; -1: none */
static _Thread_local storage_handle own;
static _Thread_local atomic_int *node;
static atomic_int callers;
static _Thread_local int host; /* 0: not yet named */

/* Three ranks are on one host, the others on another. */
int gethostname(char *name, size_t bytes) {
    if (!host) host = atomic_fetch_add(&callers, 1) < 3 ? 1 : 2;
    snprintf(name, bytes, "host%d", host);
    return 0;
}

static storage_handle create(struct storage *s, const char *path, uint64_t bytes,
                             const struct storage_staging *staging) {
    const char *name = strstr(path, "/rank_");
    if (!name) return storage_posix()->ops->create(storage_posix(), path, bytes, staging);
    int rank = atoi(name + 6);
    if (rank == failing) return -ENOSPC;
    if (rank == gone) _exit(check_end());
    node = &writing[node_ranks ? rank / node_ranks : host];
    int now = atomic_fetch_add(node, 1) + 1;
    if (now > atomic_load(&most)) atomic_store(&most, now);
    for (int i = 0; i < LOOKS && atomic_load(&most) < together; i++) usleep(1000);
    return own = storage_posix()->ops->create(storage_posix(), path, bytes, staging);
}

static void close_file(struct storage *s, storage_handle handle) {
    if (handle == own) usleep(2000), atomic_fetch_sub(node, 1), own = 0;
    storage_posix()->ops->close(storage_posix(), handle);
}

static struct storage *counting(void) {
    static struct storage_ops ops;
    static struct storage storage = {&ops};
    ops = *storage_posix()->ops;
    ops.create = create, ops.close = close_file;
    return &storage;
}

/* ---- runs ---- */

static struct storage *storage;
static const char *saved; /* directory */
static char json[600], hash[33], directory[512];

static void configure(int of_node, int writers) {
    char key[40] = "", of[24] = "\"auto\"";
    if (writers) snprintf(key, sizeof key, "\"writers_per_node\": %d", writers);
    if (of_node) snprintf(of, sizeof of, "%d", of_node);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": 3, "
             "\"stage3_param_persistence_threshold\": 0}, \"comm\": {\"node_ranks\": %s, \"timeout_s\": %d}, "
             "\"checkpoint\": {%s}}",
             of, PEER_S, key);
    node_ranks = of_node, failing = gone = -1, together = 0;
    atomic_store(&most, 0);
    atomic_store(&callers, 0);
}

static void save(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    char mine[33];
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, mine), ZERO_OK);
    if (!rank) memcpy(hash, mine, sizeof hash);
    CHECK_INT(engine_save(engine, storage, saved), failing < 0 ? ZERO_OK : ZERO_E_IO);
    if (failing >= 0) {
        CHECK_CONTAINS(zero_last_error(), "rank 1: ");
        CHECK_CONTAINS(zero_last_error(), "No space left");
        CHECK_INT(zero_engine_save(engine, saved), ZERO_OK); /* on a file system that has room */
    }
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
}

static void load(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    char mine[33];
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(zero_engine_load(engine, saved), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, mine), ZERO_OK);
    if (!rank) CHECK_STRING(mine, hash);
}

static const char *fresh(const char *name) {
    snprintf(directory, sizeof directory, "%s/%s", getenv("TEST_TMPDIR"), name);
    return directory;
}

static uint8_t *read_file(const char *root, int rank, size_t *out_bytes) {
    char path[600];
    struct stat found = {0};
    snprintf(path, sizeof path, "%s/%s/step_00000001/rank_%05d.safetensors", getenv("TEST_TMPDIR"), root,
             rank);
    FILE *file = fopen(path, "rb");
    if (!CHECK(file) || !file) return NULL;
    CHECK_INT(fstat(fileno(file), &found), 0);
    uint8_t *bytes = malloc((size_t)found.st_size);
    *out_bytes = fread(bytes, 1, (size_t)found.st_size, file);
    fclose(file);
    return bytes;
}

/* Nodes of another size would have other sums. `reference`: saved by all ranks at once. */
static void compare_files(const char *name, const char *reference) {
    for (int r = 0; r < RANKS; r++) {
        size_t bytes = 0, expected = 1;
        uint8_t *got = read_file(name, r, &bytes), *all = read_file(reference, r, &expected);
        if (CHECK_INT(bytes, expected) && got && all) CHECK_BYTES(got, all, bytes);
        free(got), free(all);
    }
}

static const struct row {
    const char *name;
    int node_ranks, writers, most;
    const char *reference; /* NULL: none */
} rows[] = {{"nodes", NODE, 0, NODE, NULL},   {"node", RANKS, 0, RANKS, NULL},
            {"in turn", NODE, 1, 1, "nodes"}, {"in pairs", RANKS, 2, 2, "node"},
            {"three", RANKS, 3, 3, "node"},   {"not equal", 3, 1, 1, NULL},
            {"hosts", HOSTS, 1, 1, NULL},     {"pairs of a host", HOSTS, 2, 2, NULL}};

static void test_turns(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        saved = fresh(row->name);
        configure(row->node_ranks, row->writers);
        together = row->most;
        ranks_run(RANKS, json, save, NULL);
        if (!CHECK_INT(atomic_load(&most), row->most)) fprintf(stderr, "%s\n", row->name);
        CHECK_INT(atomic_load(&callers), RANKS); /* the engine asked for the hosts' names */
        if (row->reference) compare_files(row->name, row->reference);
        configure(3, row->writers);
        ranks_run(3, json, load, NULL);
    }
}

static void test_failure(void) {
    saved = fresh("full");
    configure(RANKS, 1);
    failing = 1;
    ranks_run(RANKS, json, save, NULL);
}

/* ---- a process ends in its turn ---- */

static void lose_peer(const zero_runtime *runtime, void *user) {
    struct plain p;
    zero_engine *e = zero_engine_init_with(json, runtime);
    if (!CHECK(e) || !CHECK_INT(plain_open(&p, e, params, PARAMS, NULL), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(engine_save(e, storage, saved), ZERO_E_PEER);
    CHECK_CONTAINS(zero_last_error(), "rank 1");
    zero_engine_destroy(e);
}

static void test_lost(void) {
    saved = fresh("lost");
    configure(RANKS, 1);
    gone = 1;
    tcp_processes(RANKS, 5 * PEER_S, lose_peer, NULL);
}

int main(void) {
    storage = counting();
    test_turns();
    test_failure();
    test_lost();
    return check_end();
}
