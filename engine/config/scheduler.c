#include "engine/config/scheduler.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/key.h"
#include "engine/config/value.h"
#include "kernels/optimizer.h"

#define PARAMS "scheduler.params."

enum {
    MIN_LR,
    MAX_LR,
    WARMUP_STEPS,
    WARMUP_TYPE,
    TOTAL_STEPS,
    MIN_RATIO,
    COS_RATIO,
    LAST_ITERATION,
    RANGE_LR,
    RANGE_SIZE,
    RANGE_RATE,
    RANGE_STAIRCASE,
    CYCLE_MIN_LR,
    CYCLE_MAX_LR,
    DECAY_LR,
    FIRST_SIZE,
    SECOND_SIZE,
    FIRST_STAIRS,
    SECOND_STAIRS,
    DECAY_SIZE,
    CYCLE_MOMENTUM,
    CYCLE_MIN_MOM,
    CYCLE_MAX_MOM,
    DECAY_MOM,
    GAMMA,
    STEP_SIZE,
    MILESTONES,
    FACTOR,
    TOTAL_ITERS,
    START_FACTOR,
    END_FACTOR,
    POWER,
    T_MAX,
    ETA_MIN,
    T_0,
    T_MULT,
    BASE_LR,
    PEAK_LR,
    SIZE_UP,
    SIZE_DOWN,
    MODE,
    BASE_MOM,
    MAX_MOM,
    TOTAL,
    PCT_START,
    STRATEGY,
    DIV,
    FINAL_DIV,
    THREE_PHASE,
    PARAM_COUNT
};

static const char *const paths[PARAM_COUNT] = {
    [MIN_LR] = PARAMS "warmup_min_lr",
    [MAX_LR] = PARAMS "warmup_max_lr",
    [WARMUP_STEPS] = PARAMS "warmup_num_steps",
    [WARMUP_TYPE] = PARAMS "warmup_type",
    [TOTAL_STEPS] = PARAMS "total_num_steps",
    [MIN_RATIO] = PARAMS "warmup_min_ratio",
    [COS_RATIO] = PARAMS "cos_min_ratio",
    [LAST_ITERATION] = PARAMS "last_batch_iteration",
    [RANGE_LR] = PARAMS "lr_range_test_min_lr",
    [RANGE_SIZE] = PARAMS "lr_range_test_step_size",
    [RANGE_RATE] = PARAMS "lr_range_test_step_rate",
    [RANGE_STAIRCASE] = PARAMS "lr_range_test_staircase",
    [CYCLE_MIN_LR] = PARAMS "cycle_min_lr",
    [CYCLE_MAX_LR] = PARAMS "cycle_max_lr",
    [DECAY_LR] = PARAMS "decay_lr_rate",
    [FIRST_SIZE] = PARAMS "cycle_first_step_size",
    [SECOND_SIZE] = PARAMS "cycle_second_step_size",
    [FIRST_STAIRS] = PARAMS "cycle_first_stair_count",
    [SECOND_STAIRS] = PARAMS "cycle_second_stair_count",
    [DECAY_SIZE] = PARAMS "decay_step_size",
    [CYCLE_MOMENTUM] = PARAMS "cycle_momentum",
    [CYCLE_MIN_MOM] = PARAMS "cycle_min_mom",
    [CYCLE_MAX_MOM] = PARAMS "cycle_max_mom",
    [DECAY_MOM] = PARAMS "decay_mom_rate",
    [GAMMA] = PARAMS "gamma",
    [STEP_SIZE] = PARAMS "step_size",
    [MILESTONES] = PARAMS "milestones",
    [FACTOR] = PARAMS "factor",
    [TOTAL_ITERS] = PARAMS "total_iters",
    [START_FACTOR] = PARAMS "start_factor",
    [END_FACTOR] = PARAMS "end_factor",
    [POWER] = PARAMS "power",
    [T_MAX] = PARAMS "T_max",
    [ETA_MIN] = PARAMS "eta_min",
    [T_0] = PARAMS "T_0",
    [T_MULT] = PARAMS "T_mult",
    [BASE_LR] = PARAMS "base_lr",
    [PEAK_LR] = PARAMS "max_lr",
    [SIZE_UP] = PARAMS "step_size_up",
    [SIZE_DOWN] = PARAMS "step_size_down",
    [MODE] = PARAMS "mode",
    [BASE_MOM] = PARAMS "base_momentum",
    [MAX_MOM] = PARAMS "max_momentum",
    [TOTAL] = PARAMS "total_steps",
    [PCT_START] = PARAMS "pct_start",
    [STRATEGY] = PARAMS "anneal_strategy",
    [DIV] = PARAMS "div_factor",
    [FINAL_DIV] = PARAMS "final_div_factor",
    [THREE_PHASE] = PARAMS "three_phase",
};

