#include "engine/pass/borrowed.h"

#include "engine/pass/host_stream.h"

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

void borrowed_give_gradients(struct running *run, enum dtype compute, const struct model_param *p, void *flat,
                             bool add) {
    uint8_t *to = flat;
    for (uint32_t i = 0; i < p->span_count; i++) {
        host_stream_take_gradient(run, compute, to, p->spans[i].grad, p->spans[i].count, add);
        to += p->spans[i].count * dtype_bytes(compute);
    }
}
