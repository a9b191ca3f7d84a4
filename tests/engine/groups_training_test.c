/* Parameter groups: lr, weight decay and frozen by patterns and by the host, the same bits as the serial oracle at all
 * stages and tiers; frozen parameters cost their bytes and nothing else; patterns that mean nothing are named. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

static bool named(uint32_t param, const char *names) { return strstr(names, toy_params[param].name) != NULL; }

static void check_bits(struct toy_setup s, const char *what) {
    static struct toy_result got, expected;
    toy_oracle(&s, &expected);
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (int t = 0; t < TOY_TIERS; t++) {
            s.tiers = toy_tiers[t].json;
            if (s.stage < toy_tiers[t].stage_min) continue;
            toy_train(&s, &got);
            if (!CHECK_STRING(got.error, "") ||
                !CHECK_BYTES(got.weights, expected.weights, sizeof got.weights))
                fprintf(stderr, "in %s at stage %u, %s\n", what, s.stage, toy_tiers[t].name);
        }
}

/* ---- of the configuration ---- */

/* The first matching group decides; the decay of in.b is 0 because of the host's flag. */
static void by_patterns(uint32_t param, uint32_t applied, struct optimizer_params *p) {
    if (named(param, "a.w a.b a.g out.c")) p->lr = 0.01, p->weight_decay = 0.3;
    if (named(param, "in.b b.b c.b")) p->lr = 0.005, p->weight_decay = named(param, "in.b") ? 0 : 0.25;
    if (named(param, "a.g")) p->weight_decay = 0;
}

static const char patterns[] =
    ", \"param_groups\": [{\"match\": [\"a.?\", \"o*t.c\"], \"lr\": 0.01, \"weight_decay\": 0.3}, "
    "{\"match\": \"*.b\", \"lr\": 0.005, \"weight_decay\": 0.25}, {\"match\": \"b.*\", \"frozen\": true}]";

static void patterns_choose(void) {
    struct toy_setup s = toy_setup_default();
    s.extra = patterns;
    s.update = by_patterns;
    s.frozen = 1 << 5 | 1 << 7; /* b.w and b.g; b.b is an earlier group's */
    s.ranks = 3;
    s.mode = "every"; /* the same mode at all stages */
    s.micro_steps = 2;
    check_bits(s, "patterns");
    s.threshold = 0;
    s.compute = ZERO_BF16;
    s.nan_step = 3;
    check_bits(s, "patterns in bf16, with a step that is skipped");
}

/* All but the last: of the tied in.w the owner's name counts. */
static void only_the_head(uint32_t param, uint32_t applied, struct optimizer_params *p) {}

static void the_head_alone(void) {
    struct toy_setup s = toy_setup_default();
    s.extra = ", \"param_groups\": [{\"match\": \"out.c\"}, {\"match\": \"*\", \"frozen\": true}]";
    s.update = only_the_head;
    s.frozen = (1u << (TOY_PARAMS - 1)) - 1;
    check_bits(s, "the head alone");
}

/* ---- by the host ---- */

static void by_host(uint32_t param, uint32_t applied, struct optimizer_params *p) {
    bool no_decay = toy_params[param].flags & ZERO_NO_DECAY;
    if (named(param, "a.w a.b a.g")) p->lr = 0.004, p->weight_decay = no_decay ? 0 : 0.05;
    if (named(param, "c.w c.b c.g")) p->lr = 0.03, p->weight_decay = 0;
    if (named(param, "c.b")) p->lr = 0.001, p->weight_decay = 0.1;
}

static zero_status declare_groups(zero_engine *engine, uint32_t param, zero_param *out) {
    int group = 0;
    zero_group given = {.struct_size = sizeof given, .lr = 0.004, .weight_decay = 0.05};
    zero_group other = {.struct_size = sizeof other, .lr = -1, .weight_decay = 0};
    zero_status status = ZERO_OK;
    if (param == 0) { /* 1 is the configuration's */
        status = zero_engine_add_group(engine, &given, &group);
        CHECK_INT(group, 2);
        if (!status) status = zero_engine_add_group(engine, &other, &group);
        CHECK_INT(group, 3);
    }
    if (named(param, "a.w a.b a.g")) out->group = 2;
    if (named(param, "c.w c.b c.g")) out->group = 3; /* but c.b, which the configuration takes */
    return status;
}

