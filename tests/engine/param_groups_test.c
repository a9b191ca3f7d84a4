/* Parameter groups, without an engine: what each group is given, which parameters it takes, what is refused, and what the ranks
 * compare. */
#include <math.h>

#include "engine/base/hash.h"
#include "engine/model/param_groups.h"
#include "tests/check.h"

struct world {
    struct config config;
    struct param_groups groups;
    struct model model;
    struct zero_unit *unit;
};

static struct zero_error error;
static const struct optimizer_params first = {.lr = 0.5, .beta1 = 0.75, .weight_decay = 0.25};

/* `more`: members of the configuration, each after a comma. */
static void begin(struct world *w, const char *more) {
    char json[1024];
    *w = (struct world){0};
    error_clear(&error);
    snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 1%s}", more);
    CHECK_INT(config_read(json, &w->config, &error), ZERO_OK);
    CHECK_INT(config_resolve(&w->config, 1, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    groups_open(&w->groups, &w->config.groups, &first);
    CHECK_INT(model_add_unit(&w->model, NULL, "unit", &w->unit, &error), ZERO_OK);
}

static void end(struct world *w) {
    model_free(&w->model);
    config_free(&w->config);
}

/* Declares a parameter as the engine does. Returns it as its group made it. */
static zero_param declare(struct world *w, zero_param param) {
    static zero_slot slot;
    param.dims = 1, param.shape[0] = 4, param.slot = &slot;
    if (param.tied_to) CHECK_INT(model_add_unit(&w->model, NULL, param.name, &w->unit, &error), ZERO_OK);
    CHECK_INT(groups_assign(&w->groups, &w->model, &param, &error), ZERO_OK);
    CHECK_INT(model_add_param(&w->model, w->unit, &param, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    return param;
}

static void a_group_inherits_what_it_is_not_given(void) {
    struct world w;
    int group = 0;
    begin(&w, ", \"param_groups\": [{\"match\": \"a\", \"lr\": 2}, {\"match\": \"b\", \"weight_decay\": 0}]");
    CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = -1, .weight_decay = 3}, &group, &error), ZERO_OK);
    CHECK_INT(group, 3);
    static const double given[][2] = {{0.5, 0.25}, {2, 0.25}, {0.5, 0}, {0.5, 3}};
    CHECK_INT(w.groups.count, 4);
    for (int g = 0; g < 4; g++) {
        CHECK_DOUBLE(w.groups.params[g].lr, given[g][0], 0);
        CHECK_DOUBLE(w.groups.params[g].weight_decay, given[g][1], 0);
        CHECK_DOUBLE(w.groups.params[g].beta1, 0.75, 0);
    }
    end(&w);
}

static void groups_that_cannot_be_are_refused(void) {
    struct world w;
    int group = -1;
    begin(&w, "");
    CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = NAN}, &group, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "must be finite");
    CHECK_INT(groups_add(&w.groups, &(zero_group){.weight_decay = INFINITY}, &group, &error),
              ZERO_E_ARGUMENT);
    CHECK_INT(w.groups.count, 1);
    error_clear(&error);
    while (w.groups.count < GROUP_MAX)
        CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = 1}, &group, &error), ZERO_OK);
    CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = 1}, &group, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "there are 8 already");
    CHECK_INT(group, GROUP_MAX - 1);
    end(&w);
}

