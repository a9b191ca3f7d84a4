/* Learning-rate schedules: the learning rate and the betas of each update, as a pure function of the number of earlier
 * updates. Names, parameters, defaults and values are those of DeepSpeed 0.19 (runtime/lr_schedules.py), equal to the
 * last bit of the doubles, or those of PyTorch (torch.c) or Transformers (transformers.c). Each schedule has one row of the table. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LR_GROUPS_MAX = 8 }; /* parameter groups */

/* One number for all parameter groups, or one number for each group. */
struct lr_numbers {
    double value[LR_GROUPS_MAX];
    uint32_t count; /* 0: not given */
    bool each;
};

enum lr_anneal { LR_ANNEAL_COS, LR_ANNEAL_LINEAR };
enum lr_cyclic { LR_TRIANGULAR, LR_TRIANGULAR2, LR_EXP_RANGE };
enum lr_decay { LR_DECAY_LINEAR, LR_DECAY_COSINE, LR_DECAY_SQRT };
enum lr_warmup { LR_WARMUP_LOG, LR_WARMUP_LINEAR };

/* The parameters of all schedules; each schedule reads its own. */
struct lr_schedule_params {
    int64_t last_batch_iteration; /* the iteration at which the schedule begins; -1: at its beginning */

    struct lr_numbers warmup_min_lr, warmup_max_lr;
    uint64_t warmup_num_steps, total_num_steps;
    int warmup_type; /* enum lr_warmup */
    double warmup_min_ratio, cos_min_ratio;

    struct lr_numbers range_min_lr;
    uint64_t range_step_size;
    double range_step_rate;
    bool range_staircase;

    struct lr_numbers cycle_min_lr, cycle_max_lr, cycle_min_mom, cycle_max_mom;
    double cycle_first_step_size, cycle_second_step_size;      /* second < 0: as the first */
    int64_t cycle_first_stair_count, cycle_second_stair_count; /* second < 0: as the first */
    double decay_step_size, decay_lr_rate, decay_mom_rate;
    bool cycle_momentum;

    /* PyTorch's */
    double gamma, factor, start_factor, end_factor, power, eta_min, pct_start, div_factor, final_div_factor;
    uint64_t step_size, total_iters, t_max, t_0, t_mult, total_steps, step_size_up;
    int64_t step_size_down; /* below 0: as up */
    struct lr_numbers milestones /* steps, not groups */, base_lr, max_lr, base_momentum, max_momentum;
    int anneal_strategy, cyclic_mode; /* enum lr_anneal, enum lr_cyclic */
    bool three_phase;

    /* Transformers' */
    uint64_t num_warmup_steps, num_training_steps, num_decay_steps;
    int64_t num_stable_steps;                 /* below 0: what num_training_steps leaves */
    double min_lr, min_lr_rate, min_lr_ratio; /* min_lr_rate: set from min_lr */
    int decay_type;                           /* enum lr_decay */
};

/* The scheduled values of one group's update; optimizers without betas ignore the betas. */
struct lr_setting {
    double lr, beta1, beta2;
};

/* A key below scheduler.params of the configuration, and its default as JSON. NULL: it must be given. "": it has no default. */
struct lr_key {
    const char *name, *fallback;
};

enum { LR_KEYS_MAX = 13 };

struct lr_schedule {
    const char *name; /* DeepSpeed's, PyTorch's or Transformers' name */
    struct lr_key keys[LR_KEYS_MAX];
    bool cycles_momentum; /* with lr_schedule_params.cycle_momentum it sets beta1 */

    /* The setting of `group` at `iteration`. `iteration` is DeepSpeed's last_batch_iteration: -1 before the first
     * update; each update that is not skipped adds 1. `given`: the optimizer's own setting. */
    struct lr_setting (*at)(const struct lr_schedule_params *params, uint32_t group, int64_t iteration,
                            struct lr_setting given);
};

extern const struct lr_schedule *const lr_schedules[]; /* ends with NULL */

/* NULL: the schedule has no such key, or there is no schedule. */
const struct lr_key *lr_schedule_key(const struct lr_schedule *schedule, const char *name);

/* The setting of the update after `applied` earlier updates. It is computed in round-to-nearest, in any floating-point
 * environment of the host program. If last_batch_iteration is 0 or more, the first update uses the optimizer's own
 * setting, as in DeepSpeed. Without a schedule (NULL) every update does. */
struct lr_setting lr_schedule_at(const struct lr_schedule *schedule, const struct lr_schedule_params *params,
                                 uint32_t group, uint64_t applied, struct lr_setting given);

static inline double lr_number(const struct lr_numbers *numbers, uint32_t group) {
    return numbers->value[numbers->each ? group : 0];
}
