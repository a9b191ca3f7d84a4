/* Structs that cross the interface, from hosts whose header is older, newer or forgotten; and calls after a failure. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}}";
static const struct plain_param params[] = {{"a", "a.w", 100, 0, NULL}};

/* With 0, a thread rank would train alone, as rank 0 of 1. */
static void a_runtime_without_size_is_refused(void) {
    zero_local *local = zero_local_create(2);
    zero_runtime runtime = {.local = local, .local_rank = 1};
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), "zero_runtime.struct_size is 0: set it to sizeof(zero_runtime)");
    zero_engine_destroy(engine);
    zero_local_destroy(local);
}

/* As openat2(2) has it: a larger struct is welcome while what this library does not know is zero. */
static void a_newer_runtime(void) {
    struct {
        zero_runtime known;
        uint64_t unknown;
    } newer = {.known = {.struct_size = sizeof newer}};
    zero_engine *engine = zero_engine_init_with(json, &newer.known);
    CHECK(engine);
    zero_engine_destroy(engine);
    newer.unknown = 1;
    engine = zero_engine_init_with(json, &newer.known);
    CHECK(!engine);
    CHECK_CONTAINS(zero_last_error(), "this library knows");
    zero_engine_destroy(engine);
}

static void an_older_runtime(void) {
    zero_runtime older = {.struct_size = sizeof older.struct_size};
    memset((char *)&older + sizeof older.struct_size, 0xff, sizeof older - sizeof older.struct_size);
    zero_engine *engine = zero_engine_init_with(json, &older);
    CHECK(engine);
    zero_engine_destroy(engine);
}

static void structs_without_size_are_refused(zero_engine *engine, uint32_t rank, void *user) {
    zero_slot slot;
    zero_unit *unit;
    int group;
    zero_param param = {.name = "p", .dims = 1, .shape = {4}, .slot = &slot};
    zero_group given = {.lr = 1};
    zero_optimizer optimizer = {.name = "mine"};
    zero_plan plan = {0};
    zero_counters counters = {0};
    zero_memory_row row = {0};
    zero_memory_owner owner = {0};
    CHECK_INT(zero_engine_add_unit(engine, "u", &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_param.struct_size is 0");
    CHECK_INT(zero_engine_add_group(engine, &given, &group), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_group.struct_size is 0");
    CHECK_INT(zero_engine_set_optimizer(engine, &optimizer), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_optimizer.struct_size is 0");
    CHECK_INT(zero_engine_commit(engine, &plan), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_plan.struct_size is 0");
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_counters.struct_size is 0");
    CHECK_INT(zero_engine_memory(engine, 0, &row), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_memory_row.struct_size is 0");
    CHECK_INT(zero_engine_memory_owner(engine, 0, &owner), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "zero_memory_owner.struct_size is 0");
}

static void a_larger_result_ends_in_zeros(zero_engine *engine, uint32_t rank, void *user) {
    struct {
        zero_plan known;
        uint64_t unknown[2];
    } newer = {.known = {.struct_size = sizeof newer}, .unknown = {1, 2}};
    struct plain p;
    zero_step_info none = {0};
    CHECK_INT(plain_open(&p, engine, params, 1, &newer.known), ZERO_OK);
    CHECK_INT(newer.known.params, 100);
    CHECK_INT(newer.known.struct_size, sizeof newer);
    CHECK_INT(newer.unknown[0] | newer.unknown[1], 0);
    CHECK_INT(plain_pass(&p, ZERO_TRAIN, 0), ZERO_OK);
    CHECK_INT(zero_engine_step(engine, &none), ZERO_E_ARGUMENT); /* the step was not made, and can be */
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_steps(engine), 1);
}

static void impossible(void *user, uint64_t step, int group, zero_setting *setting) { setting->lr = -1; }

/* A failure is sticky: every later call that would change something returns it. */
static void nothing_changes_after_a_failure(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_counters counters = {.struct_size = sizeof counters};
    zero_memory_row row = {.struct_size = sizeof row};
    CHECK_INT(plain_open(&p, engine, params, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_set_note(engine, "before", "x"), ZERO_OK);
    CHECK_INT(zero_engine_set_schedule(engine, impossible, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_lr(engine, 0, 1), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "the schedule gives group 0 lr -1");
    CHECK_INT(zero_engine_set_schedule(engine, NULL, NULL), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_set_note(engine, "after", "x"), ZERO_E_ARGUMENT);
    CHECK(!zero_engine_note(engine, "after"));
    CHECK_STRING(zero_engine_note(engine, "before"), "x"); /* readers go on */
    CHECK_INT(zero_engine_counters(engine, &counters), ZERO_OK);
    CHECK_INT(zero_engine_memory(engine, 0, &row), ZERO_OK);
}

int main(void) {
    a_runtime_without_size_is_refused();
    a_newer_runtime();
    an_older_runtime();
    ranks_run(1, json, structs_without_size_are_refused, NULL);
    ranks_run(1, json, a_larger_result_ends_in_zeros, NULL);
    ranks_run(1, json, nothing_changes_after_a_failure, NULL);
    return check_end();
}
