#include "tools/plan/largest.h"

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
    struct largest *out;
};

static zero_status try(struct search *s, uint32_t number, bool *out_fits, struct zero_error *error) {
    struct scenario scenario = *s->scenario;
    scenario.shapes = models[s->kind](&s->scenario->shapes, number);
    struct price best;
    zero_status status = table_fit(&scenario, &best, error);
    if (status) return status;
    *out_fits = best.fits;
    if (best.fits)
        s->out->shapes = scenario.shapes, s->out->found = true;
    else
        s->out->next = scenario.shapes, s->out->nearest = best, s->out->bounded = true;
    return ZERO_OK;
}

/* *out_fits fits or is 0; *out_above does not fit, or is beyond the largest that is tried. */
static zero_status double_up(struct search *s, uint32_t *out_fits, uint32_t *out_above,
                             struct zero_error *error) {
    bool fits = true;
    zero_status status = ZERO_OK;
    *out_fits = 0;
    for (*out_above = 1; *out_above <= NUMBER_MAX && fits && !status; *out_above *= 2) {
        status = try(s, *out_above, &fits, error);
        if (!status && !fits) break;
        *out_fits = *out_above;
    }
    return status;
}

static void find_bound(struct largest *out) {
    for (int t = 0; t < SHORTAGES; t++)
        if (out->nearest.short_bytes[t] > out->nearest.short_bytes[out->binds]) out->binds = (enum shortage)t;
}

zero_status largest_find(const struct scenario *scenario, enum largest_kind kind, struct largest *out,
                         struct zero_error *error) {
    *out = (struct largest){.shapes = models[kind](&scenario->shapes, 1)};
    struct search s = {scenario, kind, out};
    uint32_t low, above;
    zero_status status = double_up(&s, &low, &above, error);
    while (!status && out->bounded && above - low > 1) {
        uint32_t middle = low + (above - low) / 2;
        bool fits;
        status = try(&s, middle, &fits, error);
        if (fits)
            low = middle;
        else
            above = middle;
    }
    find_bound(out);
    return status;
}
