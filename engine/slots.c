/* Where a use's parameters and gradients are: the slots that the host reads between begin and end. */
#include <string.h>

#include "engine/engine_internal.h"
#include "kernels/cast.h"

static bool belongs(const struct model *m, const struct zero_unit *unit, uint32_t owner) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (m->param[i].owner == owner) return true;
    return false;
}

/* A region's gradient starts anew: alignment gaps and parameters that this unit does not write are zero, so
 * that what is reduced is defined. Parameters of this unit will be overwritten by the host. */
void slots_start_gradient(zero_engine *e, const struct zero_unit *unit, uint16_t region) {
    const struct model_region *r = &e->model.region[region];
    uint8_t *grad = executor_address(e->executor, (struct buffer_ref){BUFFER_GRAD_FULL, region});
    uint64_t end = 0, bytes = dtype_bytes(e->precision.compute);
    for (uint32_t i = 0; i < r->params; i++) {
        struct model_param *p = &e->model.param[r->param[i]];
        p->written = !belongs(&e->model, unit, r->param[i]);
        memset(grad + end * bytes, 0, (p->offset - end) * bytes);
        if (p->written) memset(grad + p->offset * bytes, 0, p->count * bytes);
        end = p->offset + p->count;
    }
    memset(grad + end * bytes, 0, (r->padded - end) * bytes);
}

static void *param_address(const zero_engine *e, const struct model_param *p, enum buffer_kind kind) {
    uint8_t *flat = executor_address(e->executor, (struct buffer_ref){(uint16_t)kind, (uint16_t)p->region});
    return flat ? flat + p->offset * dtype_bytes(e->precision.compute) : NULL;
}

void slots_set(zero_engine *e, const struct zero_unit *unit, bool backward) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &e->model.param[i];
        zero_slot slot = {.param = param_address(e, p, BUFFER_PARAM_FULL)};
        if (p->spans) borrowed_take_weights(e, p, slot.param);
        if (backward && !e->regions[p->region].frozen) {
            slot.grad = param_address(e, p, BUFFER_GRAD_FULL);
            slot.add = e->model.param[p->owner].written;
        }
        if (p->slot) *p->slot = slot;
    }
}

/* The use is over: addresses are no longer valid; what the host wrote to memory of its own is taken. */
void slots_clear(zero_engine *e, const struct zero_unit *unit, bool backward) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &e->model.param[i], *owner = &e->model.param[p->owner];
        bool trains = backward && !e->regions[p->region].frozen;
        if (trains && p->spans)
            borrowed_give_gradients(e, p, param_address(e, p, BUFFER_GRAD_FULL), owner->written);
        if (backward) owner->written = true;
        if (p->slot) *p->slot = (zero_slot){0};
    }
}

void gradient_take(enum dtype dtype, void *sum, const void *gradient, uint64_t count, bool add) {
    enum { STEP_ELEMENTS = 1024 };
    float left[STEP_ELEMENTS], right[STEP_ELEMENTS];
    for (uint64_t at = 0; at < count; at += STEP_ELEMENTS) {
        uint64_t n = count - at < STEP_ELEMENTS ? count - at : STEP_ELEMENTS, skip = at * dtype_bytes(dtype);
        cast(right, DTYPE_F32, (const uint8_t *)gradient + skip, dtype, n);
        if (add) cast(left, DTYPE_F32, (uint8_t *)sum + skip, dtype, n);
        for (uint64_t i = 0; i < n && add; i++) right[i] += left[i];
        cast((uint8_t *)sum + skip, dtype, right, DTYPE_F32, n);
    }
}

zero_status zero_param_give_grad(zero_unit *unit, const char *param, const void *grad) {
    zero_engine *e = unit->engine;
    zero_status status = engine_check(e);
    if (status) return status;
    const struct model_param *p = param ? model_find(&e->model, param) : NULL;
    if (!p || p->unit != unit->index || e->regions[p->region].frozen || !grad)
        return refuse(ZERO_E_ARGUMENT,
                      "zero_param_give_grad: unit \"%s\" has no trainable parameter \"%s\", or grad is NULL",
                      unit->name, param ? param : "NULL");
    if (e->phase != PHASE_USE || e->unit != unit || !e->backward)
        return refuse(
            ZERO_E_ORDER,
            "zero_param_give_grad of \"%s\": call it between zero_backward_begin and _end of \"%s\"", param,
            unit->name);
    gradient_take(e->precision.compute, param_address(e, p, BUFFER_GRAD_FULL), grad, p->count,
                  e->model.param[p->owner].written);
    return ZERO_OK;
}
