/* What a unit's arithmetic sees between begin and end. In bf16 compute the engine's vectors are widened once per use,
 * its matrices are multiplied as they are, and gradients are made in fp32 and rounded once, at the end. */
#include "tools/gpt/model.h"
#include "tools/gpt/parallel.h"

static void view_params(struct gpt *gpt, struct unit *unit) {
    float *wide = gpt->activations.wide_params;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++) {
        struct view *view = &unit->view[i];
        view->param = unit->slot[i].param;
        view->grad = unit->slot[i].grad;
        view->add = unit->slot[i].add;
        if (!gpt->bf16 || view->matrix || !view->count) continue;
        gpt->kernels->widen(wide, unit->slot[i].param, view->count);
        view->param = wide;
        wide += view->count;
    }
}

static void view_grads(struct gpt *gpt, struct unit *unit) {
    float *wide = gpt->activations.wide_grads;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX && gpt->bf16; wide += unit->view[i++].count)
        unit->view[i].grad = unit->slot[i].grad ? wide : NULL, unit->view[i].add = 0;
}

void view_begin(struct gpt *gpt, struct unit *unit, bool backward) {
    view_params(gpt, unit);
    if (backward) view_grads(gpt, unit);
}

struct rounding {
    const struct kernels *kernels;
    const zero_slot *slot;
    const float *grad;
    uint64_t count;
};

enum { STEP_ELEMENTS = 1024, TASK_ELEMENTS = 64 * STEP_ELEMENTS };

static void round_step(const struct rounding *r, uint64_t first, uint64_t count) {
    float sum[STEP_ELEMENTS];
    const float *from = r->grad + first;
    uint16_t *to = (uint16_t *)r->slot->grad + first;
    if (r->slot->add) {
        r->kernels->widen(sum, to, count);
        r->kernels->add(sum, sum, from, count);
        from = sum;
    }
    r->kernels->narrow(to, from, count);
}

static void round_task(void *context, uint32_t index, uint32_t thread) {
    const struct rounding *r = context;
    uint64_t at = (uint64_t)index * TASK_ELEMENTS, end = at + TASK_ELEMENTS;
    if (end > r->count) end = r->count;
    for (; at < end; at += STEP_ELEMENTS)
        round_step(r, at, end - at < STEP_ELEMENTS ? end - at : STEP_ELEMENTS);
}

void view_end(struct gpt *gpt, struct unit *unit, bool backward) {
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX && gpt->bf16 && backward; i++) {
        if (!unit->view[i].grad) continue;
        struct rounding r = {gpt->kernels, &unit->slot[i], unit->view[i].grad, unit->view[i].count};
        parallel_run(gpt->threads, (uint32_t)((r.count + TASK_ELEMENTS - 1) / TASK_ELEMENTS), round_task, &r);
    }
}
