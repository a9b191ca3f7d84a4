#include "engine/model/tensor.h"

#include <stdlib.h>
#include <string.h>

/* The first part of a tensor that is cut; NULL: none has this name. */
static const struct model_param *find_cut(const struct model *model, const char *name) {
    for (uint32_t i = 0; i < model->cuts; i++)
        if (strcmp(model->param[model->cut[i]].tensor, name) == 0) return &model->param[model->cut[i]];
    return NULL;
}

const struct model_param *tensor_find(const struct model *model, const char *name) {
    const struct model_param *p = model_find(model, name);
    return p && p->tensor == p->name ? p : find_cut(model, name);
}

static zero_status begin_cut(struct model *model, const struct model_param *p, struct zero_error *error) {
    uint32_t *list = realloc(model->cut, (model->cuts + 1) * sizeof *list);
    if (!list) return error_set(error, ZERO_E_MEMORY, "parameter \"%s\": no memory for its record", p->name);
    model->cut = list;
    list[model->cuts++] = model->params;
    return ZERO_OK;
}

static zero_status check_alike(const struct model_param *first, const struct model_param *p,
                               struct zero_error *error) {
    bool alike = p->dims == first->dims && p->flags == first->flags && p->scalars == first->scalars &&
                 memcmp(p->shape + 1, first->shape + 1, (p->dims - 1) * sizeof *p->shape) == 0;
    if (alike) return ZERO_OK;
    return error_set(
        error, ZERO_E_ARGUMENT,
        "parameter \"%s\": the parts of tensor \"%s\" have the same dimensions but the first, and "
        "the same flags and group; those of \"%s\" differ",
        p->name, p->tensor, first->name);
}

zero_status tensor_join(struct model *model, struct model_param *p, struct zero_error *error) {
    p->tensor_head = model->params;
    if (p->tensor == p->name && !find_cut(model, p->name)) return ZERO_OK;
    if (p->tensor == p->name || model_find(model, p->tensor))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\": a tensor that is cut has the name of a parameter; give each its own", p->name);
    if (p->owner != model->params)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\" is tied and a part of tensor \"%s\": leave tensor NULL, the owner's "
            "applies",
            p->name, p->tensor);
    const struct model_param *first = find_cut(model, p->tensor);
    if (!first) return begin_cut(model, p, error);
    zero_status status = check_alike(first, p, error);
    if (status) return status;
    struct model_param *last = &model->param[first->tensor_head];
    while (last->tensor_next) last = &model->param[last->tensor_next];
    last->tensor_next = model->params;
    p->tensor_head = first->tensor_head;
    p->tensor_part = last->tensor_part + 1;
    p->tensor_first = last->tensor_first + last->count;
    return ZERO_OK;
}

uint64_t tensor_extent(const struct model *model, const struct model_param *first,
                       uint64_t out_shape[ZERO_DIMS_MAX]) {
    uint64_t count = 0;
    memcpy(out_shape, first->shape, sizeof first->shape);
    out_shape[0] = 0;
    for (const struct model_param *p = first; p; p = tensor_after(model, p))
        out_shape[0] += p->shape[0], count += p->count;
    return count;
}

const struct model_param *tensor_part(const struct model *model, const struct model_param *first,
                                      uint64_t element) {
    while (element >= first->tensor_first + first->count) first = tensor_after(model, first);
    return first;
}
