/* Plain data parallelism, the baseline: everything is replicated, gradients are all-reduced. */
#include "stages/stage.h"

const struct stage stage_zero0 = {
    .name = "zero0",
    .number = 0,
    .state = {{REPLICATE, REPLICATE}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, PARTIAL}}},
    .grad_step = {{REPLICATE, REPLICATE}},
    .param_rest = {{REPLICATE, REPLICATE}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_LAST,
};
