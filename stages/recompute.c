/* Forwards again, inside a backward: activation checkpointing (Chen et al. 2016, Training Deep Nets with Sublinear Memory
 * Cost). */
#include "stages/emit.h"

uint32_t policy_recompute_position(const struct policy *p, uint32_t use, uint32_t next) {
    return 2 * p->uses - 1 - use == next ? next : 2 * p->uses + use;
}

void policy_recompute(struct policy *p, uint32_t use, uint32_t next, struct operation_list *out) {
    uint32_t last = 2 * p->uses - 1 - next, left = p->depth;
    policy_skip_to(p, next, out);
    for (uint32_t u = use; u <= last; u++) {
        const struct use *ahead = &p->forward[u];
        if (u > use && policy_gathers(p, ahead) && left-- == 0) break;
        for (uint8_t i = 0; i < ahead->count; i++)
            param_want(p, ahead->region[i], policy_recompute_position(p, u, next), out);
    }
    struct operation *op = emit(out, OP_COMPUTE, OBJECT_PARAM, STREAM_COMPUTE, p->forward[use].region[0]);
    op->use = (uint16_t)(2 * p->uses + use);
    for (uint8_t i = 0; i < p->forward[use].count; i++)
        emit_reads(op, BUFFER_PARAM_FULL, p->forward[use].region[i]);
}

/* The next backward will look ahead as far as `position`: what is there stays. */
static bool looked_ahead_to(const struct policy *p, uint32_t position) {
    uint32_t gathers = 0;
    for (uint32_t q = p->cursor + 1; q <= position; q++) gathers += policy_gathers(p, policy_use(p, q));
    return gathers <= p->depth;
}

void policy_recomputed(struct policy *p, uint32_t use, struct operation_list *out) {
    for (uint8_t i = 0; i < p->forward[use].count; i++) {
        uint16_t region = p->forward[use].region[i];
        uint32_t next;
        if (policy_used_later(p, region, p->cursor - 1, false, &next) && looked_ahead_to(p, next)) continue;
        param_settle(p, region, p->cursor - 1, out);
    }
}
