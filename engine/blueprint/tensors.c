#include "engine/blueprint/tensors.h"

static zero_status check_param(const struct model_param *p, const struct optimizer *row,
                               struct zero_error *error) {
    bool rows = p->tensor_rows && p->tensor_rows != p->shape[0];
    if (!p->tensor_part && !p->tensor_next && !rows) return ZERO_OK;
    return error_set(
        error, ZERO_E_UNSUPPORTED,
        "parameter \"%s\" is a part of \"%s\", and %s needs norms of whole tensors: name it in a "
        "group of param_groups with \"optimizer\": \"AdamW\"",
        p->name, p->tensor, row->title);
}

zero_status tensors_check(const struct blueprint *b, struct zero_error *error) {
    for (uint32_t i = 0; i < b->o.model->params; i++) {
        const struct model_param *p = &b->o.model->param[i];
        if (p->owner != i || !b->regions[p->region].tensors) continue;
        zero_status status = check_param(p, blueprint_optimizer(b, p->region), error);
        if (status) return status;
    }
    return ZERO_OK;
}
