/* The checks at the start of each call: the engine exists, has not failed, and is in a state that allows the call. */
#include "engine/api/engine.h"
#include "engine/state/background_save.h"

bool engine_given(const zero_engine *e, const char *what) {
    if (e) return true;
    failure_call(what, NULL);
    refuse(ZERO_E_ARGUMENT, "%s: the engine is NULL: check what zero_engine_init returned, and why", what);
    return false;
}

bool unit_given(const zero_unit *unit, const char *what) {
    failure_call(what, unit ? unit->name : NULL);
    if (!unit)
        refuse(ZERO_E_ARGUMENT, "%s: the unit is NULL: give one that zero_engine_add_unit returned", what);
    return unit;
}

zero_status engine_check(zero_engine *e, const char *what) {
    failure_call(what, NULL);
    return engine_given(e, what) ? pass_check(&e->pass, what) : ZERO_E_ARGUMENT;
}

zero_status engine_check_own_weights(const zero_engine *e, const char *what) {
    if (!e->state.averaged) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: the averages are in the place of the weights: call zero_engine_ema_end first", what);
}

zero_status engine_check_between(zero_engine *e, const char *what) {
    zero_status status = engine_check(e, what);
    if (!status) status = pass_check_between(&e->pass, what);
    if (!status) status = engine_check_own_weights(e, what);
    return status ? status : background_save_finish(&e->state);
}

zero_status engine_check_updates(const zero_engine *e, const char *what) {
    return pass_updates(&e->pass) ? refuse(ZERO_E_ORDER, PASS_UPDATES, what) : ZERO_OK;
}

zero_status engine_check_steps(zero_engine *e, const char *what) {
    zero_status status = engine_check_between(e, what);
    if (status || !e->pass.micro) return status;
    return refuse(ZERO_E_ORDER, "%s: call it between steps, not between micro-steps", what);
}

zero_status engine_check_filled(const zero_engine *e, const char *what) {
    if (e->state.filled) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: the weights have no values yet: call zero_engine_fill or zero_engine_load first",
                  what);
}

zero_status engine_check_written(const zero_engine *e, const char *what) {
    if (!e->state.unseen) return ZERO_OK;
    return refuse(ZERO_E_ORDER,
                  "%s: other ranks do not know what zero_param_put_owned wrote: all ranks call "
                  "zero_engine_written first",
                  what);
}
