/* Gathers and scatters of codes. */
#ifndef ZERO_ENGINE_EXECUTOR_QUANTIZED_H
#define ZERO_ENGINE_EXECUTOR_QUANTIZED_H

#include "engine/executor/executor_internal.h"

/* The shape of the call that replaces a call of elements; the same call where nothing is coded. */
struct comm_call coded_call(const struct executor_shape *o, const struct operation *op,
                            struct comm_call call);
bool codes_gather(const struct operation *op);
zero_status code_gather(struct executor *e, struct item *item, const void *source,
                        const struct comm_call *call);
void coded_gather_call(const struct executor *e, const struct item *item, struct comm_call *call);
zero_status decode_gather(struct executor *e, struct item *item, struct part part);
/* A scatter of a gradient sends codes: not of parameters that stay fp32 for their accuracy. */
bool codes_reduce(const struct executor_shape *o, const struct operation *op);
uint64_t reduce_code_bytes(const struct executor_shape *o, uint64_t share, uint32_t members);
/* `step`: elements from one share of the source to the next. */
zero_status code_reduce(struct executor *e, struct item *item, const void *source, uint64_t step,
                        const struct comm_call *call);
void coded_reduce_call(const struct executor *e, const struct item *item, struct comm_call *call);
/* `add`: to the content of the target. */
zero_status decode_reduce(struct executor *e, struct item *item, void *target, uint64_t count, bool add);

#endif
