#include "engine/config/schedule/lr_schedule.h"

#include <string.h>

#include "engine/base/numbers/float_env.h"

extern const struct lr_schedule lr_warmup, lr_warmup_decay, lr_warmup_cosine, lr_one_cycle, lr_range_test,
    lr_torch_step, lr_torch_multi_step, lr_torch_constant, lr_torch_linear, lr_torch_exponential,
    lr_torch_polynomial, lr_torch_cosine, lr_torch_restarts, lr_torch_cyclic, lr_torch_one_cycle,
    lr_cosine_with_min_lr, lr_warmup_stable_decay;

const struct lr_schedule *const lr_schedules[] = {&lr_warmup,
                                                  &lr_warmup_decay,
                                                  &lr_warmup_cosine,
                                                  &lr_one_cycle,
                                                  &lr_range_test,
                                                  &lr_torch_step,
                                                  &lr_torch_multi_step,
                                                  &lr_torch_constant,
                                                  &lr_torch_linear,
                                                  &lr_torch_exponential,
                                                  &lr_torch_polynomial,
                                                  &lr_torch_cosine,
                                                  &lr_torch_restarts,
                                                  &lr_torch_cyclic,
                                                  &lr_torch_one_cycle,
                                                  &lr_cosine_with_min_lr,
                                                  &lr_warmup_stable_decay,
                                                  NULL};

const struct lr_key *lr_schedule_key(const struct lr_schedule *schedule, const char *name) {
    for (int i = 0; schedule && i < LR_KEYS_MAX && schedule->keys[i].name; i++)
        if (strcmp(schedule->keys[i].name, name) == 0) return &schedule->keys[i];
    return NULL;
}

struct lr_setting lr_schedule_at(const struct lr_schedule *schedule, const struct lr_schedule_params *params,
                                 uint32_t group, uint64_t applied, struct lr_setting given) {
    bool constructed = applied == 0; /* in DeepSpeed, the constructor has run and step() has not */
    if (!schedule || (constructed && params->last_batch_iteration >= 0)) return given;
    float_env saved = float_env_enter();
    struct lr_setting setting =
        schedule->at(params, group, params->last_batch_iteration + (int64_t)applied, given);
    float_env_leave(saved);
    return setting;
}
