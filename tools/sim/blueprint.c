#include "tools/sim/blueprint.h"

#include <stdlib.h>
#include <string.h>

#include "engine/executor/executor.h"

zero_status sim_model_of(const struct blueprint *b, const uint64_t *unit_flops, struct sim_model *out,
                         struct zero_error *error) {
    const struct model *from = b->o.model;
    struct sim_model m = {.units = from->units, .params = from->params};
    m.unit = calloc(m.units, sizeof *m.unit);
    m.param = calloc(m.params, sizeof *m.param);
    if (!m.unit || !m.param) {
        sim_model_free(&m);
        return error_set(error, ZERO_E_MEMORY, "no memory for a copy of the model");
    }
    for (uint32_t u = 0; u < m.units; u++) {
        strcpy(m.unit[u].name, from->unit[u]->name);
        m.unit[u].flops = unit_flops ? unit_flops[u] : 0;
    }
    for (uint32_t i = 0; i < m.params; i++) {
        const struct model_param *p = &from->param[i];
        bool tied = p->owner != i;
        m.param[i] = (struct sim_param){.tied_to = tied ? from->param[p->owner].name : NULL,
                                        .unit = p->unit,
                                        .flags = p->flags,
                                        .count = p->count};
        strcpy(m.param[i].name, p->name);
    }
    *out = m;
    return ZERO_OK;
}

/* True if the transport's reductions need scratch; a discrete device's additional scratch is planned for the same
 * case. */
static bool stages_reductions(const struct blueprint *b) {
    struct executor_options o = {.policy = (struct policy *)&b->policy,
                                 .model = b->o.model,
                                 .precision = b->precision,
                                 .gradient_bits = b->gradient_bits,
                                 .native_reduction = b->o.config->comm.reduction == CONFIG_REDUCTION_NATIVE};
    memcpy(o.group, b->o.group, sizeof o.group);
    return executor_staging_bytes(&o) > 0;
}

zero_status sim_setup_of(const struct blueprint *b, struct sim_setup *out, struct zero_error *error) {
    const struct config *c = b->o.config;
    const struct policy *p = &b->policy;
    *out = (struct sim_setup){.stage = p->stage,
                              .mesh = {p->mesh[AXIS_SHARD], p->mesh[AXIS_REPLICATE]},
                              .accumulation = p->accumulation,
                              .micro_steps = p->micro_steps,
                              .depth = p->depth,
                              .backward_depth = 1 + p->backward_depth,
                              .live_max = p->live_max,
                              .ahead_max = p->ahead_max,
                              .param_bits = b->param_bits,
                              .gradient_bits = b->gradient_bits,
                              .shadow = b->plan.shadow,
                              .discrete = b->plan.discrete,
                              .persistence_threshold = c->persistence_threshold,
                              .precision = b->precision,
                              .optimizer = b->o.optimizer,
                              .params = {*b->o.params, *b->o.params},
                              .clip = c->gradient_clipping,
                              .state_tier = (enum tier_kind)c->optimizer_tier,
                              .param_tier = b->plan.param_tier,
                              .chunk_elements_max = b->plan.layout.chunk_elements,
                              .resident_bytes = b->plan.layout.resident_bytes,
                              .slots = b->plan.layout.slots,
                              .message_bytes = b->plan.row_bytes[MEMORY_MESSAGES],
                              .checkpoint_bytes = b->plan.row_bytes[MEMORY_CHECKPOINT],
                              .native_reduction = c->comm.reduction == CONFIG_REDUCTION_NATIVE,
                              .staging = stages_reductions(b),
                              .skip_unit = -1,
                              .chaos_events = UINT64_MAX,
                              .timeout_ns = (uint64_t)(c->comm.timeout_s * 1e9)};
    out->params[1].weight_decay = 0;
    return ZERO_OK;
}
