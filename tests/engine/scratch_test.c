/* Scratch on the drive. What was stored comes back, in any order, from one path or two, by io_uring or threads, beside state on the
 * drive and without any. The plan is what is measured, and nothing stays. A transfer that fails, and bytes that are not what was
 * stored, end the run on all ranks with a sentence that says where. Calls that cannot be are refused with the reason. */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/offload/faults.h"

enum { PAGE = 4096, RANKS = 2, ODD = 1, SMALL = 3 * PAGE, LARGE = 40 * PAGE, PLACES = 7, FLIGHTS = 4 };

static const struct plain_param model[] = {{"a", "a.w", 3000, 0, NULL}, {"b", "b.w", 5000, 0, NULL}};
enum { PARAMS = sizeof model / sizeof *model };

static const char *directory(void) { return getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp"; }

/* `paths`: 0: those of the state. */
static void configure(char *out, size_t capacity, int paths, const char *more) {
    char names[2][600], state[1500] = "", scratch[1500] = "";
    for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "\"%s/scratch.%d\"", directory(), i);
    if (paths)
        snprintf(scratch, sizeof scratch, ", \"nvme_path\": [%s%s%s]", names[0], paths > 1 ? ", " : "",
                 paths > 1 ? names[1] : "");
    else
        snprintf(state, sizeof state, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": %s}",
                 names[0]);
    snprintf(
        out, capacity,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"comm\": {\"timeout_s\": 20}, \"aio\": "
        "{\"block_size\": 8192}, \"zero_optimization\": {\"stage\": 2%s}, \"activation_checkpointing\": "
        "{\"nvme_checkpointing\": true%s}%s}",
        state, scratch, more);
}

/* ---- what comes back ---- */

struct shelf { /* a scratch, and memory for some of its places */
    zero_scratch *scratch;
    uint64_t bytes;
    unsigned char *memory[FLIGHTS];
};

static zero_scratch_needs needs_of(const char *name, uint64_t bytes, uint64_t transfers) {
    return (zero_scratch_needs){.struct_size = sizeof(zero_scratch_needs),
                                .name = name,
                                .place_bytes = bytes,
                                .places = PLACES,
                                .step_stores = transfers,
                                .step_fetches = transfers};
}

static void shelf_open(struct shelf *s, zero_engine *engine, const char *name, uint64_t bytes) {
    zero_scratch_needs needs = needs_of(name, bytes, PLACES);
    s->bytes = bytes;
    CHECK_INT(zero_engine_add_scratch(engine, &needs, &s->scratch), ZERO_OK);
    for (int i = 0; i < FLIGHTS; i++) s->memory[i] = aligned_alloc(PAGE, bytes);
}

static void shelf_close(struct shelf *s) {
    for (int i = 0; i < FLIGHTS; i++) free(s->memory[i]);
}

static void fill(unsigned char *memory, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)((seed + 1) * 2654435761u * (i + 1) >> 13);
}

/* All places, FLIGHTS at a time, stored in one order and fetched in another. */
static zero_status shelf_use(struct shelf *s, uint64_t seed) {
    zero_status status = ZERO_OK;
    uint64_t expected[LARGE / 8];
    for (uint32_t p = 0; p < PLACES && !status; p++) {
        unsigned char *memory = s->memory[p % FLIGHTS];
        if (p >= FLIGHTS) status = zero_scratch_wait(s->scratch, p - FLIGHTS);
        fill(memory, s->bytes, seed + p);
        if (!status) status = zero_scratch_store(s->scratch, p, memory);
    }
    for (uint32_t p = 0; p < PLACES && !status; p++) status = zero_scratch_wait(s->scratch, p);
    for (uint32_t k = 0; k < PLACES + 2 && !status; k++) {
        uint32_t done = (PLACES - 1 - k + 2) * 3 % PLACES, next = (PLACES - 1 - k) * 3 % PLACES;
        if (k >= 2 && (status = zero_scratch_wait(s->scratch, done))) break;
        fill((unsigned char *)expected, s->bytes, seed + done);
        if (k >= 2) CHECK_BYTES(s->memory[(k - 2) % FLIGHTS], expected, s->bytes);
        if (k < PLACES) status = zero_scratch_fetch(s->scratch, next, s->memory[k % FLIGHTS]);
    }
    return status;
}

