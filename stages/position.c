/* The positions of a pass: which use is at each, and where a region is used again. */
#include "stages/policy.h"

const struct use *policy_use(const struct policy *p, uint32_t position) {
    uint32_t use = position < p->uses       ? position
                   : position < 2 * p->uses ? 2 * p->uses - 1 - position
                                            : position - 2 * p->uses;
    return &p->forward[use];
}

bool policy_backward(const struct policy *p, uint32_t position) {
    return position >= p->uses && position < 2 * p->uses;
}

static bool uses_region(const struct use *use, uint16_t region) {
    for (uint8_t i = 0; i < use->count; i++)
        if (use->region[i] == region) return true;
    return false;
}

bool policy_used_later(const struct policy *p, uint16_t region, uint32_t after, bool backward_only,
                       uint32_t *out_position) {
    const struct region *r = &p->region[region];
    if (r->first_use >= p->uses) return false; /* no use has it */
    uint32_t q = after + 1, turn = 2 * p->uses - 1 - r->last_use, end = 2 * p->uses - r->first_use;
    if (q < turn && (q > r->last_use || backward_only)) q = turn; /* no use is between */
    for (; q < p->positions && q < end; q++) {
        if (backward_only && !policy_backward(p, q)) continue;
        if (!uses_region(policy_use(p, q), region)) continue;
        if (out_position) *out_position = q;
        return true;
    }
    return false;
}
