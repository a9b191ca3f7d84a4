/* What an engine has planned, as a setup: the simulation then plans and does the same. */
#ifndef ZERO_TOOLS_SIM_BLUEPRINT_H
#define ZERO_TOOLS_SIM_BLUEPRINT_H

#include "engine/inside.h"
#include "tools/sim/sim.h"

/* The engine's model; `unit_flops`: of each unit's forward in a micro-step, or NULL. It points into the blueprint's.
 * sim_model_free frees it. */
zero_status sim_model_of(const struct blueprint *blueprint, const uint64_t *unit_flops, struct sim_model *out,
                         struct zero_error *error);

/* All but model, steps, seed, speeds, faults and what comes after. ZERO_E_UNSUPPORTED: it has what is not simulated. */
zero_status sim_setup_of(const struct blueprint *blueprint, struct sim_setup *out, struct zero_error *error);

#endif