static uint32_t entries(void) {
    uint32_t count = 0;
    for (int i = 0; i < 2; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/scratch.%d", directory(), i);
        DIR *dir = opendir(path);
        for (struct dirent *d; dir && (d = readdir(dir));) count += d->d_name[0] != '.';
        if (dir) closedir(dir);
    }
    return count;
}

static void check_rows(const zero_engine *engine) {
    zero_memory_row row = {.struct_size = sizeof row};
    uint64_t planned = 0;
    for (uint32_t i = 0; !zero_engine_memory(engine, i, &row); i++) {
        if (strcmp(row.name, "small") != 0 && strcmp(row.name, "large") != 0) continue;
        CHECK_INT(row.tier, ZERO_NVME);
        CHECK_INT(row.measured, row.planned);
        planned += row.planned;
    }
    CHECK_INT(planned, PLACES * (SMALL + LARGE));
}

/* `user`: the state's own bytes on the drive in a step, 0 without any. */
static void comes_back(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    struct shelf small, large;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_counters before = {.struct_size = sizeof before}, after = before;
    if (!CHECK(engine)) return;
    shelf_open(&small, engine, "small", SMALL);
    shelf_open(&large, engine, "large", LARGE);
    CHECK_INT(plain_open(&p, engine, model, PARAMS, &plan), ZERO_OK);
    check_rows(engine);
    for (uint64_t step = 0; step < 3; step++) {
        CHECK_INT(zero_engine_flush(engine), ZERO_OK);
        zero_engine_counters(engine, &before);
        CHECK_INT(shelf_use(&small, 100 * step + rank), ZERO_OK);
        CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
        for (uint32_t u = 0; u < p.units; u++) CHECK_INT(plain_forward(&p, u), ZERO_OK);
        CHECK_INT(zero_backward_begin(p.unit[1]), ZERO_OK); /* inside of a use */
        plain_give(&p, 1, 0);
        CHECK_INT(shelf_use(&large, 100 * step + 50 + rank), ZERO_OK);
        CHECK_INT(zero_backward_end(p.unit[1]), ZERO_OK);
        CHECK_INT(plain_backward(&p, 0, 0), ZERO_OK);
        CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
        CHECK_INT(zero_engine_flush(engine), ZERO_OK);
        zero_engine_counters(engine, &after);
        if (!step) continue; /* the first step's state was never stored */
        CHECK_INT(after.drive_read_bytes - before.drive_read_bytes, plan.drive_read_bytes);
        CHECK_INT(after.drive_write_bytes - before.drive_write_bytes, plan.drive_write_bytes);
    }
    CHECK_INT(entries(), 0);
    shelf_close(&small), shelf_close(&large);
}

/* ---- failures ---- */

struct harm {
    enum fault fault;
    const char *here;
    struct faults faults;
    pthread_barrier_t together;
};

static void one_fails(zero_engine *engine, uint32_t rank, void *user) {
    struct harm *harm = user;
    struct plain p;
    struct shelf small;
    if (!CHECK(engine)) return;
    if (rank == ODD) engine_running(engine)->hook = faults_hook(&harm->faults);
    shelf_open(&small, engine, "small", SMALL);
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    pthread_barrier_wait(&harm->together);
    if (rank == ODD) {
        harm->faults.probability[harm->fault] = 1;
        CHECK_INT(shelf_use(&small, 5), ZERO_E_IO);
        CHECK_CONTAINS(zero_last_error(), "small, place ");
        CHECK_CONTAINS(zero_last_error(), harm->here);
        CHECK_CONTAINS(zero_last_error(), "/scratch.0 ");
        CHECK_CONTAINS(zero_last_error(), "at offset ");
        for (uint32_t place = 0; place < PLACES; place++) /* ends all transfers, and returns the failure */
            CHECK_INT(zero_scratch_wait(small.scratch, place), ZERO_E_IO);
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_E_IO);
    }
    pthread_barrier_wait(&harm->together);
    if (rank != ODD) {
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_E_PEER);
        CHECK_CONTAINS(zero_last_error(), "rank 1 failed: small, place ");
        CHECK_INT(zero_scratch_store(small.scratch, 0, small.memory[0]), ZERO_E_PEER);
    }
    shelf_close(&small);
}

