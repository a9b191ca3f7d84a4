/* Which GPU a rank takes: by device.index, by zero_runtime.local_rank, or by the launcher's number. On the stand-in, with four GPUs. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/tcp_ranks.h"

#define CONFIG(index) "{\"train_micro_batch_size_per_gpu\": 1, \"device\": {\"type\": \"cuda\"" index "}}"

static const struct row {
    const char *launched; /* the launcher's number */
    uint32_t size, local_rank;
    const char *json;
    int gpu;
} rows[] = {
    {NULL, 0, 0, CONFIG(""), 0},
    {"2", 0, 0, CONFIG(""), 2},
    {"2", 0, 1, CONFIG(""), 1},
    {NULL, 0, 3, CONFIG(""), 3},
    {NULL, 0, 5, CONFIG(""), 1},
    {"2", 1, 0, CONFIG(""), 0},
    {"2", 1, 3, CONFIG(""), 3},
    {"2", 0, 1, CONFIG(", \"index\": 3"), 3},
    {"2", 1, 1, CONFIG(", \"index\": 3"), 3},
};

static void takes(const struct row *row) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .size = row->size, .local_rank = row->local_rank};
    unsetenv("LOCAL_RANK");
    if (row->launched) setenv("LOCAL_RANK", row->launched, 1);
    zero_engine *engine = zero_engine_init_with(row->json, &runtime);
    int same = CHECK(engine);
    same &= CHECK_INT(zero_engine_cuda(engine, NULL), row->gpu);
    if (!same)
        fprintf(stderr, "launched %s, size %u, local_rank %u, %s: %s\n", row->launched ? row->launched : "-",
                row->size, row->local_rank, row->json, zero_last_error());
    zero_engine_destroy(engine);
}

static const struct plain_param params[] = {{"a", "a.w", 5000, 0, NULL}};

static void train(const zero_runtime *given, void *user) {
    const uint32_t *local_rank = user;
    zero_runtime runtime = *given;
    struct plain p;
    runtime.local_rank = local_rank[runtime.rank];
    zero_engine *engine = NULL;
    zero_status status = zero_engine_open(CONFIG(""), &runtime, &engine);
    if (!status) status = plain_open(&p, engine, params, 1, NULL);
    if (local_rank[0] != local_rank[1]) {
        if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
        CHECK_INT(zero_engine_cuda(engine, NULL), local_rank[runtime.rank]);
    } else {
        CHECK_INT(status, ZERO_E_PEER);
        CHECK_CONTAINS(zero_last_error(), "each rank needs its own GPU");
    }
    zero_engine_destroy(engine);
}

int main(void) {
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    tcp_processes(2, 200, train, (uint32_t[]){2, 3});
    tcp_processes(2, 200, train, (uint32_t[]){1, 1});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) takes(&rows[i]);
    return check_end();
}
