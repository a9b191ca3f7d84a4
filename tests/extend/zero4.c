/* A stage between ZeRO-2 and ZeRO-3, over all ranks of a mesh: parameters rest sharded on the shard axis and on the
 * replicate axis, and are whole from their first use of a pass to their last. */
#include "stages/stage.h"

const struct stage stage_zero4 = {
    .name = "zero4",
    .number = 4,
    .state = {{SHARD, SHARD}},
    .grad_between = {[ACCUMULATE_LAST] = {{PARTIAL, PARTIAL}}, [ACCUMULATE_EVERY] = {{SHARD, SHARD}}},
    .grad_step = {{SHARD, SHARD}},
    .param_rest = {{SHARD, SHARD}},
    .param_between = {{REPLICATE, REPLICATE}},
    .accumulation = ACCUMULATE_EVERY,
};
