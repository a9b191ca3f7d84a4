/* Tensors that are cut along their first dimension into several parameters, for units that are smaller than the tensor. Everything
 * that outlives the run (checkpoints, the weights' hash, initial values) uses whole tensors only. Most tensors are one parameter,
 * which is their first and only part. Local; one thread. */
#pragma once

#include "engine/model/model.h"

/* `param` is about to become the model's last parameter: makes it the next part of its tensor. `row`, `rows`: of zero_param. */
zero_status tensor_join(struct model *model, struct model_param *param, uint64_t row, uint64_t rows,
                        struct zero_error *error);

/* The first part of a tensor. NULL: no tensor has this name (a part's name is not a tensor's). */
const struct model_param *tensor_find(const struct model *model, const char *name);

/* Elements of the whole tensor, and its shape, from its first part. */
uint64_t tensor_extent(const struct model *model, const struct model_param *first,
                       uint64_t out_shape[ZERO_DIMS_MAX]);

/* The part that has this element of the tensor. A part of this rank must have it. */
const struct model_param *tensor_part(const struct model *model, const struct model_param *first,
                                      uint64_t element);

/* The part after this one; NULL: it is the last. */
static inline const struct model_param *tensor_after(const struct model *model,
                                                     const struct model_param *part) {
    return part->tensor_next ? &model->param[part->tensor_next] : NULL;
}
