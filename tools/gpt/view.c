/* The parameters and gradients that a unit's arithmetic uses between begin and end. If the engine has 16 bits, vectors
 * are converted to fp32 once per use, and gradients are computed in fp32 and rounded once, at the end. bf16 matrices
 * are multiplied as they are. fp16 matrices are converted, too, because oneDNN 2.6 multiplies fp16 on no CPU; their
 * products then round only the sums. Vectors that the engine keeps in fp32 are used as they are. */
#include "tools/gpt/math/parallel.h"
#include "tools/gpt/model.h"

enum { STEP_ELEMENTS = 1024, TASK_ELEMENTS = 64 * STEP_ELEMENTS };

static uint32_t tasks_of(uint64_t count) { return (uint32_t)((count + TASK_ELEMENTS - 1) / TASK_ELEMENTS); }

struct widening {
    const struct gpt *gpt;
    float *to;
    const uint16_t *from;
    uint64_t count;
};

static void widen_task(void *context, uint32_t index, uint32_t thread) {
    const struct widening *w = context;
    uint64_t at = (uint64_t)index * TASK_ELEMENTS, left = w->count - at;
    w->gpt->widen(w->to + at, w->from + at, left < TASK_ELEMENTS ? left : TASK_ELEMENTS);
}

/* The embedding's table is not converted, because only some of its rows are read. */
static bool multiplies_wide(const struct gpt *gpt, const struct unit *unit) {
    return !gpt->bf16 && unit - gpt->units >= gpt->vocab_blocks;
}

static void view_params(struct gpt *gpt, struct unit *unit) {
    float *wide = gpt->activations.wide_params;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++) {
        struct view *view = &unit->view[i];
        view->param = unit->slot[i].param;
        view->grad = unit->slot[i].grad;
        view->add = unit->slot[i].add;
        if (!gpt->widen || view->kept || !view->count || (view->matrix && !multiplies_wide(gpt, unit)))
            continue;
        struct widening w = {gpt, wide, unit->slot[i].param, view->count};
        parallel_run(gpt->threads, tasks_of(view->count), widen_task, &w);
        view->param = wide;
        wide += view->count;
    }
}

static void view_grads(struct gpt *gpt, struct unit *unit) {
    float *wide = gpt->activations.wide_grads;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX && gpt->narrow; wide += unit->view[i++].count)
        if (!unit->view[i].kept) unit->view[i].grad = unit->slot[i].grad ? wide : NULL, unit->view[i].add = 0;
}

void view_begin(struct gpt *gpt, struct unit *unit, bool backward) {
    view_params(gpt, unit);
    if (backward) view_grads(gpt, unit);
}

struct rounding {
    const struct gpt *gpt;
    const zero_slot *slot;
    const float *grad;
    uint64_t count;
};

static void round_step(const struct rounding *r, uint64_t first, uint64_t count) {
    float sum[STEP_ELEMENTS];
    const float *from = r->grad + first;
    uint16_t *to = (uint16_t *)r->slot->grad + first;
    if (r->slot->add) {
        r->gpt->widen(sum, to, count);
        r->gpt->kernels->add(sum, sum, from, count);
        from = sum;
    }
    r->gpt->narrow(to, from, count);
}

static void round_task(void *context, uint32_t index, uint32_t thread) {
    const struct rounding *r = context;
    uint64_t at = (uint64_t)index * TASK_ELEMENTS, end = at + TASK_ELEMENTS;
    if (end > r->count) end = r->count;
    for (; at < end; at += STEP_ELEMENTS)
        round_step(r, at, end - at < STEP_ELEMENTS ? end - at : STEP_ELEMENTS);
}

void view_end(struct gpt *gpt, struct unit *unit, bool backward) {
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX && gpt->narrow && backward; i++) {
        if (!unit->view[i].grad || unit->view[i].kept) continue;
        struct rounding r = {gpt, &unit->slot[i], unit->view[i].grad, unit->view[i].count};
        parallel_run(gpt->threads, tasks_of(r.count), round_task, &r);
    }
}
