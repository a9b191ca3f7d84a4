/* network_bench: seconds of a step over TCP where each packet takes 5 ms and a rank sends 1 Gbit/s, and of a step of hardly any data,
 * in round trips of 100 ms. Each number is the least of its steps. Not a test: its numbers depend on who else uses the machine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tests/engine/network.h"
#include "tests/engine/plain.h"

enum { STEPS = 8, UNITS = 8, MOST_S = 300 };

struct bench {
    struct network network;
    uint32_t stage;
    uint64_t count; /* elements of each unit */
    double *step_s; /* shared: the least */
};

static void be_rank(const zero_runtime *runtime, void *user) {
    static const char *const names[UNITS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    const struct bench *b = user;
    struct plain_param params[UNITS];
    struct plain p;
    char json[256];
    double least_s = 1e9;
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %u, "
             "\"stage3_param_persistence_threshold\": 0}}",
             b->stage);
    for (int u = 0; u < UNITS; u++) params[u] = (struct plain_param){names[u], names[u], b->count, 0, NULL};
    zero_engine *engine = zero_engine_init_with(json, runtime);
    if (!engine || plain_open(&p, engine, params, UNITS, NULL)) exit(1);
    for (int step = 0; step < STEPS; step++) {
        uint64_t began_ns = clock_now_ns();
        if (plain_step(&p, 1, NULL)) exit(1);
        double step_s = (double)(clock_now_ns() - began_ns) * 1e-9;
        if (step_s < least_s) least_s = step_s;
    }
    if (!runtime->rank) *b->step_s = least_s;
    zero_engine_destroy(engine);
}

static double measure(uint32_t ranks, uint32_t stage, uint64_t count, double delay_s, double bytes_per_s) {
    int status[NETWORK_RANKS_MAX];
    struct bench b = {.network = {.ranks = ranks, .delay_s = delay_s, .bytes_per_s = bytes_per_s},
                      .stage = stage,
                      .count = count,
                      .step_s = network_share(sizeof(double))};
    if (network_run(&b.network, MOST_S, be_rank, &b, status) && status[0] == 0) return *b.step_s;
    fprintf(stderr, "network_bench: %s\n", strerror(errno));
    exit(1);
}

int main(void) {
    printf("ranks  stage  a step of 4 M parameters  round trips of a step\n");
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
        for (uint32_t stage = 0; stage <= 3; stage += 3) {
            double full_s = measure(ranks, stage, 500000, 0.005, 125e6);
            double near_s = measure(ranks, stage, 64, 0, 0), far_s = measure(ranks, stage, 64, 0.05, 0);
            printf("%5u  %5u  %23.3f s  %21.1f\n", ranks, stage, full_s, (far_s - near_s) / 0.1);
        }
    return 0;
}
