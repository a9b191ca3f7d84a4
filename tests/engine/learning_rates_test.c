/* Schedules in training: the oracle's bits at all stages and tiers with the lr of each update worked out here, skipped
 * steps that do not advance, the host's own function, going on from a checkpoint. */
#include <math.h>
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

#define SCHEDULER(type, params) ", \"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"
#define ALL_NVME                                                                                             \
    "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, "                                   \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"

static void check_bits(struct toy_setup s, const char *what) {
    static struct toy_result got, expected;
    toy_oracle(&s, &expected);
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        if (s.stage == 3) s.tiers = ALL_NVME;
        toy_train(&s, &got);
        if (!CHECK_STRING(got.error, "") || !CHECK_INT(got.skipped, expected.skipped) ||
            !CHECK_BYTES(got.weights, expected.weights, sizeof got.weights))
            fprintf(stderr, "in %s at stage %u\n", what, s.stage);
    }
}

/* 0, 0, then thirds of 0.03 up to it, of biases from 0.01 to 0.04. */
static void linear(uint32_t param, uint32_t applied, struct optimizer_params *p) {
    double ramp = applied < 2 ? 0 : applied > 4 ? 1 : (applied - 1) / 3.0;
    bool bias = strstr(toy_params[param].name, ".b") != NULL;
    p->lr = bias ? 0.01 + (0.04 - 0.01) * ramp : 0.0 + (0.03 - 0.0) * ramp;
}

/* Up in 4, down in 4, and of the momentum down and up. */
static void cycle(uint32_t param, uint32_t applied, struct optimizer_params *p) {
    double x = applied / 8.0, up = applied == 0  ? 0
                                   : applied > 8 ? 0
                                   : x <= 0.5    ? x / 0.5
                                                 : (x - 1) / (0.5 - 1);
    p->lr = 0.001 + (0.02 - 0.001) * up;
    p->beta1 = applied == 0 ? 0.75 : 0.95 - (0.95 - 0.75) * up;
    p->beta2 = 0.99;
}

static void schedules_train_as_the_oracle(void) {
    struct toy_setup s = toy_setup_default();
    s.extra = ", \"param_groups\": [{\"match\": \"*.b\"}]" SCHEDULER(
        "WarmupLR", "\"warmup_min_lr\": [0, 0.01], \"warmup_max_lr\": [0.03, 0.04], \"warmup_num_steps\": 3, "
                    "\"warmup_type\": \"linear\"");
    s.update = linear;
    check_bits(s, "WarmupLR");
    s.nan_step = 2; /* the lr waits for the next */
    check_bits(s, "WarmupLR with a step that is skipped");
    s.nan_step = -1;
    s.extra = SCHEDULER("OneCycle",
                        "\"cycle_min_lr\": 0.001, \"cycle_max_lr\": 0.02, \"cycle_first_step_size\": 4, "
                        "\"cycle_min_mom\": 0.75, \"cycle_max_mom\": 0.95");
    s.update = cycle;
    check_bits(s, "OneCycle");
}

/* ---- the host's own ---- */

static void halves(void *user, uint64_t step, int group, zero_setting *setting) {
    setting->lr = (group ? 0.01 : 0.02) / (double)(1 + step);
    setting->beta1 = 0.5;
}

static void halving(uint32_t param, uint32_t applied, struct optimizer_params *p) {
    bool bias = strstr(toy_params[param].name, ".b") != NULL;
    p->lr = (bias ? 0.01 : 0.02) / (double)(1 + applied);
    p->beta1 = 0.5;
}

static void set_halves(zero_engine *engine) {
    CHECK_INT(zero_engine_set_schedule(engine, halves, NULL), ZERO_OK);
    CHECK_INT(zero_engine_set_lr(engine, 0, 1), ZERO_E_ORDER);
    CHECK_CONTAINS(zero_last_error(), "the function of zero_engine_set_schedule sets it");
}

static void gives_nan(void *user, uint64_t step, int group, zero_setting *setting) {
    if (step == 3 && group == 1) setting->lr = NAN;
}

static void set_nan(zero_engine *engine) { zero_engine_set_schedule(engine, gives_nan, NULL); }

