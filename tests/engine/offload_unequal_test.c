/* Ranks with different amounts of free cpu budget: they cut chunks in the same way and keep the same number in memory,
 * because they must do the same operations. They train to the weights of a run in memory. */
#include <stdlib.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

enum { RANKS = 3, COUNT = 50000, STEPS = 3 };

static const struct plain_param model[] = {
    {"a", "a.w", COUNT, 0, NULL}, {"b", "b.w", COUNT, 0, NULL}, {"c", "c.w", COUNT, 0, NULL}};

struct run {
    uint64_t reserved[RANKS];
    char error[512], hash[33];
    uint64_t chunk_elements[RANKS], resident_bytes[RANKS];
};

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    zero_status status = engine ? plain_declare(&p, engine, model, 3) : ZERO_E_CONFIG;
    if (!status) status = zero_engine_reserve(engine, ZERO_CPU, run->reserved[rank], "the host's");
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) {
        run->chunk_elements[rank] = engine_blueprint(engine)->plan.layout.chunk_elements;
        run->resident_bytes[rank] = engine_blueprint(engine)->plan.layout.resident_bytes;
        status = zero_engine_fill(engine, toy_fill, NULL);
    }
    for (int step = 0; step < STEPS && !status; step++) status = plain_step(&p, 1, NULL);
    char hash[33] = "";
    if (!status) status = zero_engine_hash(engine, hash);
    if (rank == 0) snprintf(run->hash, sizeof run->hash, "%s", hash);
    if (rank == 0 && status) snprintf(run->error, sizeof run->error, "%s", zero_last_error());
}

static void train(uint32_t stage, uint64_t budget, struct run *run) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char json[2048], nvme[1200];
    snprintf(nvme, sizeof nvme,
             ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/swap\"}, "
             "\"offload_gradients\": {\"device\": \"none\"}",
             directory);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\", "
             "\"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": %u%s}, \"comm\": "
             "{\"timeout_s\": 20}, \"memory\": {\"cpu\": %" PRIu64 "}}",
             stage, budget ? nvme : "", budget ? budget : 1 << 30);
    ranks_run(RANKS, json, body, run);
}

/* Of the budget, rank 0 has all: several chunks of state stay in memory there, elsewhere fewer or none; or the
 * slots of larger chunks fit there, elsewhere only those of smaller ones. */
int main(void) {
    static const uint64_t budgets[] = {1 << 20, 720000};
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 2; i++) {
            struct run expected = {.error = ""}, run = {.reserved = {0, 100000, 50000}};
            train(stage, 0, &expected);
            train(stage, budgets[i], &run);
            int good = CHECK_STRING(expected.error, "") && CHECK_STRING(run.error, "") &&
                       CHECK_STRING(run.hash, expected.hash);
            for (int r = 1; r < RANKS; r++)
                good = good && CHECK_INT(run.chunk_elements[r], run.chunk_elements[0]) &&
                       CHECK_INT(run.resident_bytes[r], run.resident_bytes[0]);
            fprintf(stderr, "stage %u, budget %" PRIu64 ": chunks of %" PRIu64 ", resident %" PRIu64 "\n",
                    stage, budgets[i], run.chunk_elements[0], run.resident_bytes[0]);
            if (!good) fprintf(stderr, "in stage %u with a budget of %" PRIu64 "\n", stage, budgets[i]);
        }
    return check_end();
}
