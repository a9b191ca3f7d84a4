/* Files of storage_posix with faulty transfers: the written data are in the file, or a call reports that they are
 * not. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/storage.h"
#include "tests/check.h"
#include "tests/offload/faults.h"

enum { BYTES = (5 << 20) + 77, HEAD = 8192, PIECE_MAX = 700000, SEEDS = 150, STAGING_MIN = 1 << 20 };

static uint8_t expected[BYTES], found[BYTES];

static uint32_t pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

enum { PARTS_MAX = 5 }; /* more than there are streams (direct.h) */

/* In pieces of any size, in several parts of the file that take turns, as a shard's kinds do; the first HEAD bytes last, as a
 * shard's header is. */
static zero_status write_all(struct storage_file *file, uint64_t *state, struct zero_error *error) {
    uint64_t at[PARTS_MAX], end[PARTS_MAX], left = BYTES - HEAD;
    uint32_t parts = 1 + pick(state, PARTS_MAX);
    for (uint32_t i = 0; i < parts; i++) {
        at[i] = i ? end[i - 1] : HEAD;
        end[i] = i + 1 < parts ? at[i] + pick(state, (BYTES - HEAD) / parts) : BYTES;
    }
    zero_status status = ZERO_OK;
    while (left && !status) {
        uint32_t i = pick(state, parts);
        uint64_t bytes = 1 + pick(state, PIECE_MAX);
        if (bytes > end[i] - at[i]) bytes = end[i] - at[i];
        status = storage_write(file, expected + at[i], bytes, at[i], error);
        at[i] += bytes, left -= bytes;
    }
    if (!status) status = storage_write(file, expected, HEAD, 0, error);
    return status ? status : storage_sync(file, error);
}

static bool is_there(const char *path) {
    struct storage_file file = {0};
    struct zero_error error;
    error_clear(&error);
    memset(found, 0, sizeof found);
    zero_status status = storage_open(storage_posix(), path, &file, &error);
    if (!status) status = storage_read(&file, found, BYTES, 0, &error);
    storage_close(&file);
    return !status && !memcmp(found, expected, BYTES);
}

static uint64_t fired(const struct faults *f, enum fault first, enum fault last) {
    uint64_t sum = 0;
    for (int i = (int)first; i <= (int)last; i++) sum += atomic_load(&f->fired[i]);
    return sum;
}

/* A third of the seeds has transfers that fail; all have those that must be done again. */
static void run(uint64_t seed, void *memory, uint64_t total[2]) {
    char path[4096];
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    struct faults faults = {.seed = seed, .armed = true};
    struct storage_staging staging = {memory, (uint64_t)STAGING_MIN * (1 + pick(&state, 4)),
                                      faults_hook(&faults)};
    struct storage_file file = {0};
    struct zero_error error;
    error_clear(&error);
    for (int f = FAULT_EINTR; f <= FAULT_TRANSFER_DELAYED; f++) faults.probability[f] = 0.1;
    if (seed % 3 == 0) faults.probability[pick(&state, 2) ? FAULT_EIO : FAULT_ENOSPC] = 0.05;
    for (uint32_t i = 0; i < BYTES; i++) expected[i] = (uint8_t)(i * 2654435761u >> 24) + (uint8_t)seed;
    snprintf(path, sizeof path, "%s/file", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    unlink(path);
    zero_status status = storage_create(storage_posix(), path, BYTES, &staging, &file, &error);
    if (!status) status = write_all(&file, &state, &error);
    storage_close(&file);
    bool harmed = fired(&faults, FAULT_EIO, FAULT_ENOSPC);
    CHECK_INT(status, harmed ? ZERO_E_IO : ZERO_OK);
    if (!status) CHECK(is_there(path));
    if (status) CHECK_CONTAINS(error.message, path);
    total[0] += fired(&faults, FAULT_EINTR, FAULT_TRANSFER_DELAYED);
    total[1] += harmed;
}

/* A reader of a FIFO would wait for a writer for ever. */
static void a_fifo_is_no_file(void) {
    struct storage_file file = {0};
    struct zero_error error;
    char path[4096];
    error_clear(&error);
    snprintf(path, sizeof path, "%s/fifo", getenv("TEST_TMPDIR"));
    CHECK_INT(mkfifo(path, 0600), 0);
    CHECK_INT(storage_open(storage_posix(), path, &file, &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "fifo: it is not a regular file");
    CHECK_INT(storage_open(storage_posix(), getenv("TEST_TMPDIR"), &file, &error), ZERO_E_IO);
    CHECK_INT(unlink(path), 0);
}

int main(void) {
    a_fifo_is_no_file();
    uint64_t total[2] = {0};
    void *memory = aligned_alloc(4096, 4 * STAGING_MIN);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        check_seed(seed);
        run(seed, memory, total);
    }
    /* Some file systems have no direct way: then nothing can fire. */
    printf("%llu faults that must do no harm, %llu runs that failed\n", (unsigned long long)total[0],
           (unsigned long long)total[1]);
    CHECK(total[0] > SEEDS && total[1] > SEEDS / 10);
    free(memory);
    return check_end();
}
