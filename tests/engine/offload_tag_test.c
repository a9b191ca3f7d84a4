/* A chunk that comes back wrong: the sentence says what was stored there and what was found. One rank, one chunk
 * of state, stored by two steps, and with parameters on the drive by the fill too; the drive does wrong once. */
#include <stdlib.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/offload/faults.h"

enum { SEEDS = 16 };

static const struct plain_param model[] = {{"a", "a.w", 1000, 0, NULL}};

struct run {
    struct faults faults;
    enum fault fault;
    bool params; /* are on the drive too */
    zero_status status;
    char error[1024];
};

static zero_status step(struct plain *p) {
    zero_status status = plain_step(p, 1, NULL);
    return status ? status : zero_engine_flush(p->engine);
}

/* The writes of the second step go wrong, or the read after it. */
static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    float first;
    if (!CHECK(engine)) return;
    engine_running(engine)->hook = faults_hook(&run->faults);
    CHECK_INT(plain_open(&p, engine, model, 1, NULL), ZERO_OK);
    CHECK_INT(step(&p), ZERO_OK);
    run->faults.probability[run->fault] = run->fault == FAULT_FLIPPED ? 0 : 1;
    CHECK_INT(step(&p), ZERO_OK);
    run->faults.probability[run->fault] = run->fault == FAULT_FLIPPED ? 1 : 0;
    run->status = zero_engine_get(engine, "a.w", ZERO_STATE0, &first, 0, 1);
    if (run->status) snprintf(run->error, sizeof run->error, "%s", zero_last_error());
}

static void run_seed(enum fault fault, bool params, uint64_t seed, struct run *run) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char json[3000], offload[1200] = "";
    if (params)
        snprintf(offload, sizeof offload,
                 ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}", directory);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\", "
             "\"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": %d, "
             "\"stage3_param_persistence_threshold\": 0, \"offload_optimizer\": "
             "{\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}, \"offload_gradients\": {\"device\": "
             "\"none\"}%s}}",
             params ? 3 : 1, directory, offload);
    *run = (struct run){.fault = fault, .params = params, .faults = {.seed = seed}};
    ranks_run(1, json, body, run);
}

/* Counts the seeds of a fault whose message says so; the other seeds hit bytes that no code reads. */
static int told(enum fault fault, bool params, const char *expected, const char *found) {
    int count = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct run run;
        check_seed(seed);
        run_seed(fault, params, seed, &run);
        CHECK_INT(atomic_load(&run.faults.fired[fault]), params ? 2 : 1);
        if (!run.status) continue;
        CHECK_INT(run.status, ZERO_E_IO);
        CHECK_CONTAINS(run.error, "chunk 0 (optimizer state of \"a\") came back damaged from ");
        CHECK_CONTAINS(run.error, expected);
        count += strstr(run.error, found) != NULL;
    }
    return count;
}

/* ---- a gradient ---- */

/* Its read for the update goes wrong. The optimizer has no state that could be damaged first. */
static void spoil_gradient(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine)) return;
    engine_running(engine)->hook = faults_hook(&run->faults);
    CHECK_INT(plain_open(&p, engine, model, 1, NULL), ZERO_OK);
    CHECK_INT(step(&p), ZERO_OK);
    run->faults.probability[FAULT_FLIPPED] = 1;
    run->status = step(&p);
    if (run->status) snprintf(run->error, sizeof run->error, "%s", zero_last_error());
}

static void damaged_gradients_are_told(void) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    int count = 0;
    char json[3000];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"SGD\", "
        "\"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
        "{\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}, \"offload_gradients\": {\"device\": \"nvme\"}}}",
        directory);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct run run = {.faults = {.seed = seed}};
        check_seed(seed);
        ranks_run(1, json, spoil_gradient, &run);
        CHECK_INT(atomic_load(&run.faults.fired[FAULT_FLIPPED]), 1);
        if (!run.status) continue; /* a bit of the padding */
        CHECK_INT(run.status, ZERO_E_IO);
        CHECK_CONTAINS(run.error, "chunk 0 (gradient of \"a\") came back damaged from ");
        count++;
    }
    CHECK(count >= SEEDS / 2);
}

int main(void) {
    damaged_gradients_are_told();
    /* A lost record loses at least its end, which holds the tag. */
    CHECK_INT(told(FAULT_STALE, false, "expected chunk 0, generation 2, checksum ", ", found 0, 1, "), SEEDS);
    CHECK_INT(told(FAULT_STALE, true, "expected chunk 0, generation 2, checksum ", ", found 0, 1, "), SEEDS);
    /* Most bits belong to the state; no code reads the others. */
    int flipped = told(FAULT_FLIPPED, false, "expected chunk 0, generation 2, checksum ", ", found 0, 2, ");
    CHECK(flipped >= SEEDS / 2);
    return check_end();
}
