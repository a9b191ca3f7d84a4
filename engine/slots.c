/* Where a use's parameters and gradients are: the slots that the host reads between begin and end. */
#include <string.h>

#include "engine/engine_internal.h"
#include "kernels/work.h"

/* ---- work on the host's stream ---- */

/* Nothing is queued where the host computes: it goes on at once. The calls that begin and end uses find a failure by
 * themselves. */
void slots_copy(zero_engine *e, void *target, const void *source, uint64_t bytes) {
    uint64_t ticket;
    if (!e->separate) memcpy(target, source, bytes);
    if (!e->separate) return;
    turn_take(&e->lock);
    e->device->ops->copy(e->device, DEVICE_COMPUTE, target, source, bytes, &ticket,
                         executor_error(e->executor));
    turn_give(&e->lock);
}

void slots_clear_memory(zero_engine *e, void *memory, uint64_t bytes) {
    uint64_t ticket;
    if (!e->separate) memset(memory, 0, bytes);
    if (!e->separate || !bytes) return;
    turn_take(&e->lock);
    e->device->ops->clear(e->device, DEVICE_COMPUTE, memory, bytes, &ticket, executor_error(e->executor));
    turn_give(&e->lock);
}

void gradient_take(zero_engine *e, void *sum, const void *gradient, uint64_t count, bool add) {
    uint64_t ticket, bytes = count * dtype_bytes(e->precision.compute);
    struct gradient_take_argument a = {sum, gradient, count, e->precision.compute, add};
    if (!e->separate) kernel_gradient_take.run(&a);
    if (!e->separate) return;
    struct device_work work = {.kernel = &kernel_gradient_take,
                               .stream = DEVICE_COMPUTE,
                               .reads = (uint8_t)(1 + add),
                               .writes = 1,
                               .read = {{(void *)gradient, bytes}, {sum, bytes}},
                               .write = {{sum, bytes}}};
    memcpy(work.argument, &a, sizeof a);
    turn_take(&e->lock);
    e->device->ops->submit(e->device, &work, &ticket, executor_error(e->executor));
    turn_give(&e->lock);
}

/* ---- a use's slots ---- */

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
    uint64_t begin = 0, bytes = dtype_bytes(e->precision.compute); /* begin: of what is cleared next */
    for (uint32_t i = 0; i < r->params; i++) {
        struct model_param *p = &e->model.param[r->param[i]];
        p->written = !belongs(&e->model, unit, r->param[i]);
        if (p->written) continue;
        slots_clear_memory(e, grad + begin * bytes, (p->offset - begin) * bytes);
        begin = p->offset + p->count;
    }
    slots_clear_memory(e, grad + begin * bytes, (r->padded - begin) * bytes);
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
    gradient_take(e, param_address(e, p, BUFFER_GRAD_FULL), grad, p->count, e->model.param[p->owner].written);
    return ZERO_OK;
}
