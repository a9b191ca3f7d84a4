/* The settings of a step, without an engine: as given, by a schedule or by the program's function; what an update can use; where
 * a schedule stands. */
#include <math.h>

#include "engine/state/step_settings.h"
#include "tests/check.h"

static struct config config;
static struct training training;
static struct zero_error error;
static char last_line[256];

static void keep_line(void *user, zero_log_level level, const char *line) {
    if (level == ZERO_LOG_WARN) snprintf(last_line, sizeof last_line, "%s", line);
}

/* `more`: members of the configuration, each after a comma. Two groups: the second has an lr of 0.5. */
static zero_status begin(const char *more) {
    static struct log log = {.write = keep_line};
    char json[1024];
    error_clear(&error);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"param_groups\": [{\"match\": \"*\", \"lr\": 0.5}]%s}",
             more);
    CHECK_INT(config_read(json, &config, &error), ZERO_OK);
    CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    return training_open(&training, &config, &log, 0, 1, &error);
}

static void end(void) { config_free(&config); }

#define ADAMW                                                                                                \
    ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.25, \"betas\": [0.75, 0.875], "           \
    "\"weight_decay\": 0.5}}"
#define SCHEDULER(type, params) ", \"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"
#define WARMUP                                                                                               \
    SCHEDULER("WarmupLR", "\"warmup_max_lr\": [1, 2], \"warmup_num_steps\": 4, \"warmup_type\": \"linear\"")

static void check_lr(double lr0, double lr1) {
    struct lr_setting setting[GROUP_MAX];
    settings_next(&training, setting);
    CHECK_DOUBLE(setting[0].lr, lr0, 0);
    CHECK_DOUBLE(setting[1].lr, lr1, 0);
    CHECK_DOUBLE(setting[1].beta1, 0.75, 0);
}

static void doubles(void *user, uint64_t step, int group, zero_setting *setting) {
    setting->lr *= 2 + (double)step + group;
}

static void a_step_takes_what_is_given_or_scheduled(void) {
    CHECK_INT(begin(ADAMW), ZERO_OK);
    check_lr(0.25, 0.5);
    training.steps = 3;
    check_lr(0.25, 0.5);
    training.schedule_fn = doubles;
    check_lr(0.25 * 5, 0.5 * 6);
    end();
    CHECK_INT(begin(ADAMW WARMUP), ZERO_OK);
    training.steps = 3;
    check_lr(0.5, 1);
    training.steps = 9;
    check_lr(1, 2);
    training.schedule_fn = doubles; /* replaces the schedule */
    check_lr(0.25 * 11, 0.5 * 12);
    end();
}

static void check_usable(double lr, double beta1, double beta2, bool usable) {
    struct lr_setting setting[GROUP_MAX] = {{0, 0, 0}, {lr, beta1, beta2}};
    error_clear(&error);
    CHECK_INT(settings_check(&training, setting, &error), usable ? ZERO_OK : ZERO_E_ARGUMENT);
    if (!usable) CHECK_CONTAINS(error.message, "step 1: the schedule gives group 1 lr");
}

static void what_an_update_cannot_use_is_refused(void) {
    CHECK_INT(begin(ADAMW), ZERO_OK);
    check_usable(0.5, 0, 0.5, true);
    check_usable(-0.5, 0, 0, false);
    check_usable(NAN, 0, 0, false);
    check_usable(INFINITY, 0, 0, false);
    check_usable(1e39, 0, 0, false); /* infinite in fp32 */
    check_usable(0.5, 1, 0, false);
    check_usable(0.5, 0, -0.5, false);
    check_usable(0.5, NAN, 0, false);
    end();
    CHECK_INT(begin(", \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.25}}"), ZERO_OK);
    check_usable(0.5, 7, NAN, true); /* SGD has no betas */
    check_usable(NAN, 0, 0, false);
    end();
}

