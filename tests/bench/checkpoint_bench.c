/* checkpoint_bench DIR [MPARAMS [RANKS [TIER [JSON]]]]: the calls that move a model's whole state, in seconds and GB/s, beside a
 * step: commit, fill, hash, save, load, and recover. MPARAMS million parameters (100) with AdamW's state, RANKS threads (2),
 * stage 3. TIER: cpu (none) keeps everything in memory; nvme keeps state and parameters on a drive, in DIR; shadow is nvme with a
 * shadow. JSON: further members of the configuration, each with a comma before it. Loading begins with an empty page cache.
 *
 * Bytes: what the drive of the state read and wrote, and the checkpoint's files. To compare, run fio in DIR on the same drive:
 * --rw=write --bs=1M --size=1G --end_fsync=1 --ioengine=io_uring --iodepth=8 --direct=1, then --rw=read and --rw=rw. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

enum { UNITS = 8, STEPS = 3 };

struct bench {
    const char *dir;
    char save[4096];
    struct plain_param param[UNITS];
    uint32_t ranks;
    bool shadow;
};

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)((first + i) * 2654435761u);
}

static void must(zero_status status) {
    if (status) fprintf(stderr, "%s\n", zero_last_error()), exit(1);
}

/* The size of the checkpoint's files; removes them from the page cache. */
static double forget(const struct bench *b) {
    double bytes = 0;
    for (uint32_t r = 0; r < b->ranks; r++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/step_%08d/rank_%05" PRIu32 ".safetensors", b->save, STEPS, r);
        int handle = open(path, O_RDONLY);
        if (handle < 0 || posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED) != 0)
            fprintf(stderr, "%s stays cached\n", path);
        bytes += (double)lseek(handle, 0, SEEK_END);
        close(handle);
    }
    return bytes;
}

/* ---- what is measured ---- */

static zero_status call_fill(struct plain *p, const struct bench *b) {
    return zero_engine_fill(p->engine, fill, NULL);
}
static zero_status call_step(struct plain *p, const struct bench *b) {
    zero_status status = zero_engine_step(p->engine, NULL);
    return status ? status : zero_engine_flush(p->engine);
}
static zero_status call_hash(struct plain *p, const struct bench *b) {
    char hash[33];
    return zero_engine_hash(p->engine, hash);
}
static zero_status call_save(struct plain *p, const struct bench *b) {
    return zero_engine_save(p->engine, b->save);
}
static zero_status call_load(struct plain *p, const struct bench *b) {
    zero_engine_discard_shadow(p->engine);
    return zero_engine_load(p->engine, b->save);
}
static zero_status call_recover(struct plain *p, const struct bench *b) {
    return zero_engine_recover(p->engine, fill, NULL, NULL);
}

static double drive_bytes(struct plain *p) {
    zero_counters c = {.struct_size = sizeof c};
    must(zero_engine_counters(p->engine, &c));
    double bytes = (double)c.drive_read_bytes + (double)c.drive_write_bytes;
    must(zero_engine_sum(p->engine, &bytes, 1));
    return bytes;
}

/* Rank 0 prints the time until all ranks have returned. */
static void timed(const char *what, struct plain *p, const struct bench *b, double file_bytes,
                  zero_status (*call)(struct plain *, const struct bench *)) {
    double before = drive_bytes(p);
    uint64_t began = clock_now_ns();
    must(call(p, b));
    double one = 1;
    must(zero_engine_sum(p->engine, &one, 1));
    double took = (double)(clock_now_ns() - began) * 1e-9, gb = (drive_bytes(p) - before + file_bytes) * 1e-9;
    if (zero_engine_rank(p->engine) == 0)
        printf("%-8s %7.2f s %7.2f GB %6.2f GB/s\n", what, took, gb, gb / took);
}

static void commit(struct plain *p, const struct bench *b, zero_engine *engine) {
    uint64_t began = clock_now_ns();
    must(plain_declare(p, engine, b->param, UNITS));
    must(zero_engine_commit(engine, NULL));
    if (zero_engine_rank(engine) == 0)
        printf("%-8s %7.2f s\n", "commit", (double)(clock_now_ns() - began) * 1e-9);
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct bench *b = user;
    static double file_bytes;
    struct plain p;
    commit(&p, b, engine);
    timed("fill", &p, b, 0, call_fill);
    for (int i = 0; i < STEPS; i++) {
        must(plain_pass(&p, ZERO_TRAIN, 0));
        timed("step", &p, b, 0, call_step);
    }
    timed("hash", &p, b, 0, call_hash);
    timed("save", &p, b, 12.0 * UNITS * (double)b->param[0].count, call_save);
    if (rank == 0) file_bytes = forget(b);
    timed("load", &p, b, file_bytes, call_load);
    if (b->shadow) must(plain_pass(&p, ZERO_TRAIN, 0)), timed("step", &p, b, 0, call_step);
}

static void recover(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    commit(&p, user, engine);
    timed("recover", &p, user, 0, call_recover);
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: checkpoint_bench DIR [MPARAMS [RANKS [TIER [JSON]]]]\n"), 2;
    uint64_t millions = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    const char *tier = argc > 4 ? argv[4] : "cpu", *more = argc > 5 ? argv[5] : "";
    struct bench b = {.dir = argv[1], .ranks = argc > 3 ? (uint32_t)atoi(argv[3]) : 2};
    char names[UNITS][8], json[4096], offload[2048] = "";
    snprintf(b.save, sizeof b.save, "%s/save", b.dir);
    b.shadow = strcmp(tier, "shadow") == 0;
    for (int i = 0; i < UNITS; i++) {
        snprintf(names[i], sizeof names[i], "u%d", i);
        b.param[i] = (struct plain_param){names[i], names[i], millions * 1000000 / UNITS, 0, NULL};
    }
    if (strcmp(tier, "cpu") != 0)
        snprintf(offload, sizeof offload,
                 ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, \"offload_param\": "
                 "{\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                 b.dir, b.dir);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3%s}%s%s}", offload,
             b.shadow ? ", \"nvme\": {\"shadow\": true}" : "", more);
    ranks_run(b.ranks, json, train, &b);
    if (b.shadow) ranks_run(b.ranks, json, recover, &b);
    return 0;
}
