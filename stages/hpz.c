/* ZeRO++'s hpZ: sharded over all ranks, with a secondary shard inside the node for backward. */
#include "stages/stage.h"

const struct stage stage_hpz = {
    .name = "hpz",
    .number = 3,
    .reshard = RESHARD_GROUP,
    .state = {{SHARD, SHARD}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, SHARD}}},
    .grad_step = {{SHARD, SHARD}},
    .param_rest = {{SHARD, SHARD}},
    .param_between = {{SHARD, REPLICATE}},
    .accumulation = ACCUMULATE_EVERY,
};
