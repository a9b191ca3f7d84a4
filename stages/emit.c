#include "stages/emit.h"

#include <assert.h>
#include <string.h>

struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region) {
    assert(out->count < out->capacity);
    struct operation *op = &out->item[out->count++];
    memset(op, 0, sizeof *op);
    op->kind = (uint8_t)kind;
    op->object = (uint8_t)object;
    op->stream = (uint8_t)stream;
    op->region = (uint16_t)region;
    op->items = 1;
    return op;
}

void emit_reads(struct operation *op, enum buffer_kind kind, uint32_t region) {
    assert(op->reads < OPERATION_BUFFERS_MAX);
    op->read[op->reads++] = (struct buffer_ref){(uint16_t)kind, (uint16_t)region};
}

void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region) {
    assert(op->writes < OPERATION_BUFFERS_MAX);
    op->write[op->writes++] = (struct buffer_ref){(uint16_t)kind, (uint16_t)region};
}
