/* Appends operations to a list. Only for the files of this folder. */
#ifndef ZERO_STAGES_EMIT_H
#define ZERO_STAGES_EMIT_H

#include "stages/policy.h"

struct operation *emit(struct operation_list *out, enum operation_kind kind, enum object object,
                       enum stream stream, uint32_t region);
void emit_reads(struct operation *op, enum buffer_kind kind, uint32_t region);
void emit_writes(struct operation *op, enum buffer_kind kind, uint32_t region);
/* Gives a gather to a lent region one of the planned staging buffers; they are used in turn. */
void emit_lent_staging(struct policy *policy, struct operation *op);

#endif