/* Markers in the place of a default: the parameter is required, or has no default. */
static const char required[] = "required", none[] = "none";

/* DeepSpeed 0.19's defaults; NULL: the schedule has no such parameter. */
#define WARMUP_DEFAULTS [WARMUP_STEPS] = "1000", [WARMUP_TYPE] = "\"log\"", [LAST_ITERATION] = "-1"

static const char *const defaults[LR_SCHEDULES][PARAM_COUNT] = {
    [LR_WARMUP] = {WARMUP_DEFAULTS, [MIN_LR] = "0", [MAX_LR] = none},
    [LR_WARMUP_DECAY] = {WARMUP_DEFAULTS, [MIN_LR] = "0", [MAX_LR] = "0.001", [TOTAL_STEPS] = required},
    [LR_WARMUP_COSINE] =
        {WARMUP_DEFAULTS, [TOTAL_STEPS] = required, [MIN_RATIO] = "0", [COS_RATIO] = "0.0001"},
    [LR_ONE_CYCLE] = {[CYCLE_MIN_LR] = required,
                      [CYCLE_MAX_LR] = required,
                      [DECAY_LR] = "0",
                      [FIRST_SIZE] = "2000",
                      [SECOND_SIZE] = none,
                      [FIRST_STAIRS] = "0",
                      [SECOND_STAIRS] = none,
                      [DECAY_SIZE] = "0",
                      [CYCLE_MOMENTUM] = "true",
                      [CYCLE_MIN_MOM] = "0.8",
                      [CYCLE_MAX_MOM] = "0.9",
                      [DECAY_MOM] = "0",
                      [LAST_ITERATION] = "-1"},
    [LR_RANGE_TEST] = {[RANGE_LR] = "0.001",
                       [RANGE_SIZE] = "2000",
                       [RANGE_RATE] = "1",
                       [RANGE_STAIRCASE] = "false",
                       [LAST_ITERATION] = "-1"},
    /* PyTorch 2's */
    [LR_TORCH_STEP] = {[STEP_SIZE] = required, [GAMMA] = "0.1"},
    [LR_TORCH_MULTI_STEP] = {[MILESTONES] = required, [GAMMA] = "0.1"},
    [LR_TORCH_CONSTANT] = {[FACTOR] = "0.3333333333333333", [TOTAL_ITERS] = "5"},
    [LR_TORCH_LINEAR] = {[START_FACTOR] = "0.3333333333333333", [END_FACTOR] = "1", [TOTAL_ITERS] = "5"},
    [LR_TORCH_EXPONENTIAL] = {[GAMMA] = required},
    [LR_TORCH_POLYNOMIAL] = {[TOTAL_ITERS] = "5", [POWER] = "1"},
    [LR_TORCH_COSINE] = {[T_MAX] = required, [ETA_MIN] = "0"},
    [LR_TORCH_RESTARTS] = {[T_0] = required, [T_MULT] = "1", [ETA_MIN] = "0"},
    [LR_TORCH_CYCLIC] = {[BASE_LR] = required,
                         [PEAK_LR] = required,
                         [SIZE_UP] = "2000",
                         [SIZE_DOWN] = none,
                         [MODE] = "\"triangular\"",
                         [GAMMA] = "1",
                         [CYCLE_MOMENTUM] = "true",
                         [BASE_MOM] = "0.8",
                         [MAX_MOM] = "0.9"},
    [LR_TORCH_ONE_CYCLE] = {[PEAK_LR] = required,
                            [TOTAL] = required,
                            [PCT_START] = "0.3",
                            [STRATEGY] = "\"cos\"",
                            [CYCLE_MOMENTUM] = "true",
                            [BASE_MOM] = "0.85",
                            [MAX_MOM] = "0.95",
                            [DIV] = "25",
                            [FINAL_DIV] = "10000",
                            [THREE_PHASE] = "false"},
};

/* "auto" is the number of steps that are trained. */
static const int lengths[] = {TOTAL_STEPS, TOTAL_ITERS, T_MAX, TOTAL};

static const char *leaf(const char *path) { return path + strlen(PARAMS); }

