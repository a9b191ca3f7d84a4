#include "tools/sim/blueprint.h"

#include <stdlib.h>
#include <string.h>

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
                                        .count = p->count,
                                        .columns = p->dims == 2 ? p->shape[1] : 0,
                                        .other = p->other,
                                        .code = p->code};
        strcpy(m.param[i].name, p->name);
    }
    *out = m;
    return ZERO_OK;
}

/* True if the transport's reductions need scratch; that of a discrete device comes on top. */
static bool stages_reductions(const struct blueprint *b) {
    struct executor_shape shape = blueprint_executor_options(b).shape;
    shape.discrete = shape.host_updates = false;
    return executor_staging_bytes(&shape) > 0;
}

struct sim_setup sim_setup_of(const struct blueprint *b) {
    const struct config *c = b->o.config;
    struct sim_setup setup = {.terms = b->terms,
                              .persistence_threshold = c->persistence_threshold,
                              .optimizer = b->o.optimizer,
                              .params = {*b->o.params, *b->o.params},
                              .clip = c->gradient_clipping,
                              .staging = stages_reductions(b),
                              .skip_unit = -1,
                              .chaos_events = UINT64_MAX,
                              .timeout_ns = (uint64_t)(c->comm.timeout_s * 1e9)};
    setup.params[1].weight_decay = 0;
    setup.other = b->o.other;
    if (b->o.other) setup.other_params[0] = setup.other_params[1] = b->o.other->defaults;
    return setup;
}
