/* Budgets of memory, and what to change where the plan exceeds one. */
#ifndef ZERO_ENGINE_BLUEPRINT_BUDGET_ADVICE_H
#define ZERO_ENGINE_BLUEPRINT_BUDGET_ADVICE_H

#include "engine/blueprint/blueprint.h"

/* ZERO_E_BUDGET: the sentence names the tier, keys with values with which all budgets hold (each was planned, with the model and
 * the ranks as they are), and the largest owners. `config`: the blueprint's, changed for each trial, and as it was afterwards. */
zero_status budget_check(const struct blueprint *blueprint, struct config *config, struct zero_error *error);

#endif
