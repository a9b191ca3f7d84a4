#include "tools/plan/print/largest.h"

#include <math.h>

enum { HEAD = 128, NUMBER_MAX = 4096 };

static struct shapes llama_of(const struct shapes *s, uint32_t number) {
    uint64_t width = (uint64_t)HEAD * number;
    return (struct shapes){.name = "Llama's shape",
                           .source = "--largest",
                           .architecture = GPT_LLAMA,
                           .layers = number,
                           .width = width,
                           .heads = number,
                           .kv_heads = number,
                           .context = s->context,
                           .vocab = 32000,
                           .inner = (width * 8 / 3 + 255) / 256 * 256,
                           .vocab_block = s->vocab_block};
}

static struct shapes deeper_of(const struct shapes *s, uint32_t number) {
    struct shapes deeper = *s;
    deeper.layers = number;
    return deeper;
}

static struct shapes (*const models[])(const struct shapes *,
                                       uint32_t) = {[LARGEST_LLAMA] = llama_of, [LARGEST_DEEPER] = deeper_of};

struct search {
    const struct scenario *scenario;
    enum largest_kind kind;
    uint32_t low, above; /* `low` fits, or is 0; `above`, once there is one, does not fit */
    uint32_t first;      /* of table_fit */
    struct largest *out;
};

static zero_status try(struct search *s, uint32_t number, struct zero_error *error) {
    struct scenario scenario = *s->scenario;
    scenario.shapes = models[s->kind](&s->scenario->shapes, number);
    if (scenario.segments)
        scenario.recompute = (uint32_t)((scenario.shapes.layers + scenario.segments - 1) / scenario.segments);
    struct price best;
    TRY(table_fit(&scenario, &s->first, &best, error));
    if (best.fits)
        s->low = number, s->out->fits = best, s->out->shapes = scenario.shapes, s->out->found = true;
    else
        s->above = number, s->out->next = scenario.shapes, s->out->nearest = best, s->out->bounded = true;
    return ZERO_OK;
}

static zero_status double_up(struct search *s, struct zero_error *error) {
    for (uint32_t number = 1; number <= NUMBER_MAX && !s->out->bounded; number *= 2)
        TRY(try(s, number, error));
    return ZERO_OK;
}

/* A row's bytes grow linearly with the layers, so the line from `low` to `above` predicts about where the memory
 * ends. */
static uint32_t guess(const struct search *s) {
    const struct price *low = &s->out->fits, *above = &s->out->nearest;
    double share = 1;
    for (int t = 0; t < SHORTAGES; t++)
        if (above->left_bytes[t] < 0)
            share = fmin(share, low->left_bytes[t] / (low->left_bytes[t] - above->left_bytes[t]));
    uint32_t number = s->low + (uint32_t)(share * (s->above - s->low));
    return number <= s->low ? s->low + 1 : number < s->above ? number : s->above - 1;
}

static bool same_row(const struct cell *a, const struct cell *b) {
    return a->stage == b->stage && a->optimizer == b->optimizer && a->params == b->params &&
           !a->recompute == !b->recompute;
}

/* A plan of thousands of layers takes the engine seconds, so a few guesses come before the search halves. */
static zero_status narrow(struct search *s, struct zero_error *error) {
    enum { GUESSES = 4 };
    for (int i = 0; s->out->bounded && s->above - s->low > 1; i++) {
        bool line = s->low && i < GUESSES && same_row(&s->out->fits.cell, &s->out->nearest.cell);
        TRY(try(s, line ? guess(s) : s->low + (s->above - s->low) / 2, error));
    }
    return ZERO_OK;
}

static void find_bound(struct largest *out) {
    for (int t = 0; t < SHORTAGES; t++)
        if (out->nearest.short_bytes[t] > out->nearest.short_bytes[out->binds]) out->binds = (enum shortage)t;
}

zero_status largest_find(const struct scenario *scenario, enum largest_kind kind, struct largest *out,
                         struct zero_error *error) {
    *out = (struct largest){.shapes = models[kind](&scenario->shapes, 1)};
    struct search s = {.scenario = scenario, .kind = kind, .out = out};
    zero_status status = double_up(&s, error);
    if (!status) status = narrow(&s, error);
    find_bound(out);
    return status;
}
