/* ZeRO stage 2: optimizer state and gradients are sharded. */
#include "stages/stage.h"

const struct stage stage_zero2 = {
    .name = "zero2",
    .number = 2,
    .state = {{SHARD, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{SHARD, REPLICATE}},
    .param_rest = {{REPLICATE, REPLICATE}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_EVERY,
};