static void the_first_pattern_that_matches_decides(void) {
    struct world w;
    int own;
    begin(&w, ", \"param_groups\": [{\"match\": [\"*.b\", \"x\"]}, {\"match\": \"h.*\", \"frozen\": true}]");
    CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = 1}, &own, &error), ZERO_OK);
    CHECK_INT(declare(&w, (zero_param){.name = "h.b"}).group, 1);
    CHECK_INT(declare(&w, (zero_param){.name = "in files", .alias = "x"}).group, 1);
    zero_param frozen = declare(&w, (zero_param){.name = "h.w", .group = 3, .flags = ZERO_NO_DECAY});
    CHECK_INT(frozen.group, 2);
    CHECK_INT(frozen.flags, ZERO_FROZEN | ZERO_NO_DECAY);
    CHECK_INT(declare(&w, (zero_param){.name = "in.w", .group = 3}).group, own);
    CHECK_INT(declare(&w, (zero_param){.name = "out.w"}).group, 0);
    /* A tied parameter is its owner's, whatever its own name matches. */
    zero_param tied =
        declare(&w, (zero_param){.name = "x", .group = 3, .tied_to = "h.w", .flags = ZERO_NO_DECAY});
    CHECK_INT(tied.group, 0);
    CHECK_INT(tied.flags, ZERO_FROZEN | ZERO_NO_DECAY);
    CHECK_INT(groups_assign(&w.groups, &w.model, &(zero_param){.name = "y", .group = 4}, &error),
              ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "parameter \"y\": there is no group 4; there are 4, from 0");
    end(&w);
}

/* groups_check, with parameters h.w and h.b, and x that is tied to h.w. */
static void check(const char *more, const char *message) {
    struct world w;
    begin(&w, more);
    declare(&w, (zero_param){.name = "h.w"});
    declare(&w, (zero_param){.name = "h.b"});
    declare(&w, (zero_param){.name = "x", .tied_to = "h.w"});
    CHECK_INT(groups_check(&w.groups, &w.model, &w.config, &error), *message ? ZERO_E_CONFIG : ZERO_OK);
    CHECK_CONTAINS(error.message, message);
    end(&w);
}

static void every_group_and_list_is_checked(void) {
#define WARMUP(params) ", \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {" params "}}"
    check("", "");
    check(", \"param_groups\": [{\"match\": [\"h.b\", \"*.w\"]}]", "");
    check(", \"param_groups\": [{\"match\": [\"h.b\", \"*.v\"]}]",
          "no parameter's name matches \"*.v\"; the nearest is \"h.w\"");
    check(", \"param_groups\": [{\"match\": \"x\"}]", "\"x\" is tied to \"h.w\": write that name");
    check(", \"param_groups\": [{\"match\": \"*\"}, {\"match\": \"h.b\"}]",
          "param_groups[1]: earlier groups");
    check(", \"param_groups\": [{\"match\": \"h.b\", \"lr\": 1}]" WARMUP("\"warmup_max_lr\": [1, 2]"), "");
    check(", \"param_groups\": [{\"match\": \"h.b\", \"lr\": 1}]" WARMUP("\"warmup_max_lr\": 1"),
          "param_groups[0].lr: scheduler.params.warmup_max_lr sets the lr of all groups");
    check(", \"param_groups\": [{\"match\": \"h.b\"}]" WARMUP("\"warmup_min_lr\": [1, 2, 3]"),
          "scheduler.params.warmup_min_lr: 3 numbers for 2 parameter groups");
}

/* Ranks must agree on weight decay and on each parameter's group. Rank 0's lr is used on all ranks. */
static void the_hash_has_what_ranks_must_give_alike(void) {
    struct world w;
    begin(&w, ", \"param_groups\": [{\"match\": \"h.b\"}]");
    declare(&w, (zero_param){.name = "h.b"});
    uint64_t hash = groups_hash(&w.groups, &w.model, HASH_START);
    w.groups.params[1].lr = 7;
    CHECK(groups_hash(&w.groups, &w.model, HASH_START) == hash);
    w.groups.params[1].weight_decay = 7;
    CHECK(groups_hash(&w.groups, &w.model, HASH_START) != hash);
    w.groups.params[1].weight_decay = first.weight_decay;
    CHECK(groups_hash(&w.groups, &w.model, HASH_START) == hash);
    w.model.param[0].scalars = model_scalars(0, false);
    CHECK(groups_hash(&w.groups, &w.model, HASH_START) != hash);
    end(&w);
}

