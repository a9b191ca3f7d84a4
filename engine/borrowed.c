/* Parameters that live in the host program's memory: copies of the flat buffer's, in the same virtual layout.
 */
#include "engine/engine_internal.h"

/* A stage that shards parameters at rest keeps no whole copy: borrowed memory would be one. */
zero_status borrowed_check(const zero_engine *e, struct zero_error *error) {
    for (uint32_t i = 0; i < e->model.params; i++) {
        const struct model_param *p = &e->model.param[i];
        if (!p->spans || placement_is(e->policy.stage->param_rest, REPLICATE, REPLICATE)) continue;
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "parameter \"%s\" is in the host's own memory, and %s keeps parameters sharded: use "
                         "stage 0, 1 or "
                         "2, or give the parameter a slot instead of spans",
                         p->name, e->policy.stage->name);
    }
    return ZERO_OK;
}

void borrowed_take_weights(zero_engine *e, struct model_param *p, const void *flat) {
    if (p->copied == e->version) return;
    p->copied = e->version;
    const uint8_t *from = flat;
    for (uint32_t i = 0; i < p->span_count; i++) {
        uint64_t bytes = p->spans[i].count * dtype_bytes(e->precision.compute);
        slots_copy(e, p->spans[i].param, from, bytes);
        from += bytes;
    }
}

void borrowed_give_gradients(zero_engine *e, struct model_param *p, void *flat, bool add) {
    uint8_t *to = flat;
    for (uint32_t i = 0; i < p->span_count; i++) {
        gradient_take(e, to, p->spans[i].grad, p->spans[i].count, add);
        to += p->spans[i].count * dtype_bytes(e->precision.compute);
    }
}
