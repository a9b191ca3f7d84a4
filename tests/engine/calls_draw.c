#include "tests/engine/calls.h"

void calls_guess_begin(struct calls_guess *g, const struct calls_model *model) {
    *g = (struct calls_guess){
        .model = model, .state = model->seed * 0xd1342543de82ef95u + 1, .again = -1, .next = CALLS_KINDS};
}

static uint32_t pick(struct calls_guess *g, uint32_t n) { return calls_pick(&g->state, n); }

static uint32_t passes_all(const struct calls_guess *g) {
    return g->model->vertical ? 1 : g->model->micro_steps;
}

static uint32_t use_micros(const struct calls_guess *g) {
    return g->model->vertical ? g->model->micro_steps : 1;
}

static uint32_t unit_at(const struct calls_guess *g, uint32_t place) {
    uint32_t units = g->model->units;
    return place < units ? place : 2 * units - 1 - place;
}

static struct calls_call call_of(enum calls_kind kind, uint32_t unit) {
    return (struct calls_call){.kind = kind, .unit = unit};
}

static struct calls_call end_of(const struct calls_use *use) {
    return call_of(use->backward ? CALL_backward_end : CALL_forward_end, use->unit);
}

/* ---- right calls ---- */

/* What a program does between passes and steps, beside training. */
static struct calls_call draw_between(struct calls_guess *g) {
    static const enum calls_kind kinds[] = {
        CALL_flush,     CALL_get,  CALL_get,       CALL_put,  CALL_put,          CALL_hash,     CALL_set_lr,
        CALL_ema_begin, CALL_park, CALL_save,      CALL_load, CALL_load_weights, CALL_load_ema, CALL_prune,
        CALL_get_owned, CALL_fill, CALL_put_owned, CALL_save, CALL_save_wait,    CALL_set_note,
    };
    return call_of(kinds[pick(g, sizeof kinds / sizeof kinds[0])], pick(g, g->model->units));
}

static struct calls_call draw_closed(struct calls_guess *g) {
    if (!g->filled) return call_of(CALL_fill, 0);
    if (g->parked) return call_of(CALL_unpark, 0);
    if (g->lent) return call_of(pick(g, 3) ? CALL_eval : CALL_ema_end, 0);
    if (g->interrupted) return call_of(pick(g, 4) ? CALL_resume : pick(g, 2) ? CALL_eval : CALL_train, 0);
    if (g->passes >= passes_all(g))
        return call_of(pick(g, 4) ? CALL_step : CALL_get, pick(g, g->model->units));
    if (g->passes == 0 && pick(g, 2)) return draw_between(g);
    return call_of(pick(g, 8) ? CALL_train : CALL_eval, 0);
}

/* In any order: uses begin inside others, and end in any order. */
static struct calls_call draw_free(struct calls_guess *g) {
    const struct calls_use *use = g->depth ? &g->use[pick(g, 8) ? g->depth - 1 : pick(g, g->depth)] : NULL;
    if (use && (g->depth == CALLS_UNITS_MAX || pick(g, 4))) return end_of(use);
    g->place++;
    if (!use && g->place > 2 * g->model->units) {
        g->open = false;
        return draw_closed(g);
    }
    uint32_t unit = pick(g, g->model->units);
    bool backward = g->training && g->forwarded >> unit & 1 && pick(g, 3);
    return call_of(backward ? CALL_backward_begin : CALL_forward_begin, unit);
}

/* Before a backward: the forward of the unit again, or those of the segment whose last unit it is. */
static bool draw_again(struct calls_guess *g, uint32_t unit, struct calls_call *out) {
    bool last = (int32_t)unit == g->model->last;
    if (g->again < 0 && pick(g, last ? 3 : 8) == 0) g->again = last ? g->model->first : (int32_t)unit;
    if (g->again < 0) return false;
    if (g->again == g->model->held) g->again++;
    *out = call_of(CALL_forward_begin, (uint32_t)g->again);
    if (g->again < (int32_t)unit && pick(g, 8) == 0) out->unit = unit; /* out of order */
    g->again = g->again >= (int32_t)unit ? -1 : g->again + 1;
    return true;
}

static struct calls_call draw_ordered(struct calls_guess *g) {
    uint32_t units = g->model->units, end = g->training ? 2 * units : units;
    struct calls_call again;
    if (g->depth && g->use[0].micros < use_micros(g) && g->training)
        return call_of(CALL_next_micro, g->use[0].unit);
    if (g->depth) return end_of(&g->use[0]);
    if (g->place == 0 && pick(g, 12) == 0) g->place = end; /* nothing in this pass: the data ran out */
    while (g->place < end) {
        uint32_t unit = unit_at(g, g->place);
        bool backward = g->place >= units, skips = pick(g, 20) == 0;
        if ((int32_t)unit != g->model->held && !skips && (!backward || g->forwarded >> unit & 1)) break;
        g->place++;
    }
    if (g->place == end) {
        g->open = false;
        return draw_closed(g);
    }
    uint32_t unit = unit_at(g, g->place);
    if (g->training && g->place == units && pick(g, 8) == 0) return call_of(CALL_eval, 0);
    if (g->place < units) return call_of(CALL_forward_begin, unit);
    return draw_again(g, unit, &again) ? again : call_of(CALL_backward_begin, unit);
}

/* ---- and wrong ones ---- */

