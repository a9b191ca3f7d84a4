/* The hash of all weights: a sum over elements, so that no rank needs more than its shard. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/held.h"

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

static zero_status hash_part(zero_engine *e, uint32_t region, uint64_t sum[2]) {
    struct part part =
        own_part(e, region, (struct placement){{SHARD, e->regions[region].state.axis[AXIS_REPLICATE]}});
    const struct model_region *r = &e->model.region[region];
    float *piece = (float *)(void *)e->piece;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < r->params && !status; i++) {
        const struct model_param *p = &e->model.param[r->param[i]];
        uint64_t begin = max64(p->offset, part.first),
                 end = min64(p->offset + p->count, part.first + part.count);
        for (uint64_t at = begin, count; at < end && !status; at += count) {
            count = min64(end - at, PIECE_BYTES / sizeof(float));
            status = held_read(e, region, ZERO_PARAM, at, count, piece);
            for (uint64_t k = 0; k < count && !status; k++)
                hash_element(p, at + k - p->offset, &piece[k], sum);
        }
    }
    return status;
}

zero_status zero_engine_hash(zero_engine *e, char out[33]) {
    zero_status status = engine_check_between(e, "zero_engine_hash");
    if (status) return status;
    if (e->micro)
        return refuse(ZERO_E_ORDER, "zero_engine_hash: call it between steps, not between micro-steps");
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_hash: out is NULL");
    status = engine_settle(e);
    if (status) return status;
    uint64_t *sums = (uint64_t *)(void *)e->sum_message, total[2] = {0};
    sums[0] = sums[1] = 0;
    bool counts =
        e->rank < e->policy.mesh[AXIS_SHARD] || e->policy.stage->state.axis[AXIS_REPLICATE] == SHARD;
    for (uint32_t i = 0; i < e->model.regions && counts && !status; i++) status = hash_part(e, i, sums);
    if (status) return status;
    struct comm_call call = comm_rows(sums, sizeof total, "the weights' hash");
    status = engine_call(e, &call);
    if (status) return status;
    for (uint32_t r = 0; r < e->size; r++) total[0] += sums[2 + 2 * r], total[1] += sums[3 + 2 * r];
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, total[0], total[1]);
    return ZERO_OK;
}
