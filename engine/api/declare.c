/* The calls that declare the model, its groups and the host's memory, before plan or commit. */

#include "engine/api/engine.h"

static zero_status check_declaring(zero_engine *e, const char *what) {
    zero_status status = pass_check(&e->pass, what);
    if (status || (e->pass.phase == PHASE_DECLARING && !e->planned)) return status;
    return refuse(ZERO_E_ORDER, "%s: the engine is %s; declare everything before zero_engine_%s", what,
                  e->planned ? "planned" : "committed", e->planned ? "plan" : "commit");
}

zero_status engine_check_declaring(zero_engine *e, const char *what) {
    zero_status status = engine_check(e, what);
    return status ? status : check_declaring(e, what);
}

zero_status zero_engine_add_unit(zero_engine *e, const char *name, zero_unit **out) {
    TRY(engine_check_declaring(e, "zero_engine_add_unit"));
    if (!out)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_add_unit: unit \"%s\": out is NULL",
                      name ? name : "NULL");
    struct zero_error error = ERROR_NONE;
    return model_add_unit(&e->model, e, name, out, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param) {
    if (!unit_given(unit, "zero_unit_add_param")) return ZERO_E_ARGUMENT;
    zero_engine *e = unit->engine;
    zero_param given = {0};
    struct zero_error error = ERROR_NONE;
    TRY(check_declaring(e, "zero_unit_add_param"));
    if (!param) return refuse(ZERO_E_ARGUMENT, "zero_unit_add_param of \"%s\": param is NULL", unit->name);
    TRY(sized_take(&given, sizeof given, param, param->struct_size, "zero_param"));
    if (given.flags & ZERO_KEEP_FP32) e->typed = true;
    if (!groups_assign(&e->training.groups, &e->model, &given, &error))
        model_add_param(&e->model, unit, &given, &error);
    return error.code ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last) {
    if (!unit_given(last, "zero_engine_add_segment") || !unit_given(first, "zero_engine_add_segment"))
        return ZERO_E_ARGUMENT;
    zero_engine *e = last->engine;
    TRY(check_declaring(e, "zero_engine_add_segment"));
    if (first->engine != e || first->index > last->index)
        return refuse(ZERO_E_ARGUMENT,
                      "zero_engine_add_segment: unit \"%s\" was not added before \"%s\"; give the first and "
                      "the last unit of one engine, in the order in which they are used",
                      first->name, last->name);
    for (uint32_t i = first->index; i <= last->index; i++)
        if (e->model.unit[i]->segment_first != e->model.unit[i]->segment_last)
            return refuse(ZERO_E_ARGUMENT,
                          "zero_engine_add_segment: unit \"%s\" is in another segment already",
                          e->model.unit[i]->name);
    for (uint32_t i = first->index; i <= last->index; i++) {
        e->model.unit[i]->segment_first = first->index;
        e->model.unit[i]->segment_last = last->index;
    }
    return ZERO_OK;
}

static zero_status free_order(zero_engine *e, uint32_t units, const char *what) {
    zero_status status = engine_check_declaring(e, what);
    if (!status) e->model.free_order = true, e->model.bound = units;
    return status;
}

zero_status zero_engine_free_order(zero_engine *e) { return free_order(e, 0, "zero_engine_free_order"); }

zero_status zero_engine_free_order_within(zero_engine *e, uint32_t units) {
    return free_order(e, units, "zero_engine_free_order_within");
}

zero_status zero_unit_hold(zero_unit *unit) {
    if (!unit_given(unit, "zero_unit_hold")) return ZERO_E_ARGUMENT;
    TRY(check_declaring(unit->engine, "zero_unit_hold"));
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (unit->engine->model.param[i].spans)
            return refuse(ZERO_E_ARGUMENT,
                          "zero_unit_hold: parameter \"%s\" of unit \"%s\" has spans, which are copied in "
                          "each use: give it a slot",
                          unit->engine->model.param[i].name, unit->name);
    unit->held = true;
    return ZERO_OK;
}

zero_status zero_engine_add_group(zero_engine *e, const zero_group *group, int *out) {
    zero_group given = {0};
    struct zero_error error = ERROR_NONE;
    TRY(engine_check_declaring(e, "zero_engine_add_group"));
    if (!group || !out) return refuse(ZERO_E_ARGUMENT, "zero_engine_add_group: group or out is NULL");
    TRY(sized_take(&given, sizeof given, group, group->struct_size, "zero_group"));
    return groups_add(&e->training.groups, &given, out, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_reserve(zero_engine *e, zero_tier tier, uint64_t bytes, const char *name) {
    struct zero_error error = ERROR_NONE;
    TRY(engine_check_declaring(e, "zero_engine_reserve"));
    if ((unsigned)tier >= ZERO_TIERS || !name)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_reserve: tier %d, name %s", (int)tier,
                      name ? name : "NULL");
    if (!reservations_add(&e->reservations, tier, bytes, name, &error)) return ZERO_OK;
    return refuse(error.code, "zero_engine_reserve: %s", error.message);
}

zero_status zero_engine_reserve_spare(zero_engine *e, uint64_t part_bytes, uint64_t parts, const char *name,
                                      uint64_t *out_granted) {
    struct zero_error error = ERROR_NONE;
    TRY(engine_check_declaring(e, "zero_engine_reserve_spare"));
    if (!name || !out_granted)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_reserve_spare: name or out_granted is NULL");
    if (!reservations_add_spare(&e->reservations, part_bytes, parts, name, out_granted, &error))
        return ZERO_OK;
    return refuse(error.code, "zero_engine_reserve_spare: \"%s\": %s", name, error.message);
}

zero_status zero_engine_set_optimizer(zero_engine *e, const zero_optimizer *optimizer) {
    zero_optimizer given = {0};
    struct zero_error error = ERROR_NONE;
    TRY(engine_check_declaring(e, "zero_engine_set_optimizer"));
    if (!optimizer) return refuse(ZERO_E_ARGUMENT, "zero_engine_set_optimizer: optimizer is NULL");
    TRY(sized_take(&given, sizeof given, optimizer, optimizer->struct_size, "zero_optimizer"));
    return training_set_optimizer(&e->training, &given, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_trace(zero_engine *e, uint64_t first_step, uint64_t steps) {
    TRY(engine_check_declaring(e, "zero_engine_trace"));
    if (!first_step) return refuse(ZERO_E_ARGUMENT, "zero_engine_trace: steps count from 1: first_step is 0");
    e->trace_steps = (struct trace_steps){first_step, steps};
    return ZERO_OK;
}

static bool has_trained(const struct model *m, const struct zero_unit *unit) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (!(m->param[m->param[i].owner].flags & ZERO_FROZEN)) return true;
    return false;
}

int zero_unit_trains(const zero_unit *unit) {
    if (!unit_given(unit, "zero_unit_trains")) return 0;
    const struct model *m = &unit->engine->model;
    bool trained = has_trained(m, unit);
    for (uint32_t i = 0; i < m->units && !trained; i++)
        trained = m->unit[i]->held && has_trained(m, m->unit[i]);
    return trained;
}