static void set_lr(zero_engine *engine) {
    CHECK_INT(zero_engine_set_lr(engine, 3, 0.03), ZERO_OK);
    CHECK_INT(zero_engine_set_lr(engine, 4, 0.03), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "there is no group 4; there are 4, from 0");
}

static void the_host_chooses(void) {
    struct toy_setup s = toy_setup_default();
    s.extra = ", \"param_groups\": [{\"match\": \"c.b\", \"lr\": 0.001}]";
    s.declare = declare_groups;
    s.begin = set_lr;
    s.update = by_host;
    check_bits(s, "the host's groups");
}

/* ---- what frozen ones cost ---- */

enum { RANKS = 2, TRAINED = 2048, FROZEN = 64 * 1024 };

static const struct plain_param with_frozen[] = {{"a", "a", TRAINED, 0, NULL},
                                                 {"a", "big", FROZEN, 0, NULL},
                                                 {"b", "b", TRAINED, 0, NULL},
                                                 {"c", "bag", FROZEN, 0, NULL}};
static const struct plain_param without[] = {{"a", "a", TRAINED, 0, NULL}, {"b", "b", TRAINED, 0, NULL}};

struct cost {
    const struct plain_param *param;
    uint32_t params;
    zero_plan plan;
    zero_counters before[RANKS], after;
};

static void train_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct cost *cost = user;
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_counters counters = {.struct_size = sizeof counters};
    if (!CHECK(engine != NULL)) return;
    if (!CHECK_INT(plain_open(&p, engine, cost->param, cost->params, &plan), ZERO_OK))
        fprintf(stderr, "%s\n", zero_last_error());
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK); /* the first gathers what was filled */
    zero_engine_counters(engine, &cost->before[rank]);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    for (uint32_t u = 0; u < p.units; u++) CHECK_INT(zero_unit_trains(p.unit[u]), u < 2);
    zero_engine_counters(engine, &counters);
    if (rank == 0) cost->plan = plan, cost->after = counters;
}

#define OF_A_STEP(cost, counter) ((cost).after.counter - (cost).before[0].counter)

static struct cost measure(uint32_t stage, const char *dtype, bool frozen) {
    struct cost cost = {.param = frozen ? with_frozen : without, .params = frozen ? 4 : 2};
    for (int r = 0; r < RANKS; r++) cost.before[r].struct_size = sizeof cost.before[r];
    char json[512];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1%s%s, \"zero_optimization\": {\"stage\": %u, "
        "\"stage3_param_persistence_threshold\": 0}}",
        dtype, frozen ? ", \"param_groups\": [{\"match\": \"b?g\", \"frozen\": true}]" : "", stage);
    ranks_run(RANKS, json, train_rank, &cost);
    return cost;
}

/* A frozen parameter costs only its compute bytes, divided if the stage shards parameters: no gradient, state, master
 * or reduction. */
static void frozen_ones_cost_their_bytes(const char *dtype, uint64_t element_bytes) {
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct cost more = measure(stage, dtype, true), less = measure(stage, dtype, false);
        uint64_t shards = stage == 3 ? RANKS : 1;
        CHECK_INT(more.plan.param_bytes - less.plan.param_bytes, 2 * FROZEN * element_bytes / shards);
        CHECK_INT(more.plan.grad_bytes, less.plan.grad_bytes);
        CHECK_INT(more.plan.state_bytes, less.plan.state_bytes);
        CHECK_INT(more.plan.master_bytes, less.plan.master_bytes);
        CHECK_INT(more.plan.staging_bytes, less.plan.staging_bytes);
        CHECK_INT(OF_A_STEP(more, reduce_elements), OF_A_STEP(less, reduce_elements));
        CHECK_INT(OF_A_STEP(more, reduce_calls), OF_A_STEP(less, reduce_calls));
        if (stage == 3) continue;
        CHECK_INT(more.plan.gathered_bytes, less.plan.gathered_bytes);
        CHECK_INT(more.plan.bytes[ZERO_DEVICE] - less.plan.bytes[ZERO_DEVICE], 2 * FROZEN * element_bytes);
        CHECK_INT(OF_A_STEP(more, gather_elements), OF_A_STEP(less, gather_elements));
    }
}

/* ---- what is refused ---- */

