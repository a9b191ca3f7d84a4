/* A drive fails while the host does not notice: the host computes on, or leaves. Tests how such runs end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/offload/faults.h"

enum { ODD = 1, COUNT = 80000, PATIENCE_MS = 120000 };

static const struct plain_param model[] = {
    {"a", "a.w", 3000, 0, NULL}, {"b", "b.w", COUNT, 0, NULL}, {"c", "c.w", COUNT, 0, NULL}};
enum { PARAMS = sizeof model / sizeof *model };

struct run {
    struct faults faults; /* of the odd rank's drive */
    atomic_bool heard;    /* the other rank knows of a failure */
    pthread_barrier_t together;
};

static void pause_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* Both ranks have stepped. The odd rank's drive takes 50 ms and more for each transfer until that changes: most of its refresh, which
 * takes seconds, is still to come. */
static bool step_slowly(struct plain *p, zero_engine *engine, uint32_t rank, struct run *run) {
    if (!CHECK(engine)) return false;
    if (rank == ODD) engine_running(engine)->hook = faults_hook(&run->faults);
    bool good = CHECK_INT(plain_open(p, engine, model, PARAMS, NULL), ZERO_OK);
    if (rank == ODD) run->faults.probability[FAULT_TRANSFER_DELAYED] = 0.998;
    return good && CHECK_INT(plain_step(p, 1, NULL), ZERO_OK);
}

/* ---- a rank whose host computes while its drive fails ---- */

static void compute_on(struct plain *p, struct run *run) {
    CHECK_INT(zero_micro_begin(p->engine, ZERO_TRAIN), ZERO_OK);
    if (!CHECK_INT(zero_forward_begin(p->unit[0]), ZERO_OK)) return;
    run->faults.probability[FAULT_EIO] = 1;
    run->faults.probability[FAULT_TRANSFER_DELAYED] = 0;
    for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&run->heard); ms++) pause_ms(1);
    CHECK(atomic_load(&run->heard));
    CHECK_INT(zero_forward_end(p->unit[0]), ZERO_E_IO);
    CHECK_CONTAINS(zero_last_error(), "at offset ");
}

static void one_computes_on(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!step_slowly(&p, engine, rank, run)) return;
    if (rank == ODD) {
        compute_on(&p, run);
        return;
    }
    zero_status status = plain_step(&p, 1, NULL);
    atomic_store(&run->heard, true);
    CHECK_INT(status, ZERO_E_PEER);
    CHECK_CONTAINS(zero_last_error(), "rank 1 failed: tier nvme: ");
}

/* ---- a rank that leaves in the midst of it ---- */

static void one_leaves(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    bool good = step_slowly(&p, engine, rank, run);
    pthread_barrier_wait(&run->together);
    if (rank == ODD) run->faults.probability[FAULT_TRANSFER_DELAYED] = 0.5;
    if (rank == ODD || !good) return;
    zero_status status = plain_step(&p, 1, NULL);
    if (!status) status = plain_step(&p, 1, NULL);
    CHECK_INT(status, ZERO_E_PEER);
    CHECK_CONTAINS(zero_last_error(), "rank 1");
}

static void run_case(ranks_fn body, uint32_t stage) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char json[2048];
    struct run run = {.faults = {.seed = stage + 1}};
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\", "
        "\"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": %u, \"sub_group_size\": 1024, "
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\", \"buffer_count\": 1}}, "
        "\"aio\": {\"queue_depth\": 1}, \"comm\": {\"timeout_s\": 30}}",
        stage, directory);
    pthread_barrier_init(&run.together, NULL, 2);
    ranks_run(2, json, body, &run);
    pthread_barrier_destroy(&run.together);
}

int main(void) {
    for (uint32_t stage = 0; stage <= 3; stage++) {
        run_case(one_computes_on, stage);
        run_case(one_leaves, stage);
    }
    return check_end();
}
