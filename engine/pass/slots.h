/* The slots of a use: where the host finds the unit's parameters and gradients between begin and end. */
#ifndef ZERO_ENGINE_PASS_SLOTS_H
#define ZERO_ENGINE_PASS_SLOTS_H

#include "engine/pass/pass.h"

/* A region's gradient starts anew: alignment gaps, and parameters that this unit does not write, become zero. */
void slots_start_gradient(struct pass *pass, const struct zero_unit *unit, uint16_t region);

/* The use begins: writes the addresses. It ends: clears them, and takes gradients from the host's own memory. */
void slots_set(struct pass *pass, const struct zero_unit *unit, bool backward);
void slots_clear(struct pass *pass, const struct zero_unit *unit, bool backward);

/* A use begins inside this one: takes what the host has added so far to gradients in memory of its own. */
void slots_step_aside(struct pass *pass, const struct zero_unit *unit, bool backward);

/* The same for the held units: with each use, and when the pass has made its last use. */
void slots_set_held(struct pass *pass, bool backward);
void slots_clear_held(struct pass *pass);

/* The addresses of a parameter, and of its gradient (NULL: frozen), in every use. */
void slots_addresses(const struct pass *pass, const struct model_param *param, zero_slot *out);

/* The address of the parameter's gradient in the region's flat buffer. */
void *slots_gradient(const struct pass *pass, const struct model_param *param);

/* The type of the parameter's elements. */
enum dtype slots_dtype(const struct pass *pass, const struct model_param *param);

#endif
