/* Declaring the model and the host's memory, before commit. */
#include <inttypes.h>
#include <string.h>

#include "engine/groups.h"

zero_status engine_check_declaring(zero_engine *e, const char *what) {
    zero_status status = engine_check(e);
    if (status || (e->phase == PHASE_DECLARING && !e->planned)) return status;
    return refuse(ZERO_E_ORDER, "%s: the engine is %s; declare everything before zero_engine_%s", what,
                  e->planned ? "planned" : "committed", e->planned ? "plan" : "commit");
}

static zero_status refuse_error(const struct zero_error *error) {
    return refuse(error->code, "%s", error->message);
}

zero_status zero_engine_add_unit(zero_engine *e, const char *name, zero_unit **out) {
    zero_status status = engine_check_declaring(e, "zero_engine_add_unit");
    if (status) return status;
    if (!out)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_add_unit: unit \"%s\": out is NULL",
                      name ? name : "NULL");
    struct zero_error error;
    error_clear(&error);
    return model_add_unit(&e->model, e, name, out, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_unit_add_param(zero_unit *unit, const zero_param *param) {
    zero_status status = engine_check_declaring(unit->engine, "zero_unit_add_param");
    if (status) return status;
    if (!param) return refuse(ZERO_E_ARGUMENT, "zero_unit_add_param of \"%s\": param is NULL", unit->name);
    zero_param given = {0};
    memcpy(&given, param, param->struct_size < sizeof given ? param->struct_size : sizeof given);
    status = groups_assign(unit->engine, &given);
    if (status) return status;
    struct zero_error error;
    error_clear(&error);
    return model_add_param(&unit->engine->model, unit, &given, &error) ? refuse_error(&error) : ZERO_OK;
}

zero_status zero_engine_add_segment(zero_unit *first, zero_unit *last) {
    zero_engine *e = last->engine;
    zero_status status = engine_check_declaring(e, "zero_engine_add_segment");
    if (status) return status;
    if (first->engine != e || first->index > last->index)
        return refuse(
            ZERO_E_ARGUMENT,
            "zero_engine_add_segment: unit \"%s\" was not added before \"%s\"; give the first and the last "
            "unit of one engine, in the order in which they are used",
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

zero_status zero_engine_reserve(zero_engine *e, zero_tier tier, uint64_t bytes, const char *name) {
    zero_status status = engine_check_declaring(e, "zero_engine_reserve");
    if (status) return status;
    if ((unsigned)tier >= ZERO_TIERS || !name)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_reserve: tier %d, name %s", (int)tier,
                      name ? name : "NULL");
    if (e->reservations == RESERVATIONS_MAX)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_reserve: more than %d reservations; add them up",
                      RESERVATIONS_MAX);
    struct reservation *r = &e->reservation[e->reservations++];
    *r = (struct reservation){.tier = tier, .bytes = bytes};
    strncpy(r->name, name, sizeof r->name - 1);
    return ZERO_OK;
}

int zero_unit_trains(const zero_unit *unit) {
    const struct model *m = &unit->engine->model;
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (!(m->param[m->param[i].owner].flags & ZERO_FROZEN)) return 1;
    return 0;
}
