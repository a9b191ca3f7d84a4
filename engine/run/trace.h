/* When operations started and were done, in some steps: memory that is planned like the host's reservations, filled by
 * the executor's watch under the lock, and written on request. */
#pragma once

#include "engine/executor/executor.h"
#include "engine/model/reservations.h"
#include "engine/ranks/rank_agreement.h"

struct trace;

/* The steps to trace, as the host asked for them, or the configuration. */
struct trace_steps {
    uint64_t first, steps; /* counted from 1; 0 steps: none */
};

/* The parts of the engine that are traced. They are borrowed. */
struct trace_source {
    struct ranks *ranks;
    const struct plan *plan;
    struct executor_shape shape;
};

/* Before the plan, which counts the trace's memory: reserves it. */
zero_status trace_reserve(struct trace_steps steps, struct reservations *reservations,
                          struct zero_error *error);

/* Before the executor opens, which takes the watch. *out: NULL where nothing is traced. */
zero_status trace_open(struct trace_steps steps, const struct trace_source *source, struct trace **out,
                       struct zero_error *error);
const struct executor_watch *trace_watch(const struct trace *trace); /* NULL: nothing is traced */
void trace_close(struct trace *trace);

/* After the commit and after every step: begins and ends where steps do. Collective. */
zero_status trace_step(struct trace *trace);

/* zero_engine_write_trace, after a settle. Collective. */
zero_status trace_write(struct trace *trace, const char *path);
