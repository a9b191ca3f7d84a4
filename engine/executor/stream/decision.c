#include "engine/executor/stream/decision.h"

#include <math.h>

double host_norm_squared(const struct policy *p, uint32_t data_rank, const struct agreement *all,
                         const uint32_t *at, uint32_t model_ranks) {
    bool both = p->stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t shards = p->mesh[AXIS_SHARD], ranks = shards * p->mesh[AXIS_REPLICATE];
    double sum = 0;
    for (uint32_t i = 0; i < model_ranks * ranks; i++)
        if (both || i % ranks / shards == data_rank / shards) sum += all[at ? at[i] : i].norm_squared;
    return sum;
}

struct host_decision host_decide(const struct policy *p, double norm_squared, double mean, double clip) {
    double norm = sqrt(norm_squared) * mean, factor = clip / (norm + 1e-6);
    float scale = (float)(clip > 0 && factor < 1 ? mean * factor : mean);
    enum outcome outcome = !isfinite(norm)                      ? OUTCOME_SKIPPED
                           : p->repeats && scale != (float)mean ? OUTCOME_REPEATED
                                                                : OUTCOME_UPDATED;
    return (struct host_decision){norm, scale, outcome};
}