static void the_hosts_own(void) {
    static struct toy_result got;
    struct toy_setup s = toy_setup_default();
    s.extra = ", \"param_groups\": [{\"match\": \"*.b\"}]" SCHEDULER("WarmupLR", "\"warmup_min_lr\": 0.5");
    s.begin = set_halves;
    s.update = halving;
    check_bits(s, "the host's own");
    s.begin = set_nan;
    toy_train(&s, &got);
    CHECK_INT(got.status, ZERO_E_ARGUMENT);
    CHECK_STRING(got.error, "step 4: the schedule gives group 1 lr nan, beta1 0.9 and beta2 0.95: lr must be "
                            "finite in fp32 and at "
                            "least 0, betas at least 0 and below 1");
}

/* ---- going on from a checkpoint ---- */

static const struct plain_param model[] = {{"a", "a", 3000, 0, NULL}, {"b", "b", 500, ZERO_NO_DECAY, NULL}};

struct part_of_run {
    const char *dir;
    int load, steps, save;
    char hash[33];
    double last_lr;
};

static void train_part(zero_engine *engine, uint32_t rank, void *user) {
    struct part_of_run *part = user;
    struct plain p;
    char hash[33];
    zero_step_info info = {.struct_size = sizeof info};
    if (!CHECK(engine != NULL)) return;
    CHECK_INT(plain_declare(&p, engine, model, 2), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(part->load ? zero_engine_load(engine, part->dir) : zero_engine_fill(engine, toy_fill, NULL),
              ZERO_OK);
    for (int i = 0; i < part->steps; i++) CHECK_INT(plain_step(&p, 1, &info), ZERO_OK);
    if (part->save) CHECK_INT(zero_engine_save(engine, part->dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (rank == 0) memcpy(part->hash, hash, sizeof hash), part->last_lr = info.lr;
}

static void run_part(uint32_t ranks, uint32_t stage, const char *begins, struct part_of_run *part) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": "
             "%u}" SCHEDULER("WarmupDecayLR", "\"total_num_steps\": 20, \"warmup_num_steps\": 4%s") "}",
             stage, begins);
    ranks_run(ranks, json, train_part, part);
}

/* Where the schedule stands is the checkpoint's: the file that goes on does not say that it began at 2. */
static void a_checkpoint_goes_on(void) {
    static const char begins[] = ", \"last_batch_iteration\": 2";
    char dir[600];
    snprintf(dir, sizeof dir, "%s/schedule", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    struct part_of_run whole = {.dir = dir, .steps = 7}, first = {.dir = dir, .steps = 4, .save = 1},
                       second = {.dir = dir, .load = 1, .steps = 3};
    run_part(2, 1, begins, &whole);
    run_part(2, 1, begins, &first);
    run_part(2, 3, "", &second);
    CHECK_STRING(second.hash, whole.hash);
    CHECK_DOUBLE(second.last_lr, whole.last_lr, 0);
    CHECK_DOUBLE(whole.last_lr, 0.001 * (20 - (2 + 6)) / (20 - 4), 1e-15); /* the seventh update's */
}

/* ---- zero_engine_set_params ---- */

struct numbers {
    zero_optimizer_params params[2]; /* of the second and of all later steps; struct_size 0: none are set */
    uint32_t differs;                /* this rank sets another weight_decay; 0: none */
    char hash[33];
};

static void train_with(zero_engine *engine, uint32_t rank, void *user) {
    struct numbers *numbers = user;
    struct plain p;
    char hash[33];
    if (!CHECK(engine != NULL) || !CHECK_INT(plain_open(&p, engine, model, 2, NULL), ZERO_OK)) return;
    for (int step = 0; step < 3; step++) {
        zero_optimizer_params params = numbers->params[step > 0];
        if (numbers->differs && rank == numbers->differs) params.weight_decay = 1;
        zero_optimizer_params now = {.struct_size = sizeof now};
        if (params.struct_size) {
            CHECK_INT(zero_engine_set_params(engine, 0, &params), ZERO_OK);
            CHECK_INT(zero_engine_params(engine, 0, &now), ZERO_OK);
            CHECK_BYTES(&now, &params, sizeof now);
        }
        zero_status status = plain_step(&p, 1, NULL);
        if (numbers->differs) {
            CHECK(status == ZERO_E_DIVERGED || status == ZERO_E_PEER);
            CHECK_CONTAINS(zero_last_error(), "rank 1 has another eps, weight_decay, momentum or dampening");
            return;
        }
        CHECK_INT(status, ZERO_OK);
    }
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (rank == 0) memcpy(numbers->hash, hash, sizeof hash);
}

static void run_with(uint32_t stage, const char *optimizer, struct numbers *numbers) {
    char json[512];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": %u}, "
        "\"optimizer\": %s}",
        stage, optimizer);
    ranks_run(2, json, train_with, numbers);
}

/* The numbers that a program sets are those that a configuration has; and they change between steps. */
static void numbers_of_a_group(void) {
    zero_optimizer_params params = {.struct_size = sizeof params, .lr = 0.1, .beta1 = 0.75, .beta2 = 0.5};
    params.eps = 1e-3, params.weight_decay = 0.5;
    static const char first[] = "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.1, \"betas\": [0.75, 0.5], "
                                "\"eps\": 1e-3, \"weight_decay\": 0.5}}",
                      other[] = "{\"type\": \"AdamW\", \"params\": {\"lr\": 1}}";
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct numbers configured = {.differs = 0}, set = {.params = {params, params}}, later = set,
                       apart = set;
        later.params[1].weight_decay = 0, apart.differs = 1;
        run_with(stage, first, &configured);
        run_with(stage, other, &set);
        run_with(stage, other, &later);
        CHECK_STRING(set.hash, configured.hash);
        CHECK(strcmp(later.hash, set.hash) != 0);
        run_with(stage, other, &apart);
    }
}