static void failures(void) {
    static const struct {
        enum fault fault;
        const char *here;
    } cases[] = {{FAULT_EIO, "tier nvme: "},
                 {FAULT_ENOSPC, "tier nvme: write "},
                 {FAULT_FLIPPED, "came back damaged from "},
                 {FAULT_MISPLACED, "came back damaged from "},
                 {FAULT_STALE, "came back damaged from "}};
    char json[4096];
    configure(json, sizeof json, 1, "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct harm harm = {.fault = cases[i].fault, .here = cases[i].here, .faults = {.seed = i + 1}};
        pthread_barrier_init(&harm.together, NULL, RANKS);
        ranks_run(RANKS, json, one_fails, &harm);
        pthread_barrier_destroy(&harm.together);
        CHECK_INT(entries(), 0);
    }
}

/* ---- refusals ---- */

static void refused(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_scratch *scratch = NULL, *unused;
    zero_scratch_needs needs = needs_of("x", SMALL, 0), odd = needs_of("x", PAGE + 1, 0);
    if (!CHECK(engine)) return;
    _Alignas(PAGE) static unsigned char memory[SMALL + PAGE];
    CHECK_INT(zero_engine_add_scratch(engine, &odd, &unused), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "a multiple of 4096 bytes");
    odd.place_bytes = 1ull << 62;
    CHECK_INT(zero_engine_add_scratch(engine, &odd, &unused), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "more than any drive has");
    CHECK_INT(zero_engine_add_scratch(engine, NULL, &unused), ZERO_E_ARGUMENT);
    for (int i = 0; i < 8; i++)
        CHECK_INT(zero_engine_add_scratch(engine, &needs, i ? &unused : &scratch), ZERO_OK);
    CHECK_INT(zero_engine_add_scratch(engine, &needs, &unused), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "at most 8");
    CHECK_INT(zero_scratch_store(scratch, 0, memory), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "call zero_engine_commit first");
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    CHECK_INT(zero_engine_add_scratch(engine, &needs, &unused), ZERO_E_ORDER);
    CHECK_INT(zero_scratch_store(NULL, 0, memory), ZERO_E_ARGUMENT);
    CHECK_INT(zero_scratch_store(scratch, PLACES, memory), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "place 7 of a scratch that has 7");
    CHECK_INT(zero_scratch_store(scratch, 0, memory + 64), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "not at a multiple of 4096 bytes");
    CHECK_INT(zero_scratch_store(scratch, 0, NULL), ZERO_E_ARGUMENT);
    CHECK_INT(zero_scratch_fetch(scratch, 0, memory), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "place 0 was not stored");
    CHECK_INT(zero_scratch_wait(scratch, 0), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK); /* the run goes on */
}

static void without_a_drive(zero_engine *engine, uint32_t rank, void *user) {
    zero_scratch *unused;
    zero_scratch_needs needs = needs_of("x", SMALL, 0);
    if (!CHECK(engine)) return;
    CHECK_INT(zero_engine_add_scratch(engine, &needs, &unused), ZERO_E_CONFIG);
    CHECK_CONTAINS(zero_last_error(), "set activation_checkpointing.nvme_path");
}

static void over_budget(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_scratch *unused;
    zero_scratch_needs needs = needs_of("x", SMALL, 0);
    if (!CHECK(engine)) return;
    CHECK_INT(zero_engine_add_scratch(engine, &needs, &unused), ZERO_OK);
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_E_BUDGET);
    CHECK_CONTAINS(zero_last_error(),
                   "memory.nvme: the plan needs 86016 bytes per rank, 16 more than the budget");
}

int main(void) {
    static const char *const ways[] = {"", ", \"nvme\": {\"io_uring\": \"never\"}"};
    char json[4096];
    for (int paths = 0; paths <= 2; paths++)
        for (int way = 0; way < 2; way++) {
            configure(json, sizeof json, paths, ways[way]);
            ranks_run(RANKS, json, comes_back, NULL);
            CHECK_INT(entries(), 0);
        }
    failures();
    configure(json, sizeof json, 1, "");
    ranks_run(1, json, refused, NULL);
    configure(json, sizeof json, 1, ", \"memory\": {\"nvme\": 86000}");
    ranks_run(1, json, over_budget, NULL);
    ranks_run(1, "{\"train_batch_size\": 1}", without_a_drive, NULL);
    return check_end();
}
