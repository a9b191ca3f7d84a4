/* ZeRO stage 3 with reshard_after_forward false: units stay gathered between forward and backward. */
#include "stages/stage.h"

const struct stage stage_zero3_keep = {
    .name = "zero3_keep",
    .number = 3,
    .reshard = RESHARD_NONE,
    .state = {{SHARD, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{SHARD, REPLICATE}},
    .param_rest = {{SHARD, REPLICATE}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_EVERY,
};
