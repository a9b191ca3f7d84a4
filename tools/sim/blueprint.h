/* An engine's plan as a setup: the simulation then plans the same and does the same. */
#ifndef ZERO_TOOLS_SIM_BLUEPRINT_H
#define ZERO_TOOLS_SIM_BLUEPRINT_H

#include "engine/inside.h"
#include "tools/sim/sim.h"

/* The engine's model. `unit_flops`: FLOP of each unit's forward in a micro-step, or NULL. *out points into the
 * blueprint's model. sim_model_free frees it. */
zero_status sim_model_of(const struct blueprint *blueprint, const uint64_t *unit_flops, struct sim_model *out,
                         struct zero_error *error);

/* Everything except model, steps, seed, speeds, faults and the members after them. */
struct sim_setup sim_setup_of(const struct blueprint *blueprint);

#endif
