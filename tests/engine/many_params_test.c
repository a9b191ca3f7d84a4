/* 100,000 parameters and 100,000 pieces of one are declared, committed, saved, loaded and used without a search through all of them
 * for each. So are parameters that are tensors of other names, parts of one tensor, or tied. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tests/seeds.h"

enum { UNITS = 42, PARAMS_LARGE = 60000, PARAMS = 1000, SIZE = 3, PIECES = 100000 };
enum { ELEMENTS = (PARAMS_LARGE + (UNITS - 2) * PARAMS) * SIZE };

/* A pass takes 0.05 s; searches through all parameters or pieces took 8 s. The declarations of NAMED parameters take 0.1 s; with
 * searches, those of one kind took 5 s and more. */
enum { PASS_CPU_S = 2, DECLARE_CPU_S = 2, NAMED = 60000 };

static zero_unit *unit[UNITS];
static float weights[ELEMENTS], grads[ELEMENTS], pieces[PIECES], piece_grads[PIECES];

/* The first unit has one parameter in many pieces, the second has most parameters. Fewer of all in a short run. */
static uint32_t params_of(int u) {
    return u == 0 ? 1 : (uint32_t)seeds_count(u == 1 ? PARAMS_LARGE : PARAMS);
}
static uint32_t pieces_count(void) { return (uint32_t)seeds_count(PIECES); }
static uint64_t elements(void) {
    uint64_t count = 0;
    for (int u = 1; u < UNITS; u++) count += params_of(u) * SIZE;
    return count + pieces_count();
}

static zero_status declare_pieces(void) {
    static zero_span spans[PIECES];
    for (uint32_t i = 0; i < pieces_count(); i++) spans[i] = (zero_span){&pieces[i], &piece_grads[i], 1};
    zero_param param = {.struct_size = sizeof param, .name = "pieces", .dims = 1, .shape = {pieces_count()}};
    param.spans = spans, param.span_count = pieces_count();
    return zero_unit_add_param(unit[0], &param);
}

static zero_status declare_unit(int u, uint64_t *at) {
    zero_status status = ZERO_OK;
    for (uint32_t p = 0; p < params_of(u) && !status; p++, *at += SIZE) {
        char name[32];
        zero_span span = {weights + *at, grads + *at, SIZE};
        zero_param param = {.struct_size = sizeof param, .name = name, .dims = 1, .shape = {SIZE}};
        param.spans = &span, param.span_count = 1;
        snprintf(name, sizeof name, "%u.of.%d", p, u);
        status = zero_unit_add_param(unit[u], &param);
    }
    return status;
}

static zero_status declare(zero_engine *engine) {
    uint64_t at = 0;
    zero_status status = ZERO_OK;
    for (int u = 0; u < UNITS && !status; u++) {
        char name[32];
        snprintf(name, sizeof name, "unit %d", u);
        status = zero_engine_add_unit(engine, name, &unit[u]);
        if (!status) status = u ? declare_unit(u, &at) : declare_pieces();
    }
    return status;
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static zero_status pass(zero_engine *engine) {
    zero_status status = zero_micro_begin(engine, ZERO_TRAIN);
    for (int u = 0; u < UNITS && !status; u++) {
        status = zero_forward_begin(unit[u]);
        if (!status) status = zero_forward_end(unit[u]);
    }
    for (int u = UNITS - 1; u >= 0 && !status; u--) {
        status = zero_backward_begin(unit[u]);
        if (!status) status = zero_backward_end(unit[u]);
    }
    return status;
}

static void many(zero_engine *engine, uint32_t rank, void *user) {
    char dir[512], before[33], after[33];
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine)) return;
    for (int i = 0; i < ELEMENTS; i++) weights[i] = (float)i, grads[i] = 1;
    for (int i = 0; i < PIECES; i++) piece_grads[i] = 1;
    CHECK_INT(declare(engine), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, before), ZERO_OK);
    snprintf(dir, sizeof dir, "%s/saved", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, after), ZERO_OK);
    CHECK_STRING(after, before);
    double began = cpu_s();
    CHECK_INT(pass(engine), ZERO_OK);
    CHECK(cpu_s() - began < PASS_CPU_S);
    CHECK_INT(zero_engine_step(engine, &info), ZERO_OK);
    CHECK_DOUBLE(info.grad_norm * info.grad_norm, (double)elements(), 1e-3);
}

/* Unit "named" has a tensor for each parameter, unit "cut" the parts of one tensor, and unit "tied" ties to those of "named". */
static zero_status declare_kinds(zero_engine *engine, uint32_t count) {
    static const char *const units[] = {"named", "cut", "tied"};
    zero_status status = ZERO_OK;
    zero_slot slot;
    for (int u = 0; u < 3 && !status; u++) {
        status = zero_engine_add_unit(engine, units[u], &unit[u]);
        for (uint32_t i = 0; i < count && !status; i++) {
            char name[32], tensor[32], owner[32];
            zero_param param = {
                .struct_size = sizeof param, .name = name, .dims = 1, .shape = {1}, .slot = &slot};
            snprintf(name, sizeof name, "%s.%u", units[u], i);
            snprintf(tensor, sizeof tensor, "tensor.%u", i);
            snprintf(owner, sizeof owner, "named.%u", i);
            if (u == 0) param.tensor = tensor;
            if (u == 1) param.tensor = "whole";
            if (u == 2) param.tied_to = owner;
            status = zero_unit_add_param(unit[u], &param);
        }
    }
    return status;
}

static void kinds(zero_engine *engine, uint32_t rank, void *user) {
    if (!CHECK(engine)) return;
    double began = cpu_s();
    CHECK_INT(declare_kinds(engine, (uint32_t)seeds_count(NAMED)), ZERO_OK);
    CHECK(cpu_s() - began < DECLARE_CPU_S);
}

int main(void) {
    ranks_run(1, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 1}}", kinds,
              NULL);
    ranks_run(1, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 1}}", many,
              NULL);
    return check_end();
}
