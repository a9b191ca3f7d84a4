/* Spare memory: commit grants what the plan leaves of memory.device, to the byte; what was declared first before the rest; after tiered
 * state; the same on all ranks. The rows of the memory report have it, and zero_engine_plan grants the same. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

enum { RANKS = 3, SPARES = 2, PART = 1000, OTHER = 300 };

static const struct plain_param model[] = {{"a", "a.w", 5000, 0, NULL}, {"b", "b.w", 3001, 0, NULL}};

struct run {
    /* Asked for, of PART and of OTHER bytes; taken in any case. */
    uint64_t parts[RANKS][SPARES], reserved[RANKS];
    zero_status expected;
    uint64_t granted[RANKS][SPARES];
    zero_plan plan[RANKS];
};

static void write_config(const char *more, uint64_t budget, char *out, size_t size) {
    snprintf(
        out, size,
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {%s}, \"comm\": {\"timeout_s\": 20}, "
        "\"memory\": {\"device\": %" PRIu64 "}}",
        more, budget);
}

static zero_status declare(zero_engine *engine, struct run *run, uint32_t rank, struct plain *p) {
    static const uint64_t bytes[SPARES] = {PART, OTHER};
    zero_status status = plain_declare(p, engine, model, 2);
    for (int i = 0; i < SPARES && !status; i++) {
        run->granted[rank][i] = 99;
        status = zero_engine_reserve_spare(engine, bytes[i], run->parts[rank][i], i ? "other" : "outputs",
                                           &run->granted[rank][i]);
        CHECK_INT(run->granted[rank][i], 0);
    }
    if (!status) status = zero_engine_reserve(engine, ZERO_DEVICE, run->reserved[rank], "activations");
    run->plan[rank].struct_size = sizeof run->plan[rank];
    return status;
}

static void check_rows(zero_engine *engine, const struct run *run, uint32_t rank) {
    zero_memory_row row = {.struct_size = sizeof row};
    uint64_t device = 0, outputs = 0;
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        if (row.tier == ZERO_DEVICE) device += row.planned;
        if (strcmp(row.name, "outputs") == 0) outputs += row.planned, CHECK(row.planned > 0);
    }
    CHECK_INT(outputs, run->granted[rank][0] * PART);
    CHECK_INT(device, run->plan[rank].bytes[ZERO_DEVICE]);
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(declare(engine, run, rank, &p), ZERO_OK)) return;
    CHECK_INT(zero_engine_commit(engine, &run->plan[rank]), run->expected);
    if (run->expected) return;
    check_rows(engine, run, rank);
    CHECK_INT(zero_engine_reserve_spare(engine, 1, 1, "late", &run->granted[rank][0]), ZERO_E_ORDER);
}

static void check_planned(const char *json, uint32_t ranks, const struct run *committed) {
    struct run run = *committed;
    struct plain p;
    zero_runtime runtime = {.struct_size = sizeof runtime, .plan_ranks = ranks};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    if (!CHECK(engine) || !CHECK_INT(declare(engine, &run, 0, &p), ZERO_OK)) return;
    CHECK_INT(zero_engine_plan(engine, &run.plan[0]), ZERO_OK);
    CHECK_BYTES(&run.plan[0], &committed->plan[0], sizeof run.plan[0]);
    CHECK_BYTES(run.granted[0], committed->granted[0], sizeof run.granted[0]);
    zero_engine_destroy(engine);
}

/* With the first rank's parts and reservations on all ranks; its plan. */
static struct run alike(const char *more, uint32_t ranks, uint64_t budget, uint64_t parts, uint64_t other,
                        zero_status expected) {
    struct run run = {.expected = expected};
    char json[512];
    for (int r = 0; r < RANKS; r++) run.parts[r][0] = parts, run.parts[r][1] = other;
    write_config(more, budget, json, sizeof json);
    ranks_run(ranks, json, body, &run);
    if (!expected) check_planned(json, ranks, &run);
    return run;
}

static const uint64_t unlimited = UINT64_C(1) << 40;