static const struct {
    const char *groups, *error;
    zero_status status;
} mistakes[] = {
    {"[{\"match\": [\"a.*\", \"ain.w\"]}]",
     "param_groups[0].match: no parameter's name matches \"ain.w\"; the nearest is \"in.w\"", ZERO_E_CONFIG},
    {"[{\"match\": \"a.*\"}, {\"match\": \"*x.b\"}]",
     "param_groups[1].match: no parameter's name matches \"*x.b\"; the nearest is \"in.b\"", ZERO_E_CONFIG},
    {"[{\"match\": \"out.w\"}]", "param_groups[0].match: \"out.w\" is tied to \"in.w\": write that name",
     ZERO_E_CONFIG},
    {"[{\"match\": \"*\"}, {\"match\": \"a.w\"}]",
     "param_groups[1]: earlier groups have all parameters that it matches: move it up, or remove it",
     ZERO_E_CONFIG},
    {"[{\"match\": \"a.w\", \"wieght_decay\": 0}]",
     "param_groups[0].wieght_decay: unknown key: did you mean \"weight_decay\"?", ZERO_E_CONFIG},
    {"[{\"lr\": 1}]", "param_groups[0]: match is missing: name the parameters, as \"match\": [\"*.bias\"]",
     ZERO_E_CONFIG},
    {"[{\"match\": \"a.w\", \"lr\": -1}]",
     "param_groups[0].lr: -1 stands where a number from 0 to 1e+30 is expected", ZERO_E_CONFIG},
    {"[{\"match\": []}]",
     "param_groups[0].match: [ ] stands where a pattern or a list of at most 64 patterns is "
     "expected",
     ZERO_E_CONFIG},
    {"[7]", "param_groups[0]: 7 stands where an object is expected", ZERO_E_CONFIG},
    {"[{\"match\": \"a.w\", \"lr\": 0.1}], \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
     "{\"warmup_max_lr\": 1}}",
     "param_groups[0].lr: scheduler.params.warmup_max_lr sets the lr of all groups: give it a list of 2 "
     "numbers, "
     "group 0's first, or remove lr",
     ZERO_E_CONFIG},
    {"[{\"match\": \"a.w\"}], \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": [1, 2, "
     "3]}}",
     "scheduler.params.warmup_min_lr: 3 numbers for 2 parameter groups: give one for each, group 0's first, "
     "or one "
     "number",
     ZERO_E_CONFIG},
};

static void mistakes_are_named(void) {
    static struct toy_result got;
    struct toy_setup s = toy_setup_default();
    s.ranks = 1;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        char extra[512];
        snprintf(extra, sizeof extra, ", \"param_groups\": %s", mistakes[i].groups);
        s.extra = extra;
        toy_train(&s, &got);
        CHECK_INT(got.status, mistakes[i].status);
        CHECK_STRING(got.error, mistakes[i].error);
    }
}

/* ---- checkpoints ---- */

enum { GROUPS = 3 };

struct reload {
    const char *directory;
    double set[GROUPS], got[GROUPS]; /* set, and saved; or loaded */
    char log[512];
};

static void keep_lines(void *user, zero_log_level level, const char *line) {
    struct reload *r = user;
    size_t at = strlen(r->log);
    if (strstr(line, "learning rate of group")) snprintf(r->log + at, sizeof r->log - at, "%s\n", line);
}

static void run_groups(const char *groups, struct reload *r) {
    static const struct plain_param model[] = {
        {"a", "a.w", 40, 0, NULL}, {"b", "b.w", 40, 0, NULL}, {"c", "c.w", 40, 0, NULL}};
    char json[512];
    struct plain p;
    zero_local *local = zero_local_create(1);
    zero_runtime runtime = {.struct_size = sizeof runtime, .local = local, .log = keep_lines, .log_user = r};
    zero_step_info info = {.struct_size = sizeof info};
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"param_groups\": %s}", groups);
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    CHECK_INT(plain_open(&p, engine, model, 3, NULL), ZERO_OK);
    for (int g = 0; g < GROUPS && r->set[0] > 0; g++)
        if (r->set[g] > 0) CHECK_INT(zero_engine_set_lr(engine, g, r->set[g]), ZERO_OK);
    if (r->set[0] > 0) {
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
        CHECK_INT(zero_engine_save(engine, r->directory), ZERO_OK);
    } else {
        CHECK_INT(zero_engine_load(engine, r->directory), ZERO_OK);
        CHECK_INT(plain_step(&p, 1, &info), ZERO_OK);
        memcpy(r->got, info.group_lr, sizeof r->got);
    }
    zero_engine_destroy(engine);
    zero_local_destroy(local);
}

