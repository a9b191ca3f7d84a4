#include "engine/loop/slots.h"

#include <string.h>

enum dtype slots_dtype(const struct pass *pass, const struct model_param *p) {
    return blueprint_precision_of(pass->blueprint, p->region).compute;
}

/* True if the host adds to the gradient from the first use on: it declared this, or other uses may come in between. */
static bool starts_at_zero(const struct model *m, const struct model_param *p) {
    return p->flags & ZERO_ADDS_GRAD || m->unit[p->unit]->held || m->free_order;
}

static bool grad_lent(const struct pass *pass, const struct model_param *p) {
    return pass->blueprint->regions[p->region].grad_lent;
}

/* The buffer that the present backward writes. */
static struct buffer_ref whole_gradient(const struct pass *pass, uint32_t region) {
    return (struct buffer_ref){(uint16_t)policy_gradient(&pass->blueprint->regions[region]),
                               (uint16_t)region};
}

static bool grad_given(const struct pass *pass, uint32_t region) {
    return pass->blueprint->regions[region].grad_given;
}

static void clear_spans(struct pass *pass, const struct model_param *p) {
    borrowed_clear_gradients(pass->run, slots_dtype(pass, p), p);
}

/* Sets `written` to false for the gradients that the host will overwrite, which are those of the unit's parameters; and to true for the
 * region's other gradients, which begin as zeros. */
static void mark_overwritten(const struct model *m, const struct zero_unit *unit, uint16_t region) {
    const struct model_region *r = &m->region[region];
    for (uint32_t i = 0; i < r->params; i++) m->param[r->param[i]].written = true;
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *owner = &m->param[m->param[i].owner];
        if (owner->region == region) owner->written = starts_at_zero(m, owner);
    }
}

static void start_lent(struct pass *pass, const struct model_region *r) {
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &pass->model->param[r->param[i]];
        if (p->written) clear_spans(pass, p);
    }
}

/* A region's gradient starts anew: alignment gaps and parameters that this unit does not write are zero, so
 * that what is reduced is defined. Parameters of this unit will be overwritten by the host. */
void slots_start_gradient(struct pass *pass, const struct zero_unit *unit, uint16_t region) {
    const struct model_region *r = &pass->model->region[region];
    mark_overwritten(pass->model, unit, region);
    if (pass->blueprint->regions[region].grad_lent) {
        start_lent(pass, r);
        return;
    }
    for (uint32_t i = 0; i < r->params && grad_given(pass, region); i++)
        lent_give(&pass->model->region[region], pass->model->param[r->param[i]].offset, NULL);
    if (grad_given(pass, region)) return;
    uint8_t *grad = executor_address(pass->run->executor, whole_gradient(pass, region));
    uint64_t begin = 0, /* the first element that is cleared next */
        bytes = dtype_bytes(blueprint_precision_of(pass->blueprint, region).compute);
    for (uint32_t i = 0; i < r->params; i++) {
        const struct model_param *p = &pass->model->param[r->param[i]];
        if (p->written) continue;
        host_stream_clear(pass->run, grad + begin * bytes, (p->offset - begin) * bytes);
        begin = p->offset + p->count;
    }
    host_stream_clear(pass->run, grad + begin * bytes, (r->padded - begin) * bytes);
}

/* The address of a parameter or gradient in its region's buffer. A lent one is in the owner's span; NULL: in several spans. */
static void *address_in(const struct pass *pass, const struct model_param *p, enum buffer_kind kind,
                        uint8_t *flat) {
    const struct region *r = &pass->blueprint->regions[p->region];
    const struct model_param *owner = &pass->model->param[p->owner];
    bool params = kind == BUFFER_PARAM_FULL;
    if (flat) return flat + p->offset * dtype_bytes(slots_dtype(pass, p));
    if (!(params ? r->lent : r->grad_lent) || owner->span_count != 1) return NULL;
    return params ? owner->spans->param : owner->spans->grad;
}

static void *param_address(const struct pass *pass, const struct model_param *p) {
    struct buffer_ref ref = {BUFFER_PARAM_FULL, (uint16_t)p->region};
    return address_in(pass, p, BUFFER_PARAM_FULL, executor_address(pass->run->executor, ref));
}

void *slots_gradient(const struct pass *pass, const struct model_param *p) {
    if (grad_given(pass, p->region)) return NULL;
    return address_in(pass, p, BUFFER_GRAD_FULL,
                      executor_address(pass->run->executor, whole_gradient(pass, p->region)));
}

