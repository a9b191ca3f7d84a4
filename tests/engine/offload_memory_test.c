/* What stays in memory when state is on the drive: no more than the plan names, and 64 MiB. A process of its own, since
 * it asks the system for its peak. offload_memory_test [STAGE] [all]: with parameters and gradients on the drive, too */
#include <stdbool.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/sanitized.h"

/* 32 Mi parameters: 256 MiB of state, 8 times the budget. Under a sanitizer, whose own memory hides what is used, an eighth of all. Of
 * all on the drive, two shards of parameters and two of gradients are in memory, beside the chunks. */
enum {
    MIB = 1 << 20,
    BLOCK = SANITIZED ? MIB / 2 : 4 * MIB,
    BUDGET = 8 * BLOCK,
    BUDGET_ALL = BUDGET + 4 * 4 * BLOCK,
    GATHERED_MAX = 6 * 4 * BLOCK
};

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
    char json[1024], more[512] = "";
    zero_plan plan;
    bool all = argc > 2;
    uint64_t budget = all ? BUDGET_ALL : BUDGET;
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    if (all)
        snprintf(more, sizeof more,
                 ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
                 "\"offload_gradients\": {\"device\": \"nvme\"}",
                 directory);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1.0, \"threads\": 1, "
             "\"memory\": {\"cpu\": %llu}, \"zero_optimization\": {\"stage\": %d, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}%s}}",
             (unsigned long long)budget, argc > 1 ? atoi(argv[1]) : 1, directory, more);
    uint64_t before = peak_bytes();
    ranks_run(1, json, train, &plan);
    uint64_t used = peak_bytes() - before, named = plan.bytes[ZERO_DEVICE] + plan.bytes[ZERO_CPU];
    fprintf(stderr, "planned %.1f MiB in memory, used %.1f MiB; %.1f MiB on the drive\n", (double)named / MIB,
            (double)used / MIB, (double)plan.bytes[ZERO_NVME] / MIB);
    CHECK(plan.bytes[ZERO_CPU] <= budget);
    if (all)
        CHECK(plan.bytes[ZERO_DEVICE] <=
              GATHERED_MAX); /* of 256 MiB of parameters and gradients: some units */
    CHECK(plan.state_bytes >= 8ull * BUDGET);
    CHECK(SANITIZED || used <= named + 64ull * MIB);
    return check_end();
}
