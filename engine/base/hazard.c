#include "engine/base/hazard.h"

#include <string.h>

static void wait_for(uint64_t *after, uint64_t point) {
    if (*after < point) *after = point;
}

static struct hazard_span span_of(const struct hazards *h, uint32_t buffer) {
    return h->span ? h->span[buffer] : (struct hazard_span){0};
}

static void need(const struct hazards *h, struct operation *op, uint32_t buffer, bool writes) {
    const struct hazard_record *r = &h->record[buffer];
    wait_for(&op->after[r->writer], r->write);
    for (int s = 0; s < STREAMS && writes; s++) wait_for(&op->after[s], r->read[s]);
    const struct hazard_span span = span_of(h, buffer);
    for (uint32_t i = span.first; i < span.end; i++)
        for (int s = 0; s < STREAMS; s++) {
            const struct hazard_release *last = &h->part[i].release[s];
            wait_for(&op->after[s], last->buffer == buffer ? last->other : last->point);
        }
}

static void release(struct hazards *h, const struct operation *op, uint32_t buffer) {
    const struct hazard_span span = span_of(h, buffer);
    for (uint32_t i = span.first; i < span.end; i++) {
        struct hazard_release *last = &h->part[i].release[op->stream];
        if (last->buffer != buffer) last->other = last->point;
        last->point = op->end;
        last->buffer = buffer;
    }
}

void hazard_emit(struct hazards *h, struct operation *op, const uint32_t *read, const uint32_t *write) {
    memset(op->after, 0, sizeof op->after);
    for (uint8_t i = 0; i < op->reads; i++)
        if (!buffer_is_ring(op->read[i].kind)) need(h, op, read[i], false);
    for (uint8_t i = 0; i < op->writes; i++)
        if (!buffer_is_ring(op->write[i].kind)) need(h, op, write[i], true);
    for (int s = 0; s < STREAMS; s++)
        if (op->implied & 1u << s) op->after[s] = 0;
    for (int s = 0; s < STREAMS; s++)
        if (op->joins & 1u << s) op->after[s] = h->issued[s];
    op->end = h->issued[op->stream] += op->items;
    for (uint8_t i = 0; i < op->reads; i++) h->record[read[i]].read[op->stream] = op->end;
    for (uint8_t i = 0; i < op->writes; i++) {
        memset(&h->record[write[i]], 0, sizeof *h->record);
        h->record[write[i]].write = op->end;
        h->record[write[i]].writer = op->stream;
        if (op->kind == OP_RELEASE) release(h, op, write[i]);
    }
}