static zero_status no_such_param(enum lr_schedule_kind kind, int param, struct zero_error *error) {
    char has[400];
    size_t length = 0;
    for (int i = 0; i < PARAM_COUNT; i++)
        if (defaults[kind][i] && length < sizeof has)
            length += (size_t)snprintf(has + length, sizeof has - length, "%s%s", length ? ", " : "",
                                       leaf(paths[i]));
    if (kind == LR_NONE)
        return error_set(error, ZERO_E_CONFIG, "%s: there is no scheduler.type that would read it: add one",
                         paths[param]);
    return error_set(error, ZERO_E_CONFIG, "%s: %s has no such parameter: remove it; it has %s", paths[param],
                     lr_schedules[kind]->name, has);
}

static void leave_out(struct config *config, const struct config_key *key) {
    void *field = (char *)config + key->offset;
    if (key->type == KEY_NUMBERS)
        *(struct lr_numbers *)field = (struct lr_numbers){0};
    else if (key->type == KEY_REAL)
        *(double *)field = -1;
    else
        *(int64_t *)field = -1;
}

static zero_status resolve_param(struct config *config, enum lr_schedule_kind kind, int param,
                                 struct zero_error *error) {
    const struct config_key *key = config_key_find(paths[param]);
    const char *fallback = defaults[kind][param];
    enum config_source source = config_entry(config, paths[param])->source;
    bool given = source == CONFIG_FILE || source == CONFIG_COMMAND;
    if (given && !fallback) return no_such_param(kind, param, error);
    if (given || source == CONFIG_AUTO || !fallback) return ZERO_OK;
    if (fallback == required)
        return error_set(error, ZERO_E_CONFIG, "%s: it is missing, and %s needs it: write it", paths[param],
                         lr_schedules[kind]->name);
    if (fallback != none) return config_store_text(config, key, fallback, CONFIG_DEFAULT, error);
    leave_out(config, key);
    return ZERO_OK;
}

/* Records the values of "auto". For warmup_max_lr, "auto" is each group's own lr, as without a number. */
static zero_status resolve_auto(struct config *config, struct zero_error *error) {
    char text[32];
    struct config_entry *max = config_entry(config, paths[MAX_LR]);
    zero_status status = ZERO_OK;
    if (max->source == CONFIG_AUTO)
        status = config_entry_set(config, config_key_find(paths[MAX_LR]), CONFIG_AUTO,
                                  config_number_text(config->optimizer.lr, text), error);
    const char *length = config_schedule_length(config);
    if (status || !length) return status;
    const struct config_key *key = config_key_find(length);
    *(uint64_t *)(void *)((char *)config + key->offset) = config->planned_steps;
    if (!config->planned_steps) return ZERO_OK;
    snprintf(text, sizeof text, "%llu", (unsigned long long)config->planned_steps);
    return config_entry_set(config, key, CONFIG_AUTO, text, error);
}

const char *config_schedule_length(const struct config *config) {
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (config->schedule_kind != LR_NONE && defaults[config->schedule_kind][lengths[i]] &&
            config_entry((struct config *)config, paths[lengths[i]])->source == CONFIG_AUTO)
            return paths[lengths[i]];
    return NULL;
}

/* If an optimizer has no betas, PyTorch's schedules cycle its momentum instead; a schedule here sets only lr and betas, so this
 * is refused. DeepSpeed's OneCycle does not cycle the momentum, so it needs no refusal. */
static zero_status check_momentum(const struct config *config, enum lr_schedule_kind kind,
                                  struct zero_error *error) {
    const struct optimizer *row = optimizers[config->optimizer.type];
    if (!defaults[kind][BASE_MOM] || !config->schedule.cycle_momentum) return ZERO_OK;
    for (uint32_t g = 0; g < config->groups.count && row->defaults.beta1 > 0; g++)
        if (config->groups.item[g].optimizer) row = config->groups.item[g].optimizer;
    if (row->defaults.beta1 > 0) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: %s cycles beta1, also by default, and %s has no betas: set it to false",
                     paths[CYCLE_MOMENTUM], lr_schedules[kind]->name, row->title);
}

zero_status config_resolve_scheduler(struct config *config, struct zero_error *error) {
    bool there = config_entry(config, "scheduler.type")->source != CONFIG_DEFAULT;
    enum lr_schedule_kind kind = there ? (enum lr_schedule_kind)(config->scheduler + 1) : LR_NONE;
    zero_status status = ZERO_OK;
    config->schedule_kind = kind;
    for (int i = 0; i < PARAM_COUNT && status == ZERO_OK; i++) status = resolve_param(config, kind, i, error);
    if (status || kind == LR_NONE) return status;
    if (!defaults[kind][LAST_ITERATION]) config->schedule.last_batch_iteration = -1;
    status = check_momentum(config, kind, error);
    return status ? status : resolve_auto(config, error);
}
