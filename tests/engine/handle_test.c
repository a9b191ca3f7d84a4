/* Parameters by handle: names of any length, the host's own pointer for each, what a rank owns, and reading and writing that alone. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"

enum { PARAMS = 3, NAME_BYTES = 5000, COUNT_MAX = 700 };

static const uint64_t counts[PARAMS] = {700, 33, 257};
static const float firsts[PARAMS] = {1000, 2000, 3000}; /* what a fill begins with */

struct host {
    zero_unit *unit;
    zero_slot slot[PARAMS];
};

/* The name of a parameter is the same long text for all, up to its last digit. */
static const char *name_of(uint32_t i, char out[NAME_BYTES]) {
    memset(out, 'n', NAME_BYTES);
    snprintf(out + NAME_BYTES - 2, 2, "%u", i);
    return out;
}

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = *(const float *)user + (float)(first + i);
}

static void declare(zero_engine *engine, struct host *h) {
    char name[NAME_BYTES];
    CHECK_INT(zero_engine_add_unit(engine, name_of(9, name), &h->unit), ZERO_OK);
    for (uint32_t i = 0; i < PARAMS; i++) {
        zero_param param = {.struct_size = sizeof param,
                            .name = name_of(i, name),
                            .dims = 1,
                            .shape = {counts[i]},
                            .user = (void *)(uintptr_t)&firsts[i],
                            .slot = &h->slot[i]};
        CHECK_INT(zero_unit_add_param(h->unit, &param), ZERO_OK);
        CHECK(zero_unit_param(h->unit, i) == zero_engine_param(engine, name));
        CHECK(!strcmp(zero_param_name(zero_unit_param(h->unit, i)), name)); /* too long to print */
        CHECK_INT(zero_param_count(zero_unit_param(h->unit, i)), (long long)counts[i]);
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
}

static void check_elements(const float *values, uint64_t first, uint64_t count, float begin, float add) {
    for (uint64_t i = 0; i < count; i++)
        if (!CHECK_DOUBLE((double)values[i], (double)(begin + (float)(first + i) + add), 0)) return;
}

static void saved_under_long_names(zero_engine *engine, const char *json) {
    char dir[512], before[33], after[33];
    snprintf(dir, sizeof dir, "%s/%s", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp", json);
    CHECK_INT(zero_engine_hash(engine, before), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, after), ZERO_OK);
    CHECK_STRING(after, before);
}

/* The ranks' parts of a parameter are together all of it. */
static void every_element_has_an_owner(zero_engine *engine, struct host *h, zero_kind kind) {
    for (uint32_t i = 0; i < PARAMS; i++) {
        uint64_t first, count;
        double owners[COUNT_MAX] = {0};
        CHECK_INT(zero_param_owned(zero_unit_param(h->unit, i), kind, &first, &count), ZERO_OK);
        CHECK(first + count <= counts[i]);
        for (uint64_t k = 0; k < count; k++) owners[first + k] = 1;
        for (uint64_t k = 0; k < counts[i]; k += 50)
            CHECK_INT(
                zero_engine_sum(engine, owners + k, counts[i] - k < 50 ? (uint32_t)(counts[i] - k) : 50),
                ZERO_OK);
        for (uint64_t k = 0; k < counts[i]; k++)
            if (!CHECK(owners[k] >= 1)) break;
    }
}

/* Each rank adds 1 to what it owns, and all see all of it. */
static void own_parts_are_read_and_written(zero_engine *engine, struct host *h, zero_kind kind) {
    static _Thread_local float values[COUNT_MAX];
    bool weights = kind == ZERO_PARAM;
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    for (uint32_t i = 0; i < PARAMS; i++) {
        zero_handle *param = zero_unit_param(h->unit, i);
        uint64_t first, count;
        CHECK_INT(zero_param_owned(param, kind, &first, &count), ZERO_OK);
        CHECK_INT(zero_param_get_owned(param, kind, values, first, count), ZERO_OK);
        if (weights) check_elements(values, first, count, firsts[i], 0);
        for (uint64_t k = 0; k < count; k++) values[k] = firsts[i] + (float)(first + k) + 1;
        CHECK_INT(zero_param_put_owned(param, kind, values, first, count), ZERO_OK);
    }
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "zero_engine_written");
    CHECK_INT(zero_engine_written(engine), ZERO_OK);
    for (uint32_t i = 0; i < PARAMS; i++) {
        CHECK_INT(zero_param_get(zero_unit_param(h->unit, i), kind, values, 0, counts[i]), ZERO_OK);
        check_elements(values, 0, counts[i], firsts[i], 1);
    }
}