/* A group's codes, else the run's; of a tied parameter its owner's. Groups of the program have the run's. */
static void codes_are_the_groups_or_the_runs(void) {
    struct world w;
    int own;
    begin(&w, ", \"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": \"fp8_e4m3\"}, "
              "\"param_groups\": "
              "[{\"match\": \"*.b\", \"zero_quantized_weights\": false}, {\"match\": \"a.*\", "
              "\"zero_quantized_weights\": true}, {\"match\": \"c.*\", \"lr\": 1}]");
    CHECK_INT(groups_add(&w.groups, &(zero_group){.lr = 1}, &own, &error), ZERO_OK);
    static const struct {
        zero_param param;
        enum code_format code;
    } rows[] = {{{.name = "a.b"}, CODE_NONE},
                {{.name = "a.w"}, CODE_INT8},
                {{.name = "c.w"}, CODE_FP8_E4M3},
                {{.name = "d.w"}, CODE_FP8_E4M3},
                {{.name = "e.w", .group = 4}, CODE_FP8_E4M3},
                {{.name = "x.w", .tied_to = "a.b"}, CODE_NONE}};
    enum { ROWS = sizeof rows / sizeof *rows };
    for (int i = 0; i < ROWS; i++) declare(&w, rows[i].param);
    CHECK_INT(own, 4);
    groups_mark(&w.groups, (enum code_format)w.config.weight_code, &w.model);
    for (int i = 0; i < ROWS; i++) CHECK_INT(w.model.param[i].code, rows[i].code);
    end(&w);
}

/* Which of a unit's parameters share a region: those of one format. What stays whole on every rank, or in fp32, is not coded. */
static void formats_have_regions(void) {
    static const struct {
        uint64_t count;
        uint32_t flags;
        enum code_format code, expected;
        uint32_t region;
    } rows[] = {{100, 0, CODE_FP8_E4M3, CODE_FP8_E4M3, 1}, {100, 0, CODE_NONE, CODE_NONE, 0},
                {100, 0, CODE_FP8_E4M3, CODE_FP8_E4M3, 1}, {9, 0, CODE_FP8_E4M3, CODE_NONE, 2},
                {9, 0, CODE_NONE, CODE_NONE, 2},           {100, ZERO_KEEP_FP32, CODE_FP8_E4M3, CODE_NONE, 3},
                {100, 0, CODE_NONE, CODE_NONE, 0}};
    enum { ROWS = sizeof rows / sizeof *rows };
    struct model model = {.dtype = DTYPE_BF16};
    struct zero_unit *unit;
    static zero_slot slot;
    error_clear(&error);
    CHECK_INT(model_add_unit(&model, NULL, "all", &unit, &error), ZERO_OK);
    for (int i = 0; i < ROWS; i++) {
        char name[] = {'p', (char)('0' + i), 0};
        zero_param param = {
            .name = name, .dims = 1, .shape = {rows[i].count}, .flags = rows[i].flags, .slot = &slot};
        CHECK_INT(model_add_param(&model, unit, &param, &error), ZERO_OK);
        model.param[i].code = rows[i].code;
    }
    CHECK_INT(model_lay_out(&model, 2, 10, &error), ZERO_OK);
    CHECK_INT(model.regions, 4);
    for (int i = 0; i < ROWS; i++) {
        CHECK_INT(model.param[i].region, rows[i].region);
        CHECK_INT(region_code(&model.region[model.param[i].region]), rows[i].expected);
    }
    model_free(&model);
}

int main(void) {
    codes_are_the_groups_or_the_runs();
    formats_have_regions();
    a_group_inherits_what_it_is_not_given();
    groups_that_cannot_be_are_refused();
    the_first_pattern_that_matches_decides();
    every_group_and_list_is_checked();
    the_hash_has_what_ranks_must_give_alike();
    return check_end();
}
