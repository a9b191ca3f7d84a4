/* The hash of all weights: a sum over elements, so that no rank needs more than its shard. */
#include "engine/state/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"

/* Every element contributes a mixed word of its tensor's name, its index in the tensor and its bits. The words are
 * added, so the sum does not depend on which rank holds which element. Two sums with different seeds make 128 bits. */
static void hash_element(const struct model_param *p, uint64_t index, const float *element, uint64_t sum[2]) {
    uint32_t bits;
    memcpy(&bits, element, sizeof bits);
    uint64_t word = hash_mix(p->name_hash + index) + bits;
    sum[0] += hash_mix(word);
    sum[1] += hash_mix(word ^ HASH_STEP);
}

zero_status weights_hash_param(struct state *state, const struct model_param *p, uint64_t sum[2]) {
    uint8_t replicate = state->blueprint->regions[p->region].state.axis[AXIS_REPLICATE];
    struct stored_range part = range_of_rank(state->blueprint, state->ranks->data_rank, p->region,
                                             (struct placement){{SHARD, replicate}});
    uint64_t begin = max64(p->offset, part.first), end = min64(p->offset + p->count, part.first + part.count);
    float *piece = (float *)(void *)state->piece;
    zero_status status = ZERO_OK;
    if (replicate != SHARD && state->ranks->data_rank >= state->blueprint->policy.mesh[AXIS_SHARD])
        return ZERO_OK; /* of equal shards one counts */
    for (uint64_t at = begin, count; at < end && !status; at += count) {
        count = min64(end - at, PIECE_BYTES / sizeof(float));
        status = state_read(state, p->region, ZERO_PARAM, at, count, piece);
        for (uint64_t k = 0; k < count && !status; k++)
            hash_element(p, p->tensor_first + at + k - p->offset, &piece[k], sum);
    }
    return status;
}

/* A parameter that other model ranks also have counts on the first of them. */
static zero_status hash_region(struct state *state, uint32_t region, uint64_t sum[2]) {
    const struct model_region *r = &state->model->region[region];
    for (uint32_t i = 0; i < r->params && !region_elsewhere(r); i++)
        TRY(weights_hash_param(state, &state->model->param[r->param[i]], sum));
    return ZERO_OK;
}

zero_status weights_hash(struct state *state, char out[33]) {
    const struct policy *policy = &state->blueprint->policy;
    struct ranks *ranks = state->ranks;
    uint64_t *sums = (uint64_t *)(void *)ranks->message, total[2] = {0};
    zero_status status = ZERO_OK;
    sums[0] = sums[1] = 0;
    stored_sweep(&state->host, NULL, policy->regions, 0);
    for (uint32_t i = 0; i < policy->regions && !status; i++) status = hash_region(state, i, sums);
    status = state_end_sweep(state, status);
    if (status) return status;
    struct comm_call call = comm_rows(sums, sizeof total, "the weights' hash");
    TRY(ranks_call(ranks, &call));
    for (uint32_t r = 0; r < ranks->size; r++) total[0] += sums[2 + 2 * r], total[1] += sums[3 + 2 * r];
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, total[0], total[1]);
    return ZERO_OK;
}
