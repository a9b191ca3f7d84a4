#include "stages/policy_internal.h"

#include <assert.h>
#include <string.h>

/* A use has at most USE_REGIONS_MAX regions; a model with more is refused. COMPUTE reads and writes one buffer of
 * each region. Other operations name at most three buffers. */
_Static_assert((int)OPERATION_BUFFERS_MAX >= (int)USE_REGIONS_MAX && (int)OPERATION_BUFFERS_MAX >= 3,
               "buffers fit an operation");

struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region) {
    struct operation *op = operation_append(out);
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

void emit_lent_staging(struct policy *p, struct operation *op) {
    if (p->lent_stagings) emit_writes(op, BUFFER_LENT_STAGING, p->gathers++ % p->lent_stagings);
}

void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region) {
    assert(op->writes < OPERATION_BUFFERS_MAX);
    op->write[op->writes++] = (struct buffer_ref){(uint16_t)kind, (uint16_t)region};
}
