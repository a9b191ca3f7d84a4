/* A peer dies while this rank runs ahead of its GPU: a gather stands still, and the program's work behind it. The rank queues more
 * than a stream and the engine's events have room for, one sum for each parameter, and hears of the death all the same. Two processes
 * with a GPU each, over TCP and the stand-in of NCCL; parameters and state rest on the GPU, then in host memory. At last the reductions
 * take the gradients from where the program has made them, with a copy for each parameter. */
#include <stdlib.h>
#include <unistd.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/tcp_ranks.h"

enum { RANKS = 2, UNITS = 3, PARAMS = 700, COUNT = 4, MOST_S = 100 };

static zero_engine *engine;
static zero_unit *unit[UNITS];
static zero_slot slot[UNITS][PARAMS];
static uint32_t flags;

static void one(void *user, const char *name, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 1;
}

static zero_status declare(void) {
    zero_status status = ZERO_OK;
    char name[32];
    for (int u = 0; u < UNITS && !status; u++) {
        snprintf(name, sizeof name, "u%d", u);
        status = zero_engine_add_unit(engine, name, &unit[u]);
        for (int p = 0; p < PARAMS && !status; p++) {
            snprintf(name, sizeof name, "u%d.p%d", u, p);
            zero_param param = {.struct_size = sizeof param,
                                .name = name,
                                .dims = 1,
                                .flags = flags,
                                .shape = {COUNT},
                                .slot = &slot[u][p]};
            status = zero_unit_add_param(unit[u], &param);
        }
    }
    if (!status) status = zero_engine_commit(engine, NULL);
    return status ? status : zero_engine_fill(engine, one, NULL);
}

static zero_status forward(void) {
    zero_status status = zero_micro_begin(engine, ZERO_TRAIN);
    for (int u = 0; u < UNITS && !status; u++) {
        status = zero_forward_begin(unit[u]);
        if (!status) status = zero_forward_end(unit[u]);
    }
    return status;
}

static zero_status backward(const void *const *gradients) {
    zero_status status = ZERO_OK;
    for (int u = UNITS; u-- > 0 && !status;) {
        status = zero_backward_begin(unit[u]);
        if (!status) status = zero_unit_give_grads(unit[u], gradients);
        if (!status) status = zero_backward_end(unit[u]);
    }
    return status ? status : zero_engine_step(engine, NULL);
}

static void train(const zero_runtime *given, void *json) {
    static const void *gradients[PARAMS];
    zero_runtime runtime = *given;
    runtime.cuda = 1, runtime.local_rank = given->rank, runtime.threads = 1;
    if (!CHECK_INT(zero_engine_open(json, &runtime, &engine), ZERO_OK))
        fprintf(stderr, "%s\n", zero_last_error());
    if (!CHECK_INT(declare(), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    struct device *device = engine_running(engine)->device;
    float *memory = device->ops->allocate(device, PARAMS * COUNT * sizeof(float), DEVICE_MEMORY);
    for (int p = 0; p < PARAMS; p++) gradients[p] = memory + p * COUNT;
    zero_slot always = {0};
    CHECK_INT(zero_unit_reads_given(unit[0]), flags == ZERO_GIVES_GRAD);
    CHECK_INT(zero_param_addresses(zero_unit_param(unit[0], 0), &always), ZERO_OK);
    CHECK_INT(always.grad == NULL, flags == ZERO_GIVES_GRAD);
    CHECK_INT(forward(), ZERO_OK);
    CHECK_INT(backward(gradients), ZERO_OK);
    zero_status status = forward();
    if (runtime.rank == 1) _exit(check_end());
    if (!status) status = backward(gradients);
    CHECK_INT(status, ZERO_E_PEER);
    CHECK_CONTAINS(zero_last_error(), "rank 1");
    zero_engine_destroy(engine);
}

#define JSON(more)                                                                                           \
    "{\"train_micro_batch_size_per_gpu\": 1, \"device\": {\"type\": \"cuda\"}, \"comm\": {\"timeout_s\": "   \
    "300}, "                                                                                                 \
    "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "                      \
    "\"stage3_prefetch_bucket_size\": 0" more "}}"

int main(void) {
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    tcp_processes(RANKS, MOST_S, train, JSON(""));
    tcp_processes(
        RANKS, MOST_S, train,
        JSON(", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}"));
    flags = ZERO_GIVES_GRAD;
    tcp_processes(RANKS, MOST_S, train, JSON(""));
    return check_end();
}
