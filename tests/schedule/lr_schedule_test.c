/* What each update takes, worked out by hand from the formulas of DeepSpeed 0.19's runtime/lr_schedules.py; with
 * i = -1, 0, 1, ... for last_batch_iteration. deepspeed_test compares with that file itself. */
#include <math.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/key.h"
#include "engine/config/value.h"
#include "tests/check.h"

enum { UPDATES_MAX = 10 };

static const double log3_of_4 = 0.79248125036057809; /* log 3 / log 4 */
static const double diagonal = 0.85355339059327376;  /* (1 + cos(pi / 4)) / 2 */

/* The optimizer's lr is 8, its betas are 0.5 and 0.75. */
static const struct sequence {
    const char *scheduler;
    uint32_t updates;
    double lr[UPDATES_MAX];
} sequences[] = {
    /* i / 4 while i < 4; before the first step(), warmup_min_lr: the first two updates take the same */
    {"'type': 'WarmupLR', 'params': {'warmup_max_lr': 4, 'warmup_num_steps': 4, 'warmup_type': 'linear'}",
     8,
     {0, 0, 1, 2, 3, 4, 4, 4}},
    {"'type': 'WarmupLR', 'params': {'warmup_min_lr': 1, 'warmup_max_lr': 5, 'warmup_num_steps': 4, "
     "'warmup_type': 'linear'}",
     7,
     {1, 1, 2, 3, 4, 5, 5}},
    /* log(i + 1) / log 4; without warmup_max_lr up to the optimizer's, and so with "auto" */
    {"'type': 'WarmupLR', 'params': {'warmup_num_steps': 4}", 6, {0, 0, 4, 8 * log3_of_4, 8, 8}},
    {"'type': 'WarmupLR', 'params': {'warmup_max_lr': 'auto', 'warmup_num_steps': 4}",
     6,
     {0, 0, 4, 8 * log3_of_4, 8, 8}},
    /* 1 step, and Hugging Face's "auto", count as 2 */
    {"'type': 'WarmupLR', 'params': {'warmup_num_steps': 1, 'warmup_type': 'linear'}", 4, {0, 0, 4, 8}},
    {"'type': 'WarmupLR', 'params': {'warmup_num_steps': 'auto', 'warmup_min_lr': 'auto', 'warmup_type': "
     "'linear'}",
     4,
     {0, 0, 4, 8}},
    /* then (6 - i) / (6 - 2), not below 0 */
    {"'type': 'WarmupDecayLR', 'params': {'total_num_steps': 6, 'warmup_max_lr': 8, 'warmup_num_steps': 2, "
     "'warmup_type': 'linear'}",
     9,
     {0, 0, 4, 8, 6, 4, 2, 0, 0}},
    /* "auto": the 6 steps that the test says are trained */
    {"'type': 'WarmupDecayLR', 'params': {'total_num_steps': 'auto', 'warmup_max_lr': 'auto', "
     "'warmup_num_steps': 2, 'warmup_type': 'linear'}",
     9,
     {0, 0, 4, 8, 6, 4, 2, 0, 0}},
    {"'type': 'WarmupDecayLR', 'params': {'total_num_steps': 6, 'warmup_num_steps': 2}",
     5,
     {0, 0, 1e-3, 1e-3, 75e-5}},
    /* null is "auto" there: the optimizer's lr, where a missing warmup_max_lr is 0.001 */
    {"'type': 'WarmupDecayLR', 'params': {'total_num_steps': 6, 'warmup_max_lr': null, 'warmup_num_steps': "
     "2, "
     "'warmup_type': 'linear'}",
     9,
     {0, 0, 4, 8, 6, 4, 2, 0, 0}},
    {"'type': 'WarmupLR', 'params': {'warmup_max_lr': null, 'warmup_num_steps': 4}",
     6,
     {0, 0, 4, 8 * log3_of_4, 8, 8}},
    /* begun at 3: the first update takes the optimizer's lr, for nothing has set it; the next i = 4 */
    {"'type': 'WarmupDecayLR', 'params': {'total_num_steps': 6, 'warmup_max_lr': 4, 'warmup_num_steps': 2, "
     "'warmup_type': 'linear', 'last_batch_iteration': 3}",
     4,
     {8, 2, 1, 0}},
    /* (i - 2 + 1) / (6 - 2) of half a cosine: 1/4, 1/2, 3/4, 1 and there it stays; the first takes 0, not the
     * smallest ratio */
    {"'type': 'WarmupCosineLR', 'params': {'total_num_steps': 6, 'warmup_num_steps': 2, 'warmup_type': "
     "'linear', "
     "'cos_min_ratio': 0}",
     8,
     {0, 0, 4, 8 * diagonal, 4, 8 * (1 - diagonal), 0, 0}},
    {"'type': 'WarmupCosineLR', 'params': {'total_num_steps': 4, 'warmup_num_steps': 2, 'warmup_type': "
     "'linear', "
     "'warmup_min_ratio': 0.5, 'cos_min_ratio': 0.5}",
     6,
     {0, 4, 6, 6, 4, 4}},
    {"'type': 'LRRangeTest', 'params': {'lr_range_test_min_lr': 1, 'lr_range_test_step_size': 2}",
     5,
     {1, 1.5, 2, 2.5, 3}},
    {"'type': 'LRRangeTest', 'params': {'lr_range_test_min_lr': 1, 'lr_range_test_step_size': 2, "
     "'lr_range_test_step_rate': 3, 'lr_range_test_staircase': true}",
     5,
     {1, 1, 4, 4, 7}},
    /* up in 2, down in 4: 1/2, 1, 3/4, 1/2, 1/4, 0 of the way; then no decay */
    {"'type': 'OneCycle', 'params': {'cycle_min_lr': 1, 'cycle_max_lr': 5, 'cycle_first_step_size': 2, "
     "'cycle_second_step_size': 4}",
     9,
     {1, 3, 5, 4, 3, 2, 1, 1, 1}},
    /* then 1 / (1 + 0.5 (i - 4 + 1)) from i = 4 on */
    {"'type': 'OneCycle', 'params': {'cycle_min_lr': 1, 'cycle_max_lr': 5, 'cycle_first_step_size': 2, "
     "'decay_step_size': 1, 'decay_lr_rate': 0.5}",
     7,
     {1, 3, 5, 3, 1, 1 / 1.5, 0.5}},
    /* one stair up, two down */
    {"'type': 'OneCycle', 'params': {'cycle_min_lr': 1, 'cycle_max_lr': 5, 'cycle_first_step_size': 2, "
     "'cycle_second_step_size': 4, 'cycle_first_stair_count': 1, 'cycle_second_stair_count': 2}",
     7,
     {1, 1, 5, 3, 3, 1, 1}},
    /* from 8 / 4 up in no step, where PyTorch divides by zero; down to 8 / 4 / 2 in 7 */
    {"'type': 'OneCycleLR', 'params': {'max_lr': 8, 'total_steps': 8, 'pct_start': 0.125, 'div_factor': 4, "
     "'final_div_factor': 2, 'anneal_strategy': 'linear'}",
     9,
     {8, 7, 6, 5, 4, 3, 2, 1, 1}},
    /* t / 2 up; then half a cosine over 4 steps to 2, which is a quarter of 8, and there it stays */
    {"'type': 'cosine_with_min_lr', 'params': {'num_warmup_steps': 2, 'num_training_steps': 6, 'min_lr': 2}",
     8,
     {0, 4, 8, 2 + 6 * diagonal, 5, 2 + 6 * (1 - diagonal), 2, 2}},
    /* "auto" is 6 */
    {"'type': 'cosine_with_min_lr', 'params': {'num_warmup_steps': 2, 'num_training_steps': 'auto', "
     "'min_lr_rate': 0.25}",
     8,
     {0, 4, 8, 2 + 6 * diagonal, 5, 2 + 6 * (1 - diagonal), 2, 2}},
    /* a quarter, and t / 2 of the rest up; 2 steps at 8; down in 2, by 1 - s, 1 - sqrt(s), (1 + cos(pi s)) / 2 with s = 0, 1/2 */
    {"'type': 'warmup_stable_decay', 'params': {'num_warmup_steps': 2, 'num_stable_steps': 2, "
     "'num_decay_steps': 2, "
     "'min_lr_ratio': 0.25, 'decay_type': 'linear'}",
     8,
     {2, 5, 8, 8, 8, 5, 2, 2}},
    {"'type': 'warmup_stable_decay', 'params': {'num_training_steps': 'auto', 'num_decay_steps': 4, "
     "'decay_type': '1-sqrt'}",
     8,
     {8, 8, 8, 4, 8 * (1 - M_SQRT1_2), 8 * (1 - 0.86602540378443865), 0, 0}},
    {"'type': 'warmup_stable_decay', 'params': {'num_training_steps': 5, 'num_decay_steps': 4}",
     6,
     {8, 8, 8 * diagonal, 4, 8 * (1 - diagonal), 0}},
    /* "auto" is 6 */
    {"'type': 'OneCycleLR', 'params': {'max_lr': 8, 'total_steps': 'auto', 'pct_start': 0.16666666666666666, "
     "'three_phase': true}",
     1,
     {8}},
};

