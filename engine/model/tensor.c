#include "engine/model/tensor.h"

#include <inttypes.h>
#include <string.h>

static const char *tensor_name(const void *model, uint32_t i) {
    return ((const struct model *)model)->param[i].tensor;
}

/* The first part of a tensor that is cut; NULL: none has this name. */
static struct model_param *find_cut(const struct model *model, const char *name) {
    uint32_t i = name_index_find(&model->cut_index, name, tensor_name, model);
    return i == UINT32_MAX ? NULL : &model->param[i];
}

const struct model_param *tensor_find(const struct model *model, const char *name) {
    const struct model_param *p = model_find(model, name);
    return p && p->tensor == p->name ? p : find_cut(model, name);
}

static zero_status begin_cut(struct model *model, const struct model_param *p, struct zero_error *error) {
    if (name_index_add(&model->cut_index, model->params, tensor_name, model)) return ZERO_OK;
    return error_set(error, ZERO_E_MEMORY, "parameter \"%s\": no memory for its record", p->name);
}

static zero_status check_alike(const struct model_param *first, const struct model_param *p,
                               struct zero_error *error) {
    bool alike = p->dims == first->dims && p->flags == first->flags && p->scalars == first->scalars &&
                 p->tensor_rows == first->tensor_rows &&
                 memcmp(p->shape + 1, first->shape + 1, (p->dims - 1) * sizeof *p->shape) == 0;
    if (alike) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "parameter \"%s\": the parts of tensor \"%s\" have the same dimensions but the first, "
                     "and the same flags, group and tensor_rows; those of \"%s\" differ",
                     p->name, p->tensor, first->name);
}

#define ELEMENTS_MAX ((uint64_t)1 << 56)

/* The rows of a tensor of which other parts may be on other model ranks. */
static zero_status check_rows(const struct model_param *p, uint64_t row, uint64_t rows,
                              struct zero_error *error) {
    if (p->tensor == p->name && (row || rows))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\" has a tensor_row or tensor_rows, and tensor is NULL: give the tensor's name",
            p->name);
    if (rows > ELEMENTS_MAX / (p->count / p->shape[0]))
        return error_set(error, ZERO_E_ARGUMENT,
                         "tensor \"%s\" of %" PRIu64 " rows has more than 2^56 elements", p->tensor, rows);
    if ((!rows && !row) || (p->shape[0] <= rows && row <= rows - p->shape[0])) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "parameter \"%s\" has the rows %" PRIu64 " to %" PRIu64
                     " of tensor \"%s\", and tensor_rows is %" PRIu64 ": give the rows of the whole tensor",
                     p->name, row, row + p->shape[0], p->tensor, rows);
}

/* The part must follow the part that was added before it. */
static zero_status join_after(const struct model_param *last, struct model_param *p,
                              struct zero_error *error) {
    uint64_t end = last->tensor_first + last->count;
    if (!p->tensor_rows) p->tensor_first = end;
    if (p->tensor_first >= end) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "parameter \"%s\": tensor_row is before the end of \"%s\", which was added before: add "
                     "the parts of tensor \"%s\" in the order of rows",
                     p->name, last->name, p->tensor);
}

zero_status tensor_join(struct model *model, struct model_param *p, uint64_t row, uint64_t rows,
                        struct zero_error *error) {
    p->tensor_head = p->tensor_tail = model->params;
    TRY(check_rows(p, row, rows, error));
    p->tensor_rows = rows;
    p->tensor_first = p->count / p->shape[0] * row;
    if (p->tensor == p->name && !find_cut(model, p->name)) return ZERO_OK;
    if (p->tensor == p->name || model_find(model, p->tensor))
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\": a tensor that is cut has the name of a parameter; give each its own", p->name);
    if (p->owner != model->params)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\" is tied and a part of tensor \"%s\": leave tensor NULL, the owner's applies",
            p->name, p->tensor);
    struct model_param *first = find_cut(model, p->tensor);
    if (!first) return begin_cut(model, p, error);
    TRY(check_alike(first, p, error));
    struct model_param *last = &model->param[first->tensor_tail];
    TRY(join_after(last, p, error));
    last->tensor_next = first->tensor_tail = model->params;
    p->tensor_head = first->tensor_head;
    p->tensor_part = last->tensor_part + 1;
    return ZERO_OK;
}

uint64_t tensor_extent(const struct model *model, const struct model_param *first,
                       uint64_t out_shape[ZERO_DIMS_MAX]) {
    uint64_t count = 0;
    memcpy(out_shape, first->shape, sizeof first->shape);
    out_shape[0] = 0;
    for (const struct model_param *p = first; p; p = tensor_after(model, p))
        out_shape[0] += p->shape[0], count += p->count;
    if (!first->tensor_rows) return count;
    out_shape[0] = first->tensor_rows;
    return first->count / first->shape[0] * first->tensor_rows;
}

const struct model_param *tensor_part(const struct model *model, const struct model_param *first,
                                      uint64_t element) {
    while (element >= first->tensor_first + first->count) first = tensor_after(model, first);
    return first;
}