/* A use sees the weights that every rank has put. */
static void a_step_uses_what_was_put(zero_engine *engine, struct host *h) {
    CHECK_INT(zero_micro_begin(engine, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_forward_begin(h->unit), ZERO_OK);
    for (uint32_t i = 0; i < PARAMS; i++) check_elements(h->slot[i].param, 0, counts[i], firsts[i], 1);
    CHECK_INT(zero_forward_end(h->unit), ZERO_OK);
    CHECK_INT(zero_backward_begin(h->unit), ZERO_OK);
    CHECK_INT(zero_unit_give_grads(h->unit, (const void *const[PARAMS]){NULL}), ZERO_OK);
    CHECK_INT(zero_backward_end(h->unit), ZERO_OK);
    CHECK_INT(zero_engine_step(engine, NULL), ZERO_OK);
}

static void refusals(zero_engine *engine, struct host *h) {
    static float values[COUNT_MAX];
    uint64_t first, count;
    zero_handle *param = zero_unit_param(h->unit, 0);
    CHECK_INT(zero_param_get_owned(param, ZERO_PARAM, values, 0, 0), ZERO_E_ORDER); /* after a step */
    CHECK_CONTAINS(zero_last_error(), "zero_engine_flush");
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    CHECK_INT(zero_param_owned(param, ZERO_PARAM, &first, &count), ZERO_OK);
    if (count < counts[0]) {
        CHECK_INT(zero_param_get_owned(param, ZERO_PARAM, values, 0, counts[0]), ZERO_E_ARGUMENT);
        CHECK_CONTAINS(zero_last_error(), "ask zero_param_owned");
    }
    CHECK_INT(zero_param_put_owned(param, ZERO_GRAD, values, 0, 0), ZERO_E_ARGUMENT);
    CHECK_INT(zero_param_owned(NULL, ZERO_PARAM, &first, &count), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "the parameter is NULL");
    CHECK_INT(zero_param_get(NULL, ZERO_PARAM, values, 0, 1), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_fill(engine, NULL, NULL), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "has neither values nor spans");
    CHECK_INT(zero_unit_give_grads(h->unit, NULL), ZERO_E_ARGUMENT);
}

static void use_handles(zero_engine *engine, uint32_t rank, void *user) {
    struct host h = {0};
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    declare(engine, &h);
    saved_under_long_names(engine, user);
    every_element_has_an_owner(engine, &h, ZERO_PARAM);
    every_element_has_an_owner(engine, &h, ZERO_STATE1);
    own_parts_are_read_and_written(engine, &h, ZERO_PARAM);
    own_parts_are_read_and_written(engine, &h, ZERO_STATE1);
    a_step_uses_what_was_put(engine, &h);
    refusals(engine, &h);
}

int main(void) {
    char json[1024];
    static const char *const tiers[] = {
        "", ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, \"offload_param\": "
        "{\"device\": "
        "\"nvme\", \"nvme_path\": \"%s\"}"};
    const char *drive = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (uint32_t tier = 0; tier < (stage == 3 ? 3 : 2); tier++) {
            char name[32], offload[700];
            snprintf(offload, sizeof offload, tiers[tier], drive, drive);
            snprintf(name, sizeof name, "saved_%u_%u", stage, tier);
            snprintf(json, sizeof json,
                     "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": %u, "
                     "\"stage3_param_persistence_threshold\": 40%s}}",
                     stage, offload);
            ranks_run(2, json, use_handles, name);
        }
    return check_end();
}
