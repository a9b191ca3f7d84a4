/* Model ranks that are processes: over TCP, and with the argument "rank" over MPI, where mpirun started this process. They end in the
 * weights and norms of ranks that are threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/tcp_ranks.h"

enum { RANKS = 4, MODELS = 2, ROWS = 6, COLUMNS = 5, STEPS = 3, STAGES = 4 };

struct end {
    char hash[33];
    double norm;
};

struct run {
    zero_runtime runtime;
    int stage;
    struct end end;
};

/* Rows of one tensor on each model rank, and a parameter that both have. */
static void declare(zero_engine *engine, uint32_t model, zero_unit **unit, zero_slot slot[2]) {
    zero_param rows = {.struct_size = sizeof rows,
                       .name = "t",
                       .dims = 2,
                       .shape = {ROWS / MODELS, COLUMNS},
                       .tensor = "t",
                       .tensor_row = ROWS / MODELS * model,
                       .tensor_rows = ROWS,
                       .slot = &slot[0]};
    zero_param both = {.struct_size = sizeof both,
                       .name = "both",
                       .dims = 1,
                       .shape = {COLUMNS},
                       .flags = ZERO_MODEL_REPLICATED,
                       .slot = &slot[1]};
    CHECK_INT(zero_engine_add_unit(engine, "unit", unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(*unit, &rows), ZERO_OK);
    CHECK_INT(zero_unit_add_param(*unit, &both), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
}

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)((first + i) * 7 % 11) / 8;
}

/* The gradient of an element depends on its weight, on its place in the tensor, and on the data rank. */
static void write(zero_slot *slot, uint64_t first, uint64_t count, uint32_t data_rank) {
    const float *weight = slot->param;
    float *grad = slot->grad;
    for (uint64_t i = 0; i < count; i++)
        grad[i] = weight[i] / 8 + (float)((first + i + 3 * data_rank) % 7) - 3;
}

static void train(struct run *run) {
    char json[256];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0.5, \"optimizer\": {\"type\": "
             "\"AdamW\"}, \"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": 0}}",
             run->stage);
    zero_engine *engine = zero_engine_init_with(json, &run->runtime);
    zero_step_info info = {.struct_size = sizeof info};
    zero_unit *unit = NULL;
    zero_slot slot[2];
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    uint32_t model = run->runtime.model_rank, data_rank = zero_engine_data_rank(engine);
    const uint64_t count = ROWS / MODELS * COLUMNS;
    CHECK_INT(zero_engine_data_size(engine), RANKS / MODELS);
    declare(engine, model, &unit, slot);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
    for (int i = 0; i < STEPS; i++) {
        CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
        CHECK_INT(zero_forward_begin(unit), ZERO_OK);
        CHECK_INT(zero_forward_end(unit), ZERO_OK);
        if (!CHECK_INT(zero_backward_begin(unit), ZERO_OK)) break;
        write(&slot[0], count * model, count, data_rank);
        write(&slot[1], 0, COLUMNS, data_rank);
        CHECK_INT(zero_backward_end(unit), ZERO_OK);
        CHECK_INT(zero_engine_step(engine, &info), ZERO_OK);
    }
    run->end.norm = info.grad_norm;
    if (!CHECK_INT(zero_engine_hash(engine, run->end.hash), ZERO_OK))
        fprintf(stderr, "%s\n", zero_last_error());
    zero_engine_destroy(engine);
}

/* Model ranks are adjacent at even stages, data ranks at odd ones. */
static void place(struct run *run, uint32_t rank) {
    run->runtime.struct_size = sizeof run->runtime;
    run->runtime.model_size = MODELS;
    run->runtime.model_rank = run->stage % 2 ? rank / (RANKS / MODELS) : rank % MODELS;
}

static void *run_thread(void *argument) {
    train(argument);
    return NULL;
}

static struct end train_threads(int stage) {
    struct run runs[RANKS];
    pthread_t threads[RANKS];
    zero_local *local = zero_local_create(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        runs[r] = (struct run){.runtime = {.local = local, .local_rank = r}, .stage = stage};
        place(&runs[r], r);
        pthread_create(&threads[r], NULL, run_thread, &runs[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    zero_local_destroy(local);
    return runs[0].end;
}

static void compare(struct run *run, const struct end *expected) {
    train(run);
    CHECK_STRING(run->end.hash, expected->hash);
    CHECK_DOUBLE(run->end.norm, expected->norm, 0);
}

struct expected {
    int stage;
    struct end end;
};

static void train_process(const zero_runtime *runtime, void *user) {
    const struct expected *expected = user;
    struct run run = {.runtime = *runtime, .stage = expected->stage};
    place(&run, runtime->rank);
    compare(&run, &expected->end);
}

/* mpirun says which rank this is. */
static void train_mpi(const struct expected *expected) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct run run = {.stage = expected->stage};
    if (!CHECK(rank)) return;
    place(&run, (uint32_t)atoi(rank));
    compare(&run, &expected->end);
}

/* A rank that is alone in its data group adds up the program's arrays where they are: in one call, without staging memory. */
static void lends(const zero_runtime *runtime, void *user) {
    enum { COUNT = 3 << 20 };
    static float param[COUNT], grad[COUNT];
    const zero_span span = {param, grad, COUNT};
    zero_param lent = {
        .struct_size = sizeof lent, .name = runtime->rank ? "b" : "a", .dims = 1, .shape = {COUNT}};
    zero_memory_row row = {.struct_size = sizeof row};
    zero_counters counters = {.struct_size = sizeof counters};
    struct run run = {.runtime = *runtime};
    zero_unit *unit;
    place(&run, runtime->rank);
    zero_engine *engine = zero_engine_init_with("{\"train_micro_batch_size_per_gpu\": 1}", &run.runtime);
    if (!CHECK(engine)) return;
    lent.spans = &span, lent.span_count = 1;
    CHECK_INT(zero_engine_add_unit(engine, "unit", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &lent), ZERO_OK);
    if (!CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++)
        if (!strcmp(row.name, "reduction staging")) CHECK_INT(row.planned, 0);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit), ZERO_OK);
    CHECK_INT(zero_forward_end(unit), ZERO_OK);
    CHECK_INT(zero_backward_begin(unit), ZERO_OK);
    CHECK_INT(zero_backward_end(unit), ZERO_OK);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_OK);
    CHECK_INT(counters.reduce_calls, 1);
    zero_engine_destroy(engine);
}

int main(int argc, char **argv) {
    for (int stage = 0; stage < STAGES; stage++) {
        struct expected expected = {stage, train_threads(stage)};
        if (argc > 1)
            train_mpi(&expected);
        else
            tcp_processes(RANKS, 200, train_process, &expected);
    }
    if (argc == 1) tcp_processes(MODELS, 200, lends, NULL);
    return check_end();
}