static struct calls_call draw_kind(struct calls_guess *g) {
    enum calls_kind next = g->next;
    g->next = CALLS_KINDS;
    if (next != CALLS_KINDS) return call_of(next, 0);
    g->wild = g->filled && pick(g, 8) == 0;
    if (g->wild) return call_of((enum calls_kind)pick(g, CALLS_KINDS), pick(g, g->model->units));
    if (!g->open && !g->depth) return draw_closed(g);
    const struct calls_use *use = &g->use[g->depth ? g->depth - 1 : 0];
    if (g->depth && use->backward && pick(g, 8) == 0)
        return call_of(pick(g, 2) ? CALL_give : CALL_give_all, use->unit);
    return g->model->free_order ? draw_free(g) : draw_ordered(g);
}

/* A call that not all models have: gradients are not given where they are in spans; what a rank owns differs by ranks. */
static bool has(const struct calls_model *m, enum calls_kind kind) {
    bool gives = kind == CALL_give || kind == CALL_give_all;
    bool owned = kind == CALL_get_owned || kind == CALL_put_owned || kind == CALL_written;
    return !(gives && m->spans) && !(owned && m->ranks > 1);
}

struct calls_call calls_guess_draw(struct calls_guess *g) {
    struct calls_call call = draw_kind(g);
    if (!has(g->model, call.kind)) call.kind = CALL_sum;
    call.param = pick(g, g->model->params[call.unit]);
    call.number = pick(g, 1u << 20);
    return call;
}

/* ---- what became of it ---- */

static void learn_refused(struct calls_guess *g, enum calls_kind kind) {
    if (g->wild) return;
    bool begins = kind == CALL_forward_begin || kind == CALL_backward_begin;
    bool ends = kind == CALL_forward_end || kind == CALL_backward_end || kind == CALL_next_micro;
    if (begins && pick(g, 2)) g->place++;
    if (ends && pick(g, 2)) g->depth = 0;
    if (kind == CALL_train && pick(g, 2)) g->passes = passes_all(g);
    if (kind == CALL_step) g->passes = 0;
    if (kind == CALL_resume) g->interrupted = false;
    static const enum calls_kind ways_out[] = {CALL_cancel,  CALL_cancel,  CALL_cancel,
                                               CALL_ema_end, CALL_written, CALL_unpark};
    bool lost = kind == CALL_train || kind == CALL_eval || kind == CALL_step;
    if (pick(g, lost ? 2 : 4) == 0) g->next = ways_out[pick(g, sizeof ways_out / sizeof ways_out[0])];
}

static void learn_begin(struct calls_guess *g, const struct calls_call *call) {
    bool backward = call->kind == CALL_backward_begin;
    if (g->depth < CALLS_UNITS_MAX)
        g->use[g->depth++] = (struct calls_use){.unit = call->unit, .micros = 1, .backward = backward};
    g->backward |= backward;
    if (!backward && g->training) g->forwarded |= 1u << call->unit;
}

static void learn_end(struct calls_guess *g, const struct calls_call *call) {
    uint32_t at = g->depth, units = g->model->units;
    bool backward = call->kind == CALL_backward_end;
    while (at > 0 && (g->use[at - 1].unit != call->unit || g->use[at - 1].backward != backward)) at--;
    for (uint32_t i = at; i > 0 && i < g->depth; i++) g->use[i - 1] = g->use[i];
    if (at > 0) g->depth--;
    if (g->model->free_order) return;
    if (backward) g->place = 2 * units - call->unit;
    if (!backward && g->place < units) g->place = call->unit + 1;
}

static void learn_pass(struct calls_guess *g, enum calls_kind kind) {
    if (kind == CALL_eval && g->open && g->training && g->forwarded && !g->backward) g->interrupted = true;
    if (kind != CALL_eval) g->interrupted = g->backward = false;
    g->open = true, g->training = kind != CALL_eval, g->depth = 0, g->again = -1;
    g->place = kind == CALL_resume ? g->model->units : 0;
    if (kind == CALL_train) g->passes++, g->forwarded = 0;
}

static void learn_cancel(struct calls_guess *g) {
    bool eval = g->open && !g->training, first = g->interrupted || (g->open && !g->backward);
    if (!eval) g->passes = first && g->passes ? g->passes - 1 : 0, g->interrupted = false;
    g->open = false, g->depth = 0;
}

void calls_guess_learn(struct calls_guess *g, const struct calls_call *call, zero_status status) {
    if (status) return learn_refused(g, call->kind);
    switch (call->kind) {
    case CALL_train:
    case CALL_eval:
    case CALL_resume:
        return learn_pass(g, call->kind);
    case CALL_forward_begin:
    case CALL_backward_begin:
        return learn_begin(g, call);
    case CALL_forward_end:
    case CALL_backward_end:
        return learn_end(g, call);
    case CALL_next_micro:
        if (g->depth) g->use[g->depth - 1].micros++;
        return;
    case CALL_cancel:
        return learn_cancel(g);
    case CALL_put_owned:
        g->next = pick(g, 4) ? CALL_written : CALLS_KINDS;
        return;
    case CALL_step:
        g->passes = 0, g->open = false;
        return;
    case CALL_fill:
    case CALL_load:
        g->filled = true, g->passes = 0, g->open = false;
        return;
    case CALL_park:
        g->parked = true, g->open = false;
        return;
    case CALL_unpark:
        g->parked = false;
        return;
    case CALL_ema_begin:
        g->lent = true, g->open = false;
        return;
    case CALL_ema_end:
        g->lent = false, g->open = false;
        return;
    case CALL_flush:
    case CALL_get:
    case CALL_put:
    case CALL_hash:
        g->open = false;
        return;
    default:
        return;
    }
}
