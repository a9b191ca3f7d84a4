/* What a model rank tells the others of its declarations, and bytes that are none. */
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "engine/ranks/declared.h"
#include "tests/check.h"

static void add(struct model *model, struct zero_unit *unit, zero_param param) {
    static zero_slot slot;
    struct zero_error error;
    error_clear(&error);
    param.struct_size = sizeof param, param.slot = &slot;
    CHECK_INT(model_add_param(model, unit, &param, &error), ZERO_OK);
}

static void declare(struct model *model) {
    struct zero_unit *unit;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(model_add_unit(model, NULL, "first", &unit, &error), ZERO_OK);
    add(model, unit, (zero_param){.name = "a", .dims = 2, .shape = {3, 5}, .flags = ZERO_NO_DECAY});
    CHECK_INT(model_add_unit(model, NULL, "second", &unit, &error), ZERO_OK);
    add(model, unit, (zero_param){.name = "tied", .dims = 1, .shape = {15}, .tied_to = "a"});
    add(model, unit,
        (zero_param){
            .name = "t.1", .dims = 2, .shape = {2, 4}, .tensor = "t", .tensor_row = 6, .tensor_rows = 8});
}

static void check_text(const struct declared *d) {
    CHECK_INT(d->params, 2); /* without the tied one */
    CHECK_INT(d->units, 2);
    CHECK_STRING(declared_name(d, &d->param[0]), "a");
    CHECK_STRING(declared_name(d, &d->param[1]), "t");
    CHECK_STRING(declared_unit(d, 0), "first");
    CHECK_STRING(declared_unit(d, 1), "second");
}

static void check_params(const struct declared *d) {
    CHECK_INT(d->param[0].first, 0);
    CHECK_INT(d->param[0].count, 15);
    CHECK_INT(d->param[0].tensor_count, 15);
    CHECK_INT(d->param[0].flags, ZERO_NO_DECAY);
    CHECK_INT(d->param[1].first, 24);
    CHECK_INT(d->param[1].count, 8);
    CHECK_INT(d->param[1].tensor_count, 32);
    CHECK_INT(d->param[1].shape[0], 8);
    CHECK_INT(d->param[1].index, 2);
}

/* Each byte changed alone: what is accepted can be read. */
static void damage(const struct declared *whole) {
    struct declared *d = malloc(whole->bytes);
    if (!CHECK(d)) return;
    for (uint64_t i = 0; i < whole->bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(d, whole, whole->bytes);
            ((uint8_t *)d)[i] ^= (uint8_t)(1 << bit);
            if (!declared_whole(d, whole->bytes)) continue;
            for (uint32_t p = 0; p < d->params; p++)
                CHECK(strlen(declared_name(d, &d->param[p])) < whole->bytes);
            for (uint32_t u = 0; u < d->units; u++) CHECK(strlen(declared_unit(d, u)) < whole->bytes);
        }
    memcpy(d, whole, whole->bytes);
    for (uint64_t bytes = 0; bytes < whole->bytes; bytes++) {
        d->bytes = bytes;
        CHECK(!declared_whole(d, bytes));
    }
    d->bytes = whole->bytes, d->param[1].name = d->units_text;
    CHECK(!declared_whole(d, whole->bytes));
    free(d);
}

/* A use has room for the regions of 12 kinds. */
static void test_kinds(void) {
    struct model model = {.dtype = DTYPE_BF16};
    struct zero_unit *unit;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(model_add_unit(&model, NULL, "all", &unit, &error), ZERO_OK);
    for (uint32_t kind = 0; kind < 16; kind++) {
        char name[16];
        snprintf(name, sizeof name, "p%u", kind);
        uint32_t flags = (kind & 1 ? ZERO_FROZEN : 0) | (kind & 2 ? ZERO_KEEP_FP32 : 0);
        add(&model, unit,
            (zero_param){.name = name, .dims = 1, .shape = {kind & 4 ? 10 : 100}, .flags = flags});
        model.param[kind].elsewhere = kind & 8;
    }
    CHECK_INT(model_lay_out(&model, 2, 50, &error), ZERO_E_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "unit \"all\" has parameters of more than 12 kinds");
    model_free(&model);
}

int main(void) {
    test_kinds();
    struct model model = {.dtype = DTYPE_F32};
    struct param_groups groups = {.count = 1};
    declare(&model);
    struct declared *d = declared_make(&model, &groups, 7);
    if (CHECK(d)) {
        CHECK(declared_whole(d, d->bytes));
        CHECK_INT(d->alike, 7);
        CHECK_INT(d->grouped, 1);
        check_text(d);
        check_params(d);
        damage(d);
    }
    free(d);
    model_free(&model);
    return check_end();
}
