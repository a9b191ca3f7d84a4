#include "tests/engine/plain.h"

#include <string.h>

#include "engine/api/inside.h"
#include "tests/device/discrete.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_number.h"

zero_status plain_declare(struct plain *p, zero_engine *engine, const struct plain_param *param,
                          uint32_t params) {
    return plain_declare_matrices(p, engine, param, params, NULL);
}

zero_status plain_declare_matrices(struct plain *p, zero_engine *engine, const struct plain_param *param,
                                   uint32_t params, const uint64_t *columns) {
    *p = (struct plain){.engine = engine, .param = param, .params = params};
    zero_engine_dtype(engine); /* plain_backward knows every type */
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < params && !status; i++) {
        if (i == 0 || strcmp(param[i].unit, param[i - 1].unit) != 0)
            status = zero_engine_add_unit(engine, param[i].unit, &p->unit[p->units++]);
        p->unit_of[i] = p->units - 1;
        uint64_t wide = columns ? columns[i] : 0;
        zero_param given = {.struct_size = sizeof given,
                            .name = param[i].name,
                            .dims = wide ? 2 : 1,
                            .shape = {wide ? param[i].count / wide : param[i].count, wide},
                            .flags = param[i].flags,
                            .tied_to = param[i].tied_to,
                            .slot = &p->slot[i]};
        if (!status) status = zero_unit_add_param(p->unit[p->units - 1], &given);
    }
    return status;
}

zero_status plain_open(struct plain *p, zero_engine *engine, const struct plain_param *param, uint32_t params,
                       zero_plan *out_plan) {
    zero_status status = plain_declare(p, engine, param, params);
    if (!status) status = zero_engine_commit(engine, out_plan);
    return status ? status : zero_engine_fill(engine, toy_fill, NULL);
}

zero_status plain_forward(struct plain *p, uint32_t unit) {
    zero_status status = zero_forward_begin(p->unit[unit]);
    for (uint64_t m = 1; m < zero_engine_use_micros(p->engine) && !status; m++)
        status = zero_unit_next_micro(p->unit[unit]);
    return status ? status : zero_forward_end(p->unit[unit]);
}

void plain_give(struct plain *p, uint32_t unit, uint32_t micro) {
    uint32_t rank = zero_engine_rank(p->engine);
    bool discrete = engine_running(p->engine)->discrete;
    if (discrete) discrete_enter();
    for (uint32_t i = 0; i < p->params; i++) {
        const zero_slot *slot = &p->slot[i];
        if (p->unit_of[i] != unit || !slot->grad) continue;
        zero_dtype dtype = zero_param_dtype(zero_engine_param(p->engine, p->param[i].name));
        for (uint64_t k = 0; k < p->param[i].count; k++) {
            float weight = toy_load(dtype, slot->param, k), gradient = plain_gradient(weight, k, rank, micro);
            toy_store(dtype, slot->grad, k, slot->add ? toy_load(dtype, slot->grad, k) + gradient : gradient);
        }
    }
    if (discrete) discrete_leave();
}

zero_status plain_backward(struct plain *p, uint32_t unit, uint32_t micro) {
    zero_status status = zero_backward_begin(p->unit[unit]);
    for (uint32_t m = 0; m < zero_engine_use_micros(p->engine) && !status; m++) {
        if (m) status = zero_unit_next_micro(p->unit[unit]);
        if (!status) plain_give(p, unit, micro + m);
    }
    return status ? status : zero_backward_end(p->unit[unit]);
}

zero_status plain_pass(struct plain *p, zero_mode mode, uint32_t micro) {
    zero_status status = zero_micro_begin(p->engine, mode);
    for (uint32_t u = 0; u < p->units && !status; u++) status = plain_forward(p, u);
    for (uint32_t u = p->units; u-- > 0 && !status && mode == ZERO_TRAIN;)
        status = plain_backward(p, u, micro);
    return status;
}

zero_status plain_step(struct plain *p, uint32_t micro_steps, zero_step_info *out) {
    zero_status status = ZERO_OK;
    uint32_t micros = (uint32_t)zero_engine_use_micros(p->engine);
    for (uint32_t m = 0; m < micro_steps && !status; m += micros) status = plain_pass(p, ZERO_TRAIN, m);
    return status ? status : zero_engine_step(p->engine, out);
}
