#include "engine/schedule/lr_schedule.h"

#include <stddef.h>

#include "engine/base/float_env.h"

extern const struct lr_schedule lr_warmup, lr_warmup_decay, lr_warmup_cosine, lr_one_cycle, lr_range_test,
    lr_torch_step, lr_torch_multi_step, lr_torch_constant, lr_torch_linear, lr_torch_exponential,
    lr_torch_polynomial, lr_torch_cosine, lr_torch_restarts, lr_torch_cyclic, lr_torch_one_cycle;

const struct lr_schedule *const lr_schedules[LR_SCHEDULES] = {
    [LR_WARMUP] = &lr_warmup,
    [LR_WARMUP_DECAY] = &lr_warmup_decay,
    [LR_WARMUP_COSINE] = &lr_warmup_cosine,
    [LR_ONE_CYCLE] = &lr_one_cycle,
    [LR_RANGE_TEST] = &lr_range_test,
    [LR_TORCH_STEP] = &lr_torch_step,
    [LR_TORCH_MULTI_STEP] = &lr_torch_multi_step,
    [LR_TORCH_CONSTANT] = &lr_torch_constant,
    [LR_TORCH_LINEAR] = &lr_torch_linear,
    [LR_TORCH_EXPONENTIAL] = &lr_torch_exponential,
    [LR_TORCH_POLYNOMIAL] = &lr_torch_polynomial,
    [LR_TORCH_COSINE] = &lr_torch_cosine,
    [LR_TORCH_RESTARTS] = &lr_torch_restarts,
    [LR_TORCH_CYCLIC] = &lr_torch_cyclic,
    [LR_TORCH_ONE_CYCLE] = &lr_torch_one_cycle,
};

struct lr_setting lr_schedule_at(enum lr_schedule_kind kind, const struct lr_schedule_params *params,
                                 uint32_t group, uint64_t applied, struct lr_setting given) {
    bool constructed = applied == 0; /* in DeepSpeed, the constructor has run and step() has not */
    if (kind == LR_NONE || (constructed && params->last_batch_iteration >= 0)) return given;
    float_env saved = float_env_enter();
    struct lr_setting setting =
        lr_schedules[kind]->at(params, group, params->last_batch_iteration + (int64_t)applied, given);
    float_env_leave(saved);
    return setting;
}
