/* checkpoint_bench DIR [MPARAMS [RANKS]]: measures in GB/s how fast zero_engine_save and zero_engine_load move a
 * checkpoint of MPARAMS million parameters with AdamW's state, at stage 3. Loading begins with an empty page cache. To
 * compare, run fio in DIR on the same drive: --rw=write --bs=1M --size=1G --end_fsync=1 --ioengine=io_uring --iodepth=8
 * --direct=1, and --rw=read. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

enum { UNITS = 8 };

struct bench {
    const char *dir;
    struct plain_param param[UNITS];
    uint32_t ranks;
    double save_s, load_s;
};

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)((first + i) * 2654435761u);
}

/* Removes the checkpoint's files from the page cache. */
static void forget(const struct bench *b) {
    for (uint32_t r = 0; r < b->ranks; r++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/step_00000000/rank_%05" PRIu32 ".safetensors", b->dir, r);
        int handle = open(path, O_RDONLY);
        if (handle < 0 || posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED) != 0)
            fprintf(stderr, "%s stays cached\n", path);
        close(handle);
    }
}

static double timed(zero_engine *engine, const char *dir, zero_status (*call)(zero_engine *, const char *)) {
    double ranks = 1;
    zero_engine_sum(engine, &ranks, 1);
    uint64_t began = clock_now_ns();
    if (call(engine, dir)) fprintf(stderr, "%s\n", zero_last_error()), exit(1);
    return (double)(clock_now_ns() - began) * 1e-9;
}

static void run(zero_engine *engine, uint32_t rank, void *user) {
    struct bench *b = user;
    struct plain p;
    double ranks = 1;
    plain_declare(&p, engine, b->param, UNITS);
    if (zero_engine_commit(engine, NULL)) fprintf(stderr, "%s\n", zero_last_error()), exit(1);
    zero_engine_fill(engine, fill, NULL);
    double save_s = timed(engine, b->dir, zero_engine_save);
    if (rank == 0) forget(b);
    zero_engine_sum(engine, &ranks, 1);
    double load_s = timed(engine, b->dir, zero_engine_load);
    if (rank == 0) b->save_s = save_s, b->load_s = load_s;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: checkpoint_bench DIR [MPARAMS [RANKS]]\n"), 2;
    uint64_t millions = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    struct bench b = {.dir = argv[1], .ranks = argc > 3 ? (uint32_t)atoi(argv[3]) : 2};
    static char names[UNITS][8];
    for (int i = 0; i < UNITS; i++) {
        snprintf(names[i], sizeof names[i], "u%d", i);
        b.param[i] = (struct plain_param){names[i], names[i], millions * 1000000 / UNITS, 0, NULL};
    }
    ranks_run(b.ranks, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3}}", run,
              &b);
    double gb = (double)millions * 1e6 * 12 * 1e-9;
    printf("%" PRIu32 " ranks, %.2f GB: saved in %.2f s, %.2f GB/s; loaded in %.2f s, %.2f GB/s\n", b.ranks,
           gb, b.save_s, gb / b.save_s, b.load_s, gb / b.load_s);
    return 0;
}
