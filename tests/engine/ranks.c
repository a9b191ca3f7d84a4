#include "tests/engine/ranks.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/device/device.h"
#include "tests/device/discrete.h"

struct thread {
    pthread_t thread;
    zero_local *local;
    uint32_t rank;
    const char *json;
    ranks_fn body;
    void *user;
    bool discrete;
};

static struct device *open_device(uint32_t rank) {
    struct device_options options = {.seed = rank, .index = -1, .probability = 0.5, .guard = &discrete_guard};
    struct device *device;
    struct zero_error error;
    error_clear(&error);
    return device_table[DEVICE_SIM]->open(&options, &device, &error) ? NULL : device;
}

static void *run(void *argument) {
    struct thread *t = argument;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = t->local,
                            .local_rank = t->rank,
                            .device = t->discrete ? open_device(t->rank) : NULL};
    zero_engine *engine = zero_engine_init_with(t->json, &runtime);
    t->body(engine, t->rank, t->user);
    zero_engine_destroy(engine);
    return NULL;
}

static void run_all(uint32_t ranks, const char *const *json, bool discrete, ranks_fn body, void *user) {
    struct thread *threads = calloc(ranks, sizeof *threads);
    zero_local *local = zero_local_create(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        threads[r] = (struct thread){
            .local = local, .rank = r, .json = json[r], .body = body, .user = user, .discrete = discrete};
        pthread_create(&threads[r].thread, NULL, run, &threads[r]);
    }
    for (uint32_t r = 0; r < ranks; r++) pthread_join(threads[r].thread, NULL);
    zero_local_destroy(local);
    free(threads);
}

static void run_alike(uint32_t ranks, const char *json, bool discrete, ranks_fn body, void *user) {
    const char **each = calloc(ranks, sizeof *each);
    for (uint32_t r = 0; r < ranks; r++) each[r] = json;
    run_all(ranks, each, discrete, body, user);
    free(each);
}

void ranks_run_each(uint32_t ranks, const char *const *json, ranks_fn body, void *user) {
    run_all(ranks, json, false, body, user);
}

void ranks_run(uint32_t ranks, const char *json, ranks_fn body, void *user) {
    run_alike(ranks, json, false, body, user);
}

void ranks_run_discrete(uint32_t ranks, const char *json, ranks_fn body, void *user) {
    run_alike(ranks, json, true, body, user);
}