/* Without momentum there is no memory for it. */
static void set_momentum(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    (void)rank, (void)user;
    zero_optimizer_params params = {.struct_size = sizeof params, .lr = 0.1, .momentum = 0.5};
    if (!CHECK(engine != NULL) || !CHECK_INT(plain_open(&p, engine, model, 2, NULL), ZERO_OK)) return;
    CHECK_INT(zero_engine_set_params(engine, 0, &params), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "needs a state that the plan lacks, which began without momentum");
    params.momentum = 0;
    CHECK_INT(zero_engine_set_params(engine, 0, &params), ZERO_OK);
    params.lr = -1;
    CHECK_INT(zero_engine_set_params(engine, 0, &params), ZERO_E_ARGUMENT);
}

/* ---- messages ---- */

static void auto_needs_the_number_of_steps(void) {
    static struct toy_result got;
    struct toy_setup s = toy_setup_default();
    s.ranks = 1;
    s.extra = SCHEDULER("WarmupDecayLR", "\"total_num_steps\": \"auto\"");
    toy_train(&s, &got);
    CHECK_STRING(got.error,
                 "scheduler.params.total_num_steps: \"auto\" is the number of steps that the program trains, "
                 "and it gave none (zero_runtime.total_steps): write a number");
    s.extra = SCHEDULER("WarmupDecayLR", "\"warmup_num_steps\": 3");
    toy_train(&s, &got);
    CHECK_STRING(got.error,
                 "scheduler.params.total_num_steps: it is missing, and WarmupDecayLR needs it: write it");
    s.extra = SCHEDULER("WarmupLR", "\"total_num_steps\": 3");
    toy_train(&s, &got);
    CHECK_STRING(got.error,
                 "scheduler.params.total_num_steps: WarmupLR has no such parameter: remove it; it has "
                 "warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration");
    s.extra = ", \"scheduler\": {\"params\": {\"total_num_steps\": 3}}";
    toy_train(&s, &got);
    CHECK_STRING(got.error,
                 "scheduler.params.total_num_steps: there is no scheduler.type that would read it: add one");
}

int main(void) {
    schedules_train_as_the_oracle();
    the_hosts_own();
    a_checkpoint_goes_on();
    numbers_of_a_group();
    ranks_run(1, "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}}",
              set_momentum, NULL);
    auto_needs_the_number_of_steps();
    return check_end();
}