/* Each group has the scalars of its setting, with weight decay and without. */
static void scalars_are_the_optimizers(void) {
    CHECK_INT(begin(ADAMW), ZERO_OK);
    struct lr_setting setting[GROUP_MAX] = {{0.125, 0.5, 0.75}, {2, 0.25, 0.5}};
    struct optimizer_scalars scalars[SCALARS_MAX] = {0}, expected = {0};
    training.steps = 5;
    settings_scalars(&training, setting, training.steps, scalars);
    for (uint32_t g = 0; g < 2; g++)
        for (int no_decay = 0; no_decay < 2; no_decay++) {
            struct optimizer_params p = training.groups.params[g];
            p.lr = setting[g].lr, p.beta1 = setting[g].beta1, p.beta2 = setting[g].beta2;
            if (no_decay) p.weight_decay = 0;
            optimizer_prepare(training.optimizer, &p, 5, &expected);
            CHECK_BYTES(&scalars[model_scalars(g, no_decay)], &expected, sizeof expected);
        }
    end();
}

static void a_schedule_goes_on_where_it_stood(void) {
    CHECK_INT(begin(ADAMW), ZERO_OK);
    CHECK_INT(settings_iteration(&training), -1);
    end();
    CHECK_INT(begin(ADAMW WARMUP), ZERO_OK);
    training.steps = 2;
    CHECK_INT(settings_iteration(&training), 1);
    settings_resume(&training, 2); /* the checkpoint of a run that had come one step further */
    CHECK_INT(settings_iteration(&training), 2);
    check_lr(0.5, 1);
    settings_restart(&training);
    CHECK_INT(settings_iteration(&training), 1);
    end();
}

static void check_set_lr(int group, double lr, zero_status status, const char *message) {
    error_clear(&error);
    CHECK_INT(settings_set_lr(&training, group, lr, &error), status);
    CHECK_CONTAINS(error.message, message);
}

static void an_lr_is_set_where_nothing_else_sets_it(void) {
    CHECK_INT(begin(ADAMW), ZERO_OK);
    check_set_lr(1, 4, ZERO_OK, "");
    check_lr(0.25, 4);
    check_set_lr(1, -4, ZERO_E_ARGUMENT, "lr -4 is not a finite number >= 0");
    check_set_lr(1, NAN, ZERO_E_ARGUMENT, "not a finite number");
    check_set_lr(2, 4, ZERO_E_ARGUMENT, "there is no group 2; there are 2, from 0");
    check_set_lr(-1, 4, ZERO_E_ARGUMENT, "there is no group -1");
    check_lr(0.25, 4);
    training.schedule_fn = doubles;
    check_set_lr(1, 8, ZERO_E_ORDER, "the function of zero_engine_set_schedule sets it");
    end();
    CHECK_INT(begin(ADAMW WARMUP), ZERO_OK);
    check_set_lr(1, 8, ZERO_E_ORDER, "WarmupLR sets it: remove the scheduler block");
    end();
}

