#include "engine/blueprint/blueprint.h"

#include <stdlib.h>

#include "kernels/orthogonalize.h"

static bool is_matrix(const struct blueprint *b, const struct model_param *p) {
    return b->regions[p->region].scope == SCOPE_MATRIX;
}

static bool any(const struct blueprint *b) { return b->policy.directions > 0; }

/* ---- what is refused ---- */

static zero_status check_param(const struct model_param *p, const struct optimizer *row,
                               enum optimizer_scope scope, struct zero_error *error) {
    bool rows = p->tensor_rows && p->tensor_rows != p->shape[0];
    if (scope == SCOPE_MATRIX && p->dims != 2)
        return error_set(error, ZERO_E_CONFIG,
                         "parameter \"%s\" has %u dimension%s, and %s updates matrices: name it in a group "
                         "of param_groups with \"optimizer\": \"AdamW\"",
                         p->name, p->dims, p->dims == 1 ? "" : "s", row->title);
    if (!p->tensor_part && !p->tensor_next && !rows) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "parameter \"%s\" is a part of \"%s\", and %s %s: name it in a group of param_groups "
                     "with \"optimizer\": \"AdamW\"",
                     p->name, p->tensor, row->title,
                     scope == SCOPE_MATRIX ? "updates whole matrices" : "needs norms of whole tensors");
}

static zero_status check_device(const struct blueprint *b, struct zero_error *error) {
    const struct optimizer *row = b->o.optimizer->scope == SCOPE_MATRIX ? b->o.optimizer : b->o.other;
    if (!b->terms.discrete || row->matrix_step) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "%s updates whole matrices, which it does not do on a GPU: set device.type to \"cpu\", "
                     "or take another optimizer",
                     row->title);
}

static zero_status check_params(const struct blueprint *b, enum optimizer_scope scope,
                                struct zero_error *error) {
    for (uint32_t i = 0; i < b->o.model->params; i++) {
        const struct model_param *p = &b->o.model->param[i];
        if (p->owner == i && b->regions[p->region].scope == scope)
            TRY(check_param(p, blueprint_optimizer(b, p->region), scope, error));
    }
    return ZERO_OK;
}

zero_status scopes_check(const struct blueprint *b, struct zero_error *error) {
    zero_status status = any(b) ? check_device(b, error) : ZERO_OK;
    if (!status && any(b)) status = check_params(b, SCOPE_MATRIX, error);
    return status ? status : check_params(b, SCOPE_TENSOR, error);
}

/* ---- owners ---- */

static uint32_t least_loaded(const double *load, uint32_t ranks) {
    uint32_t least = 0;
    for (uint32_t r = 1; r < ranks; r++)
        if (load[r] < load[least]) least = r;
    return least;
}

/* The region's largest matrix that has no owner yet. NULL: there is none. */
static const struct model_param *largest(const struct blueprint *b, const struct model_region *r) {
    const struct model_param *best = NULL;
    double most = 0;
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &b->o.model->param[r->param[i]];
        double flops = orthogonalize_flops(p->shape[0], p->shape[1]);
        if (b->matrix_owner[r->param[i]] == UINT32_MAX && flops > most) best = p, most = flops;
    }
    return best;
}

zero_status matrices_share_out(struct blueprint *b, struct zero_error *error) {
    if (!any(b)) return ZERO_OK;
    double *load = calloc(b->ranks, sizeof *load);
    b->matrix_owner = calloc(b->o.model->params, sizeof *b->matrix_owner);
    if (!load || !b->matrix_owner) {
        free(load);
        return error_set(error, ZERO_E_MEMORY, "no memory for the owners of matrices");
    }
    for (uint32_t i = 0; i < b->o.model->params; i++) b->matrix_owner[i] = UINT32_MAX;
    for (uint32_t k = 0; k < b->policy.refreshes; k++) {
        const struct model_region *r = &b->o.model->region[b->policy.refresh[k]];
        const struct model_param *p;
        while (b->regions[b->policy.refresh[k]].scope == SCOPE_MATRIX && (p = largest(b, r))) {
            uint32_t owner = least_loaded(load, b->ranks);
            b->matrix_owner[p - b->o.model->param] = owner;
            load[owner] += orthogonalize_flops(p->shape[0], p->shape[1]);
        }
    }
    free(load);
    return ZERO_OK;
}

uint64_t matrices_scratch_bytes(const struct blueprint *b) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < b->o.model->params && any(b); i++) {
        const struct model_param *p = &b->o.model->param[i];
        if (p->owner != i || !is_matrix(b, p)) continue;
        uint64_t floats = blueprint_optimizer(b, p->region)->matrix_scratch(p->shape[0], p->shape[1]);
        if (floats > most) most = floats;
    }
    return most * sizeof(float);
}