static void to_the_byte(uint32_t stage, uint32_t ranks) {
    char more[32];
    snprintf(more, sizeof more, "\"stage\": %u", stage);
    uint64_t bare = alike(more, ranks, unlimited, 0, 0, ZERO_OK).plan[0].bytes[ZERO_DEVICE];
    const struct {
        uint64_t budget, parts, other, granted[SPARES];
        zero_status expected;
    } cases[] = {
        {unlimited, 4, 5, {4, 5}, ZERO_OK},           {bare + 3 * PART, 4, 0, {3, 0}, ZERO_OK},
        {bare + 3 * PART - 1, 4, 0, {2, 0}, ZERO_OK}, {bare, 4, 5, {0, 0}, ZERO_OK},
        {bare - 1, 4, 5, {0, 0}, ZERO_E_BUDGET},      {bare + 2 * PART + 2 * OTHER, 2, 5, {2, 2}, ZERO_OK},
        {bare + 2 * PART - 1, 2, 5, {1, 3}, ZERO_OK}, /* 999 bytes are left */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run run =
            alike(more, ranks, cases[i].budget, cases[i].parts, cases[i].other, cases[i].expected);
        uint64_t bytes = cases[i].granted[0] * PART + cases[i].granted[1] * OTHER;
        int good = CHECK_INT(run.granted[0][0], cases[i].granted[0]) &
                   CHECK_INT(run.granted[0][1], cases[i].granted[1]);
        if (!cases[i].expected)
            good &= CHECK_INT(run.plan[0].bytes[ZERO_DEVICE], bare + bytes) &
                    CHECK_INT(run.plan[0].reserved_bytes, bytes);
        if (!good) fprintf(stderr, "in case %zu at stage %u on %u ranks\n", i, stage, ranks);
    }
}

/* Room, and wishes, that differ between ranks. */
static void ranks_agree(void) {
    uint64_t bare = alike("\"stage\": 1", RANKS, unlimited, 0, 0, ZERO_OK).plan[0].bytes[ZERO_DEVICE];
    struct run run = {.parts = {{9, 9}, {9, 9}, {9, 2}}, .reserved = {0, 2 * PART + 1, PART}};
    char json[512];
    write_config("\"stage\": 1", bare + 5 * PART, json, sizeof json);
    ranks_run(RANKS, json, body, &run);
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(run.granted[r][0], 2);
        CHECK_INT(run.granted[r][1],
                  0); /* rank 0 has 5000 bytes for the first; rank 1 has 2999, so 999 for the other */
        CHECK_INT(run.plan[r].bytes[ZERO_DEVICE], bare + run.reserved[r] + 2 * PART);
    }
    run = (struct run){.parts = {{9, 9}, {9, 9}, {1, 2}}};
    write_config("\"stage\": 1", unlimited, json, sizeof json);
    ranks_run(RANKS, json, body, &run);
    for (int r = 0; r < RANKS; r++) CHECK_INT(run.granted[r][0], 1), CHECK_INT(run.granted[r][1], 2);
}

/* Tiered state takes its room on the device first, and spare memory takes none of it. */
static void state_comes_first(void) {
    static const char tiered[] = "\"stage\": 1, \"offload_optimizer\": {\"device\": \"tiered\"}";
    static const int64_t more[] = {-40000, -20000, 0, 2500, 100000};
    uint64_t all = alike(tiered, 1, unlimited, 0, 0, ZERO_OK).plan[0].bytes[ZERO_DEVICE];
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        uint64_t budget = all + (uint64_t)more[i];
        uint64_t device = alike(tiered, 1, budget, 0, 0, ZERO_OK).plan[0].bytes[ZERO_DEVICE];
        struct run run = alike(tiered, 1, budget, 5, 0, ZERO_OK);
        uint64_t fit = (budget - device) / PART;
        CHECK_INT(run.granted[0][0], fit < 5 ? fit : 5);
        CHECK_INT(run.plan[0].bytes[ZERO_DEVICE], device + run.granted[0][0] * PART);
    }
}

static void refused(void) {
    uint64_t granted;
    zero_engine *engine = zero_engine_init("{\"train_micro_batch_size_per_gpu\": 1}");
    CHECK_INT(zero_engine_reserve_spare(engine, 0, 1, "none", &granted), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "\"none\": 1 parts of 0 bytes");
    CHECK_INT(zero_engine_reserve_spare(engine, UINT64_MAX, 2, "huge", &granted), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_reserve_spare(engine, 1, 1, NULL, &granted), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_reserve_spare(engine, 1, 1, "lost", NULL), ZERO_E_ARGUMENT);
    for (int i = 0; i < 8; i++) CHECK_INT(zero_engine_reserve_spare(engine, 1, 1, "some", &granted), ZERO_OK);
    CHECK_INT(zero_engine_reserve_spare(engine, 1, 1, "more", &granted), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "more than 8 spare memories");
    zero_engine_destroy(engine);
}

int main(void) {
    to_the_byte(0, 1);
    to_the_byte(3, 2);
    ranks_agree();
    state_comes_first();
    refused();
    return check_end();
}
