/* Parameters in the host program's own memory (spans): copies of the flat buffers, in the same order of elements. Weights go
 * there when a use begins, gradients come from there when it ends. */
#ifndef ZERO_ENGINE_PASS_BORROWED_H
#define ZERO_ENGINE_PASS_BORROWED_H

#include "engine/model/model.h"
#include "engine/run/run.h"

/* `flat`: the parameter's address in the flat buffer; elements are of type `compute`. */
void borrowed_take_weights(struct running *run, enum dtype compute, struct model_param *param,
                           const void *flat);
/* The same where the owner's spans hold the weights: `region` lists them. */
void borrowed_take_lent(struct running *run, enum dtype compute, struct model_param *param,
                        const struct model_region *region);
void borrowed_give_gradients(struct running *run, enum dtype compute, const struct model_param *param,
                             void *flat, bool add, uint32_t threads);
void borrowed_clear_gradients(struct running *run, enum dtype compute, const struct model_param *param);

#endif