/* A group is known by its parameters: it may move in the list, or be one of two groups that are now merged. */
static void reordered_groups_keep_their_lr(void) {
    char directory[1024];
    snprintf(directory, sizeof directory, "%s/groups",
             getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    static const struct {
        const char *groups;
        double lr[GROUPS];
        const char *says;
    } loads[] = {
        {"[{\"match\": \"a.*\", \"lr\": 0.5}, {\"match\": \"b.*\", \"lr\": 0.25}]",
         {0.01, 0.02, 0.03},
         "of group 2 goes on at the checkpoint's 0.03, not at 0.25"},
        {"[{\"match\": \"b.*\", \"lr\": 0.25}, {\"match\": \"a.*\", \"lr\": 0.5}]",
         {0.01, 0.03, 0.02},
         "of group 2 goes on at the checkpoint's 0.02, not at 0.5"},
        {"[{\"match\": \"c.*\"}, {\"match\": \"a.*\", \"lr\": 0.5}]",
         {0.03, 0.01, 0.02},
         "of group 0 goes on at the checkpoint's 0.03, not at 0.001"},
        {"[{\"match\": [\"a.*\", \"b.*\"], \"lr\": 0.5}]",
         {0.01, 0.5},
         "of group 1 is 0.5, as configured: in the checkpoint its parameters are in several groups, or in "
         "none"},
    };
    struct reload saved = {.directory = directory, .set = {0.01, 0.02, 0.03}};
    run_groups("[{\"match\": \"a.*\", \"lr\": 0.5}, {\"match\": \"b.*\", \"lr\": 0.25}]", &saved);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        struct reload loaded = {.directory = directory};
        run_groups(loads[i].groups, &loaded);
        for (int g = 0; g < GROUPS && loads[i].lr[g] > 0; g++) CHECK_DOUBLE(loaded.got[g], loads[i].lr[g], 0);
        CHECK_CONTAINS(loaded.log, loads[i].says);
    }
}

/* Of two ranks: the log tells of other nodes, which add in another order, and of no others. */
struct nodes {
    zero_local *local;
    const char *directory, *comm;
    bool saves, told;
};

static void notice_nodes(void *user, zero_log_level level, const char *line) {
    if (strstr(line, "was saved on nodes of 2 ranks, and these have 1: "))
        ((struct nodes *)user)->told = true;
}

static void go_on(struct nodes *n, uint32_t rank) {
    static const struct plain_param model[] = {{"a", "a.w", 40, 0, NULL}};
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .local = n->local,
                            .local_rank = rank,
                            .log = rank ? NULL : notice_nodes,
                            .log_user = n};
    char json[256];
    struct plain p;
    snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"comm\": {%s}}",
             n->comm);
    zero_engine *engine = zero_engine_init_with(json, &runtime);
    CHECK_INT(plain_open(&p, engine, model, 1, NULL), ZERO_OK);
    CHECK_INT(n->saves ? zero_engine_save(engine, n->directory) : zero_engine_load(engine, n->directory),
              ZERO_OK);
    zero_engine_destroy(engine);
}

static void *other_rank(void *nodes) {
    go_on(nodes, 1);
    return NULL;
}

static bool tells_of_nodes(const char *directory, const char *comm, bool saves) {
    struct nodes n = {zero_local_create(2), directory, comm, saves, false};
    pthread_t other;
    CHECK_INT(pthread_create(&other, NULL, other_rank, &n), 0);
    go_on(&n, 0);
    pthread_join(other, NULL);
    zero_local_destroy(n.local);
    return n.told;
}

static void other_nodes_are_told(void) {
    char directory[1024];
    snprintf(directory, sizeof directory, "%s/nodes", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK(!tells_of_nodes(directory, "\"node_ranks\": 4", true)); /* two of them are there */
    CHECK(!tells_of_nodes(directory, "", false));
    CHECK(tells_of_nodes(directory, "\"node_ranks\": 1", false));
}

int main(void) {
    patterns_choose();
    reordered_groups_keep_their_lr();
    other_nodes_are_told();
    the_head_alone();
    the_host_chooses();
    frozen_ones_cost_their_bytes("", 4);
    frozen_ones_cost_their_bytes(", \"bf16\": {\"enabled\": true}", 2);
    mistakes_are_named();
    return check_end();
}