static void betas_are_set_where_nothing_else_sets_them(void) {
    struct lr_setting found[GROUP_MAX];
    CHECK_INT(begin(ADAMW), ZERO_OK);
    settings_next(&training, found);
    double before = found[0].beta1;
    CHECK_INT(settings_set_betas(&training, 1, 0.5, 0.75, &error), ZERO_OK);
    CHECK_INT(settings_set_betas(&training, 1, 0.5, 1, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "betas 0.5 and 1 must be at least 0 and below 1");
    error_clear(&error);
    CHECK_INT(settings_set_betas(&training, 2, 0.5, 0.5, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "zero_engine_set_betas: there is no group 2");
    settings_next(&training, found);
    CHECK_DOUBLE(found[0].beta1, before, 0);
    CHECK_DOUBLE(found[1].beta1, 0.5, 0);
    CHECK_DOUBLE(found[1].beta2, 0.75, 0);
    end();
    CHECK_INT(begin(ADAMW WARMUP), ZERO_OK);
    CHECK_INT(settings_set_betas(&training, 1, 0.5, 0.5, &error), ZERO_E_ORDER);
    end();
}

static void opening_finds_what_a_schedule_lacks(void) {
    CHECK_INT(begin(ADAMW SCHEDULER("WarmupDecayLR", "\"total_num_steps\": \"auto\"")), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "zero_runtime.total_steps");
    end();
    CHECK_STRING(last_line, "");
    CHECK_INT(begin(", \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.25}}" SCHEDULER(
                  "OneCycle", "\"cycle_min_lr\": 0.5, \"cycle_max_lr\": 1")),
              ZERO_OK);
    CHECK_CONTAINS(last_line, "scheduler.params.cycle_momentum: SGD has no betas");
    end();
}

/* Where the number of steps is known, a setting of a later step that no optimizer takes is found at the start. */
static void a_schedule_that_leaves_its_range_is_found_at_the_start(void) {
#define ONE_CYCLE(rates)                                                                                     \
    SCHEDULER("OneCycle", "\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-3, \"cycle_first_step_size\": 5, "   \
                          "\"decay_step_size\": 5" rates)
    static const struct {
        const char *schedule, *says;
    } cases[] = {
        {ONE_CYCLE(", \"decay_mom_rate\": 0.1"), "step 17: OneCycle gives group 0 lr"},
        {ONE_CYCLE(", \"decay_mom_rate\": -0.5"), "step 22: OneCycle gives group 0 lr"},
        {ONE_CYCLE(", \"cycle_max_mom\": 1.5"), "step 2: OneCycle gives group 0 lr"},
        {SCHEDULER("ExponentialLR", "\"gamma\": 1e30"), "lr 1e+57"}, /* more than fp32 holds */
        {SCHEDULER("LRRangeTest", "\"lr_range_test_step_size\": 1, \"lr_range_test_step_rate\": 1e30, "
                                  "\"lr_range_test_min_lr\": 1e10"),
         "LRRangeTest gives group 0 lr"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(begin(cases[i].schedule), ZERO_OK);
        config.planned_steps = 1;
        error_clear(&error);
        CHECK_INT(settings_open(&training, &error), ZERO_OK);
        config.planned_steps = 40;
        CHECK_INT(settings_open(&training, &error), ZERO_E_ARGUMENT);
        CHECK_CONTAINS(error.message, cases[i].says);
        CHECK_INT(training.steps, 0);
        config.planned_steps = UINT64_C(1) << 40; /* found soon */
        CHECK_INT(settings_open(&training, &error), ZERO_E_ARGUMENT);
        end();
    }
}

static void steps_that_train_nothing_are_said(void) {
    static const struct {
        const char *schedule, *says;
    } cases[] = {
        {SCHEDULER("WarmupDecayLR", "\"total_num_steps\": 9, \"warmup_num_steps\": 3"),
         "WarmupDecayLR: the learning rate is 0 from step 11 of 40 on"},
        {SCHEDULER("WarmupDecayLR", "\"total_num_steps\": 3, \"warmup_num_steps\": 9"),
         "from step 11 of 40 on"},
        {SCHEDULER("warmup_stable_decay", "\"num_stable_steps\": 2, \"num_decay_steps\": 4"),
         "from step 7 of 40"},
        {SCHEDULER("WarmupDecayLR", "\"total_num_steps\": \"auto\", \"warmup_num_steps\": 3"), ""},
        {SCHEDULER("CosineAnnealingLR", "\"T_max\": 39"), ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(cases[i].schedule);
        *last_line = 0, config.planned_steps = 40;
        CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
        CHECK_INT(settings_open(&training, &error), ZERO_OK);
        CHECK_CONTAINS(last_line, cases[i].says);
        if (!*cases[i].says) CHECK_STRING(last_line, "");
        end();
    }
}

int main(void) {
    a_step_takes_what_is_given_or_scheduled();
    what_an_update_cannot_use_is_refused();
    scalars_are_the_optimizers();
    a_schedule_goes_on_where_it_stood();
    an_lr_is_set_where_nothing_else_sets_it();
    betas_are_set_where_nothing_else_sets_them();
    opening_finds_what_a_schedule_lacks();
    a_schedule_that_leaves_its_range_is_found_at_the_start();
    steps_that_train_nothing_are_said();
    return check_end();
}
