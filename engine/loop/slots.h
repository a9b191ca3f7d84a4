/* The slots of a use: where the host finds the unit's parameters and gradients between begin and end. */
#pragma once

#include "engine/loop/pass.h"
#include "engine/model/lent.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "kernels/gradients.h"

/* A region's gradient starts anew: alignment gaps, and parameters that this unit does not write, become zero. */
void slots_start_gradient(struct pass *pass, const struct zero_unit *unit, uint16_t region);

/* The use begins: writes the addresses. It ends: clears them, and takes gradients from the host's own memory. */
void slots_set(struct pass *pass, const struct zero_unit *unit, bool backward);
void slots_clear(struct pass *pass, const struct zero_unit *unit, bool backward);

/* The host's own memory takes the weights as they rest in the engine's. */
void slots_give_weights(struct pass *pass);

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

/* ---- borrowed.c: parameters in the host program's own memory (spans): copies of the flat buffers, in the same order of elements.
 * Weights go there when a use begins, gradients come from there when it ends. ---- */
/* `flat`: the parameter's address in the flat buffer; elements are of type `compute`. */
void borrowed_take_weights(struct running *run, enum dtype compute, struct model_param *param,
                           const void *flat);
/* The same where the owner's spans hold the weights: `region` lists them. */
void borrowed_take_lent(struct running *run, enum dtype compute, struct model_param *param,
                        const struct model_region *region);
void borrowed_give_gradients(struct running *run, enum dtype compute, const struct model_param *param,
                             void *flat, bool add, uint32_t threads);
void borrowed_clear_gradients(struct running *run, enum dtype compute, const struct model_param *param);

/* ---- host_stream.c: copies and sums between the flat buffers and the host's memory, on the host's stream of the device. If the
 * program computes on the CPU, there is no stream, and the work is done at once. A failure is the device's; the calls that begin and
 * end uses find it. ---- */
void host_stream_copy(struct running *run, void *target, const void *source, uint64_t bytes);
void host_stream_clear(struct running *run, void *memory, uint64_t bytes);

/* gradients_take, on the host's stream. */
void host_stream_take_gradients(struct running *run, gradient_item_fn item, const void *user, uint32_t items,
                                uint32_t threads);
