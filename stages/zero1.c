/* ZeRO stage 1: optimizer state is sharded. */
#include "stages/stage.h"

const struct stage stage_zero1 = {
    .name = "zero1",
    .number = 1,
    .state = {{SHARD, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{SHARD, REPLICATE}},
    .param_rest = {{REPLICATE, REPLICATE}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_LAST,
};
