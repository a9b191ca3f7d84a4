/* The timeline of some ranks as Chrome trace events, which Perfetto and chrome://tracing read: one process per rank,
 * one thread per stream (Trace Event Format, Google 2016). */
#ifndef ZERO_TOOLS_SIM_TRACE_H
#define ZERO_TOOLS_SIM_TRACE_H

#include "tools/sim/run.h"

void trace_begin(const struct run *run);
/* Writes an item of an operation that ends now. */
void trace_operation(const struct rank *rank, const struct operation *op, uint32_t item, uint64_t since_ns);
void trace_end(const struct run *run);

#endif
