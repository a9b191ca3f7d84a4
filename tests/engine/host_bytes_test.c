/* The bytes of host memory for each parameter, where a GPU computes and all else is in host memory (stage 3, bf16): state of 10 bytes, of
 * which 2 are halves of masters, a parameter of 2, and a gradient of 2; or two units' gradients if updates are in the backward, and those of a quarter of the units, whose updates wait for
 * the next forward, unless memory.cpu has no room for them. */
#include <stdio.h>

#include "tests/check.h"
#include "tests/engine/plain.h"

enum { UNITS = 32, ELEMENTS = 4 << 20 };

/* Planned for a GPU, without memory. `zero` and `more`: keys, each after a comma. */
static double bytes_per_parameter(const char *zero, const char *more) {
    static zero_slot slot[UNITS];
    char json[1000], name[16];
    zero_runtime runtime = {.struct_size = sizeof runtime, .plan_ranks = 1, .cuda = 1};
    zero_plan plan = {.struct_size = sizeof plan};
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
             "\"offload_param\": {\"device\": \"cpu\"}%s}%s}",
             zero, more);
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    for (int u = 0; u < UNITS && CHECK(engine); u++) {
        zero_unit *unit = NULL;
        snprintf(name, sizeof name, "u%d", u);
        zero_param param = {
            .struct_size = sizeof param, .name = name, .dims = 1, .shape = {ELEMENTS}, .slot = &slot[u]};
        CHECK_INT(zero_engine_add_unit(engine, name, &unit), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    if (!CHECK_INT(zero_engine_plan(engine, &plan), ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    zero_engine_destroy(engine);
    return (double)plan.bytes[ZERO_CPU] / UNITS / ELEMENTS;
}

#define CPU(more) ", \"offload_optimizer\": {\"device\": \"cpu\"" more "}"
#define EARLY ", \"update_in_backward\": true"
#define BF16(more) ", \"bf16\": {\"enabled\": true" more "}"
#define NARROW ", \"bf16_optimizer_states\": true"
#define UNCLIPPED ", \"gradient_clipping\": 0"

int main(void) {
    const double turns = 2 * 2. / UNITS,
                 waiting = 2 * 0.25; /* of the gradients of two units, and of a quarter */
    const struct row {
        const char *zero, *more;
        double expected;
    } rows[] = {
        {CPU(""), BF16(""), 14},
        {CPU("") EARLY, UNCLIPPED BF16(""), 12 + turns + waiting},
        {CPU("") EARLY ", \"update_in_forward\": 0", UNCLIPPED BF16(""), 12 + turns},
        {CPU("") EARLY, UNCLIPPED BF16("") ", \"memory\": {\"cpu\": \"1640MiB\"}", 12 + turns + waiting},
        {CPU("") EARLY, UNCLIPPED BF16("") ", \"memory\": {\"cpu\": \"1580MiB\"}", 12 + turns},
        {CPU(""), BF16(NARROW), 10},
        {CPU("") EARLY, UNCLIPPED BF16(NARROW), 8 + turns + waiting},
        {CPU(", \"masters\": \"fp32\""), BF16(""), 16},
        {CPU(""), BF16("") ", \"nvme\": {\"masters\": \"fp32\"}", 16}, /* the old spelling */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double bytes = bytes_per_parameter(rows[i].zero, rows[i].more);
        if (!CHECK(bytes >= rows[i].expected && bytes < rows[i].expected + 0.02))
            fprintf(stderr, "row %zu has %.3f bytes, expected %.3f\n", i, bytes, rows[i].expected);
    }
    return check_end();
}