static void read_text(const char *members, struct config *config) {
    char json[1024];
    struct zero_error error;
    error_clear(&error);
    snprintf(json, sizeof json,
             "{'train_batch_size': 1, 'optimizer': {'type': 'AdamW', 'params': {'lr': 8, 'betas': [0.5, "
             "0.75]}}, %s}",
             members);
    for (char *c = json; *c; c++)
        if (*c == '\'') *c = '"';
    CHECK_INT(config_read(json, config, &error), ZERO_OK);
    config->planned_steps = 6;
    if (!CHECK_INT(config_resolve(config, 1, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
}

static struct lr_setting at(const struct config *config, uint32_t group, uint64_t applied) {
    const struct config_optimizer *o = &config->optimizer;
    return lr_schedule_at(config->schedule_row, &config->schedule, group, applied,
                          (struct lr_setting){o->lr, o->betas[0], o->betas[1]});
}

static void follow(const struct sequence *s) {
    char members[600];
    struct config config;
    snprintf(members, sizeof members, "'scheduler': {%s}", s->scheduler);
    read_text(members, &config);
    for (uint32_t i = 0; i < s->updates; i++)
        if (!CHECK_DOUBLE(at(&config, 0, i).lr, s->lr[i], 1e-15))
            fprintf(stderr, "at update %u of %s\n", i, s->scheduler);
    config_free(&config);
}

/* The first takes the smallest, where the cycle begins with the largest. */
static void momentum_cycles_against_lr(void) {
    static const double beta1[] = {0.5, 0.6, 0.5, 0.55, 0.6, 0.65, 0.7, 0.7 * 1.5, 0.7 * 2};
    struct config config;
    read_text("'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 1, 'cycle_max_lr': 5, "
              "'cycle_first_step_size': 2, 'cycle_second_step_size': 4, 'cycle_min_mom': 0.5, "
              "'cycle_max_mom': 0.7, "
              "'decay_step_size': 2, 'decay_mom_rate': 1}}",
              &config);
    for (uint32_t i = 0; i < sizeof beta1 / sizeof *beta1; i++) {
        CHECK_DOUBLE(at(&config, 0, i).beta1, beta1[i], 1e-15);
        CHECK_DOUBLE(at(&config, 0, i).beta2, 0.99, 0);
    }
    config.schedule.cycle_momentum = false;
    CHECK_DOUBLE(at(&config, 0, 3).beta1, 0.5, 0);
    CHECK_DOUBLE(at(&config, 0, 3).beta2, 0.75, 0);
    config_free(&config);
}

static void groups_have_numbers_of_their_own(void) {
    struct config config;
    read_text(
        "'scheduler': {'type': 'WarmupLR', 'params': {'warmup_min_lr': [1, 2], 'warmup_max_lr': [3, 6], "
        "'warmup_num_steps': 2, 'warmup_type': 'linear'}}",
        &config);
    CHECK_DOUBLE(at(&config, 0, 0).lr, 1, 0);
    CHECK_DOUBLE(at(&config, 1, 0).lr, 2, 0);
    CHECK_DOUBLE(at(&config, 0, 2).lr, 2, 0);
    CHECK_DOUBLE(at(&config, 1, 2).lr, 4, 0);
    config_free(&config);
}

static void no_schedule_changes_nothing(void) {
    struct config config;
    read_text("'seed': 1", &config);
    CHECK(!config.schedule_row);
    CHECK_DOUBLE(at(&config, 0, 5).lr, 8, 0);
    config_free(&config);
}

/* The keys that are not given have the defaults of DeepSpeed 0.19, PyTorch 2 and Transformers 5. The others are given as 9. */
static const struct defaults {
    const char *type, *given, *values;
} defaults[] = {
    {"WarmupLR", "", "warmup_min_lr 0, warmup_num_steps 1000, warmup_type \"log\", last_batch_iteration -1"},
    {"WarmupDecayLR", "'total_num_steps': 9",
     "warmup_min_lr 0, warmup_max_lr 0.001, warmup_num_steps 1000, warmup_type \"log\", total_num_steps 9, "
     "last_batch_iteration -1"},
    {"WarmupCosineLR", "'total_num_steps': 9",
     "warmup_num_steps 1000, warmup_type \"log\", total_num_steps 9, warmup_min_ratio 0, "
     "cos_min_ratio 0.0001, last_batch_iteration -1"},
    {"OneCycle", "'cycle_min_lr': 9, 'cycle_max_lr': 9",
     "last_batch_iteration -1, cycle_min_lr 9, cycle_max_lr 9, decay_lr_rate 0, "
     "cycle_first_step_size 2000, cycle_first_stair_count 0, decay_step_size 0, cycle_momentum true, "
     "cycle_min_mom 0.8, cycle_max_mom 0.9, decay_mom_rate 0"},
    {"LRRangeTest", "",
     "last_batch_iteration -1, lr_range_test_min_lr 0.001, lr_range_test_step_size 2000, "
     "lr_range_test_step_rate 1, lr_range_test_staircase false"},
    {"StepLR", "'step_size': 9", "step_size 9, gamma 0.1"},
    {"MultiStepLR", "'milestones': [9]", "gamma 0.1, milestones [ 9 ]"},
    {"ConstantLR", "", "factor 0.3333333333333333, total_iters 5"},
    {"LinearLR", "", "total_iters 5, start_factor 0.3333333333333333, end_factor 1"},
    {"ExponentialLR", "'gamma': 9", "gamma 9"},
    {"PolynomialLR", "", "total_iters 5, power 1"},
    {"CosineAnnealingLR", "'T_max': 9", "T_max 9, eta_min 0"},
    {"CosineAnnealingWarmRestarts", "'T_0': 9", "eta_min 0, T_0 9, T_mult 1"},
    {"CyclicLR", "'base_lr': 9, 'max_lr': 9",
     "cycle_momentum true, gamma 1, base_lr 9, max_lr 9, step_size_up 2000, mode \"triangular\", "
     "base_momentum 0.8, max_momentum 0.9"},
    {"OneCycleLR", "'max_lr': 9, 'total_steps': 9",
     "cycle_momentum true, max_lr 9, base_momentum 0.85, max_momentum 0.95, total_steps 9, "
     "pct_start 0.3, anneal_strategy \"cos\", div_factor 25, final_div_factor 10000, three_phase false"},
    {"cosine_with_min_lr", "'num_training_steps': 9, 'min_lr': 9",
     "num_warmup_steps 0, num_training_steps 9, min_lr 9"},
    {"warmup_stable_decay", "'num_decay_steps': 9, 'num_stable_steps': 9",
     "num_warmup_steps 0, num_decay_steps 9, num_stable_steps 9, min_lr_ratio 0, decay_type \"cosine\""},
};

static void take_defaults(const struct defaults *d) {
    static const char block[] = "scheduler.params.";
    char members[300], values[600] = "";
    struct config config;
    snprintf(members, sizeof members, "'scheduler': {'type': '%s', 'params': {%s}}", d->type, d->given);
    read_text(members, &config);
    for (uint32_t i = 0; i < config_key_count(); i++) {
        const char *path = config_key_at(i)->path, *text = config_entry(&config, path)->text;
        if (strncmp(path, block, sizeof block - 1) != 0 || !text) continue;
        if (!lr_schedule_key(config.schedule_row, path + sizeof block - 1)) continue;
        size_t length = strlen(values);
        snprintf(values + length, sizeof values - length, "%s%s %s", length ? ", " : "",
                 path + sizeof block - 1, text);
    }
    CHECK_STRING(values, d->values);
    config_free(&config);
}

static void every_schedule_has_its_defaults(void) {
    size_t count = 0;
    for (; count < sizeof defaults / sizeof *defaults && lr_schedules[count]; count++) {
        CHECK_STRING(defaults[count].type, lr_schedules[count]->name);
        take_defaults(&defaults[count]);
    }
    CHECK(!lr_schedules[count]);
}

int main(void) {
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) follow(&sequences[i]);
    every_schedule_has_its_defaults();
    momentum_cycles_against_lr();
    groups_have_numbers_of_their_own();
    no_schedule_changes_nothing();
    return check_end();
}