static void *lasting_address(const struct pass *pass, const struct model_param *p, enum buffer_kind kind) {
    struct buffer_ref ref = {(uint16_t)kind, (uint16_t)p->region};
    return address_in(pass, p, kind, executor_lasting_address(pass->run->executor, ref));
}

void slots_addresses(const struct pass *pass, const struct model_param *p, zero_slot *out) {
    bool none = pass->blueprint->regions[p->region].frozen || grad_given(pass, p->region);
    *out = (zero_slot){.param = lasting_address(pass, p, BUFFER_PARAM_FULL),
                       .grad = none ? NULL : lasting_address(pass, p, BUFFER_GRAD_FULL)};
}

/* The pointer may be of any type. */
static void set_pointer(void **pointer, const void *address, uint64_t offset_bytes) {
    if (!pointer) return;
    if (address) address = (const void *)((uintptr_t)address - offset_bytes);
    memcpy(pointer, &address, sizeof address);
}

static void tell_host(const struct pass *pass, const struct model_param *p, zero_slot slot) {
    uint64_t offset_bytes = p->pointer_offset * dtype_bytes(slots_dtype(pass, p));
    if (p->slot) *p->slot = slot;
    set_pointer(p->param_pointer, slot.param, offset_bytes);
    set_pointer(p->grad_pointer, slot.grad, offset_bytes);
}

/* The owner's spans have the weights already, where they are lent. */
static void take_weights(struct pass *pass, struct model_param *p, const void *flat) {
    enum dtype dtype = slots_dtype(pass, p);
    if (!pass->blueprint->regions[p->region].lent)
        borrowed_take_weights(pass->run, dtype, p, flat);
    else if (p != &pass->model->param[p->owner])
        borrowed_take_lent(pass->run, dtype, p, &pass->model->region[p->region]);
}

void slots_give_weights(struct pass *pass) {
    for (uint32_t i = 0; i < pass->model->params; i++) {
        struct model_param *p = &pass->model->param[i];
        if (p->spans) take_weights(pass, p, param_address(pass, p));
    }
}

void slots_set(struct pass *pass, const struct zero_unit *unit, bool backward) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &pass->model->param[i];
        zero_slot slot = {.param = param_address(pass, p)};
        if (p->spans) take_weights(pass, p, slot.param);
        if (backward && !pass->blueprint->regions[p->region].frozen) {
            if (p->spans && p->flags & ZERO_ADDS_GRAD && !grad_lent(pass, p)) clear_spans(pass, p);
            slot.grad = slots_gradient(pass, p);
            slot.add = pass->model->param[p->owner].written;
        }
        tell_host(pass, p, slot);
    }
}

void slots_set_held(struct pass *pass, bool backward) {
    for (uint32_t i = 0; i < pass->model->helds; i++)
        slots_set(pass, pass->model->unit[pass->model->held[i]], backward);
}

void slots_clear_held(struct pass *pass) {
    for (uint32_t i = 0; i < pass->model->helds; i++)
        slots_clear(pass, pass->model->unit[pass->model->held[i]], false);
}

static void take_spans(struct pass *pass, const struct model_param *p) {
    struct model_param *owner = &pass->model->param[p->owner];
    if (grad_lent(pass, p)) return; /* it is there */
    borrowed_give_gradients(pass->run, slots_dtype(pass, p), p, slots_gradient(pass, p), owner->written,
                            pass->threads);
}

/* slots_set clears the host's gradients again when the use goes on. */
void slots_step_aside(struct pass *pass, const struct zero_unit *unit, bool backward) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &pass->model->param[i];
        bool host_adds = backward && p->spans && p->flags & ZERO_ADDS_GRAD;
        if (!host_adds || pass->blueprint->regions[p->region].frozen) continue;
        take_spans(pass, p);
        pass->model->param[p->owner].written = true;
    }
}

/* Ends the use: clears the addresses, and takes gradients that the host wrote to its own memory. */
void slots_clear(struct pass *pass, const struct zero_unit *unit, bool backward) {
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &pass->model->param[i], *owner = &pass->model->param[p->owner];
        bool trains = backward && !pass->blueprint->regions[p->region].frozen;
        if (trains && p->spans) take_spans(pass, p);
        if (backward) owner->written = true;
        tell_host(pass, p, (zero_slot){0});
    }
}
