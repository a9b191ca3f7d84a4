#include "engine/loop/slots.h"

#include "engine/model/lent.h"

void borrowed_take_weights(struct running *run, enum dtype compute, struct model_param *p, const void *flat) {
    if (p->copied == run->weights_version) return;
    p->copied = run->weights_version;
    const uint8_t *from = flat;
    for (uint32_t i = 0; i < p->span_count; i++) {
        uint64_t bytes = p->spans[i].count * dtype_bytes(compute);
        host_stream_copy(run, p->spans[i].param, from, bytes);
        from += bytes;
    }
}

void borrowed_take_lent(struct running *run, enum dtype compute, struct model_param *p,
                        const struct model_region *r) {
    uint64_t at = p->offset, bytes = dtype_bytes(compute);
    if (p->copied == run->weights_version) return;
    p->copied = run->weights_version;
    for (uint32_t i = 0; i < p->span_count; at += p->spans[i++].count)
        lent_read(r, LENT_PARAMS, bytes, at, p->spans[i].count, p->spans[i].param);
}

struct lent { /* by the host */
    const struct model_param *param;
    uint8_t *flat;
    uint32_t dtype;
    bool add;
};

static struct gradient_take_argument lent_span(const void *user, uint32_t i) {
    const struct lent *lent = user;
    const zero_span *span = &lent->param->spans[i];
    uint64_t bytes = lent->param->span_first[i] * dtype_bytes((enum dtype)lent->dtype);
    return (struct gradient_take_argument){lent->flat + bytes, span->grad, span->count, lent->dtype,
                                           lent->add};
}

void borrowed_give_gradients(struct running *run, enum dtype compute, const struct model_param *p, void *flat,
                             bool add, uint32_t threads) {
    struct lent lent = {p, flat, compute, add};
    host_stream_take_gradients(run, lent_span, &lent, p->span_count, threads);
}

void borrowed_clear_gradients(struct running *run, enum dtype compute, const struct model_param *p) {
    for (uint32_t i = 0; i < p->span_count; i++)
        host_stream_clear(run, p->spans[i].grad, p->spans[i].count * dtype_bytes(compute));
}
