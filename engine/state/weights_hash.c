#include "engine/state/weights_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t mix(uint64_t x) { /* Stafford's variant 13 of the finalizer of MurmurHash3 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Every element contributes a mixed word of its parameter's name, its index and its bits; the words add up,
 * so that the sum does not depend on who holds which element. Two sums with different seeds make 128 bits. */
static void hash_element(const struct model_param *p, uint64_t index, const float *element, uint64_t sum[2]) {
    uint32_t bits;
    memcpy(&bits, element, sizeof bits);
    uint64_t word = mix(p->name_hash + index) + bits;
    sum[0] += mix(word);
    sum[1] += mix(word ^ 0x9e3779b97f4a7c15u);
}

static zero_status hash_part(struct state *state, uint32_t region, uint64_t sum[2]) {
    struct part part = part_of_rank(
        state->blueprint, state->ranks->rank, region,
        (struct placement){{SHARD, state->blueprint->regions[region].state.axis[AXIS_REPLICATE]}});
    const struct model_region *r = &state->model->region[region];
    float *piece = (float *)(void *)state->piece;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < r->params && !status; i++) {
        const struct model_param *p = &state->model->param[r->param[i]];
        uint64_t begin = max64(p->offset, part.first),
                 end = min64(p->offset + p->count, part.first + part.count);
        for (uint64_t at = begin, count; at < end && !status; at += count) {
            count = min64(end - at, PIECE_BYTES / sizeof(float));
            status = state_read(state, region, ZERO_PARAM, at, count, piece);
            for (uint64_t k = 0; k < count && !status; k++)
                hash_element(p, at + k - p->offset, &piece[k], sum);
        }
    }
    return status;
}

zero_status weights_hash(struct state *state, char out[33]) {
    const struct policy *policy = &state->blueprint->policy;
    struct ranks *ranks = state->ranks;
    uint64_t *sums = (uint64_t *)(void *)ranks->message, total[2] = {0};
    zero_status status = ZERO_OK;
    sums[0] = sums[1] = 0;
    bool counts =
        ranks->rank < policy->mesh[AXIS_SHARD] || policy->stage->state.axis[AXIS_REPLICATE] == SHARD;
    stored_sweep(&state->host, NULL, policy->regions, 0);
    for (uint32_t i = 0; i < policy->regions && counts && !status; i++) status = hash_part(state, i, sums);
    status = state_end_sweep(state, status);
    if (status) return status;
    struct comm_call call = comm_rows(sums, sizeof total, "the weights' hash");
    status = ranks_call(ranks, &call);
    if (status) return status;
    for (uint32_t r = 0; r < ranks->size; r++) total[0] += sums[2 + 2 * r], total[1] += sums[3 + 2 * r];
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, total[0], total[1]);
    return ZERO_OK;
}
