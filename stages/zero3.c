/* ZeRO stage 3: optimizer state, gradients and parameters are sharded. */
#include "stages/stage.h"

const struct stage stage_zero3 = {
    .name = "zero3",
    .number = 3,
    .state = {{SHARD, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{SHARD, REPLICATE}},
    .param_rest = {{SHARD, REPLICATE}},
    .param_between = {{SHARD, REPLICATE}},
    .accumulation = ACCUMULATE_EVERY,
};
