/* When operations started and were done, in some steps: memory that is planned like the host's reservations, filled by
 * the executor's watch under the engine's lock, and written on request. */
#ifndef ZERO_ENGINE_TRACE_H
#define ZERO_ENGINE_TRACE_H

#include "engine/engine_internal.h"

/* At commit, before the plan: the configuration's trace block, or what the host asked for. */
zero_status trace_open(zero_engine *engine, struct zero_error *error);
const struct executor_watch *trace_watch(const zero_engine *engine); /* NULL: nothing is traced */

/* Collective, after the commit and after every step: begins and ends where steps do. */
zero_status trace_step(zero_engine *engine);
void trace_close(zero_engine *engine);

#endif
