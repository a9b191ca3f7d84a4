/* What stays in memory when state is on the drive: no more than the plan names, and 64 MiB. A process of its own, since
 * it asks the system for its peak. offload_memory_test [STAGE] */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/sanitized.h"

enum { MIB = 1 << 20, BLOCK = 4 * MIB, BUDGET = 32 * MIB };

/* 32 Mi parameters: 256 MiB of state, 8 times the budget. */
static const struct plain_param blocks[] = {{"a", "a", BLOCK, 0, NULL}, {"b", "b", BLOCK, 0, NULL},
                                            {"c", "c", BLOCK, 0, NULL}, {"d", "d", BLOCK, 0, NULL},
                                            {"e", "e", BLOCK, 0, NULL}, {"f", "f", BLOCK, 0, NULL},
                                            {"g", "g", BLOCK, 0, NULL}, {"h", "h", BLOCK, 0, NULL}};

static uint64_t peak_bytes(void) {
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (CHECK(file) && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %" SCNu64, &kib) == 1) break;
    if (file) fclose(file);
    return kib * 1024;
}

static void train(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_plan *plan = user;
    plan->struct_size = sizeof *plan;
    zero_status status = engine ? plain_open(&p, engine, blocks, 8, plan) : ZERO_E_CONFIG;
    for (int step = 0; step < 3 && !status; step++) status = plain_step(&p, 1, NULL);
    if (!status) status = zero_engine_flush(engine);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

int main(int argc, char **argv) {
    char json[1024];
    zero_plan plan;
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1.0, \"threads\": 1, "
             "\"memory\": {\"cpu\": %d}, \"zero_optimization\": {\"stage\": %d, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}",
             BUDGET, argc > 1 ? atoi(argv[1]) : 1, directory);
    uint64_t before = peak_bytes();
    ranks_run(1, json, train, &plan);
    uint64_t used = peak_bytes() - before, named = plan.bytes[ZERO_DEVICE] + plan.bytes[ZERO_CPU];
    fprintf(stderr, "planned %.1f MiB in memory, used %.1f MiB; %.1f MiB on the drive\n", (double)named / MIB,
            (double)used / MIB, (double)plan.bytes[ZERO_NVME] / MIB);
    CHECK(plan.bytes[ZERO_CPU] <= BUDGET);
    CHECK(plan.state_bytes >= 8ull * BUDGET);
    CHECK(SANITIZED || used <= named + 64ull * MIB);
    return check_end();
}
