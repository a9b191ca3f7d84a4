/* The parts that a program of engine/EMBEDDING.md does not show, as in its first one. */
#include "tests/engine/embedding/host.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFAULT __attribute__((weak))

zero_unit *layer;
DEFAULT zero_slot w;

void must(zero_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", zero_last_error());
    exit(1);
}

float derivative(int i, float weight) { return (weight - (float)(i % 7)) / N; }

static void start(void *user, const char *name, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 1 / (float)(1 + first + i);
}

DEFAULT zero_engine *open_engine(const char *config) {
    zero_engine *engine;
    must(zero_engine_open(config, NULL, &engine));
    return engine;
}

DEFAULT void declare(zero_engine *engine) {
    zero_param param = {.struct_size = sizeof param, .name = "w", .dims = 1, .shape = {N}, .slot = &w};
    must(zero_engine_add_unit(engine, "layer", &layer));
    must(zero_unit_add_param(layer, &param));
}

DEFAULT void initialize(zero_engine *engine) { must(zero_engine_fill(engine, start, NULL)); }

DEFAULT void forward(void) {}

DEFAULT void backward(void) {
    const float *weight = w.param;
    float *grad = w.grad;
    for (int i = 0; i < N; i++) grad[i] = (w.add ? grad[i] : 0) + derivative(i, weight[i]);
}

/* train ends with this call. */
void destroy(zero_engine *engine) {
    char hash[33];
    must(zero_engine_hash(engine, hash));
    printf("%s\n", hash);
    zero_engine_destroy(engine);
}

DEFAULT int main(int argc, char **argv) {
    train(argv[1]);
    return 0;
}
