#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/calls.h"
#include "tests/engine/toy_trainer.h"

#define ON(what, tier) "\"offload_" what "\": {\"device\": \"" tier "\", \"nvme_path\": \"state\"}"

/* The engine's settings that a program must not notice. Paths are relative to the test's own directory. */
static const struct way {
    const char *name;
    uint32_t stage, depth;
    enum calls_spans spans;
    const char *tiers, *comm; /* NULL: none */
    bool drive;               /* the optimizer's state is on one, as a shadow needs it */
    uint32_t ranks;           /* if not 0, for so many alone */
} ways[CALLS_WAYS] = {
    {"stage 0", 0, 1, CALLS_SLOTS, NULL, NULL, false, 0},
    {"stage 0 in spans", 0, 1, CALLS_WHOLE, NULL, NULL, false, 0},
    {"stage 1", 1, 1, CALLS_PIECES, NULL, NULL, false, 0},
    {"stage 1, state on nvme", 1, 2, CALLS_WHOLE, "\"sub_group_size\": 256, " ON("optimizer", "nvme"), NULL,
     true, 0},
    {"stage 2, state on cpu", 2, 1, CALLS_WHOLE, ON("optimizer", "cpu"), NULL, false, 0},
    {"stage 2, state on nvme", 2, 1, CALLS_PIECES, "\"sub_group_size\": 1, " ON("optimizer", "nvme"), NULL,
     true, 0},
    {"stage 3", 3, 2, CALLS_SLOTS, NULL, NULL, false, 0},
    {"stage 3, nothing ahead", 3, 0, CALLS_SLOTS, "\"reduce_bucket_size\": 1", NULL, false, 0},
    {"stage 3, kept after forward, all on nvme", 3, 1, CALLS_SLOTS,
     "\"sub_group_size\": 1, " ON("optimizer", "nvme") ", " ON("param", "nvme"),
     ", \"reshard_after_forward\": false", true, 0},
    {"stage 3, few live, state on nvme", 3, 1, CALLS_SLOTS,
     "\"stage3_max_live_parameters\": 900, " ON("optimizer", "nvme"), NULL, true, 0},
    {"stage 3, gradients on cpu, state on nvme", 3, 0, CALLS_SLOTS,
     ON("optimizer", "nvme") ", \"offload_gradients\": {\"device\": \"cpu\"}", NULL, true, 0},
    {"stage 3, second copies in pairs", 3, 1, CALLS_SLOTS, "\"zero_hpz_partition_size\": 2", NULL, false, 4},
};

uint32_t calls_pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static void draw_params(struct calls_model *m, uint64_t *state) {
    bool adds = calls_pick(state, 2);
    m->units = 3 + calls_pick(state, CALLS_UNITS_MAX - 2);
    for (uint32_t u = 0; u < m->units; u++) {
        m->params[u] = 1 + calls_pick(state, CALLS_PARAMS_MAX);
        for (uint32_t k = 0; k < m->params[u]; k++) {
            uint32_t flags = calls_pick(state, 6) == 0 && u + k ? ZERO_FROZEN : 0;
            if (adds && calls_pick(state, 2)) flags |= ZERO_ADDS_GRAD;
            if (calls_pick(state, 6) == 0) flags |= ZERO_NO_DECAY;
            if (m->type != ZERO_F32 && calls_pick(state, 4) == 0) flags |= ZERO_KEEP_FP32;
            m->param[u][k] =
                (struct calls_param){.count = 1 + calls_pick(state, CALLS_COUNT_MAX), .flags = flags};
        }
    }
}

/* A backward inside another one of its unit would overwrite its spans. */
static void add_always(struct calls_model *m) {
    for (uint32_t u = 0; u < m->units; u++)
        for (uint32_t k = 0; k < m->params[u]; k++)
            if (!(m->param[u][k].flags & ZERO_FROZEN)) m->param[u][k].flags |= ZERO_ADDS_GRAD;
}

/* Ties the last parameter of a unit, holds a unit, makes a segment: what the header allows together. */
static void draw_units(struct calls_model *m, uint64_t *state) {
    uint32_t u = 1 + calls_pick(state, m->units - 1);
    m->held = m->first = m->last = -1;
    m->free_order = !m->updates && calls_pick(state, 4) == 0;
    if (m->free_order && m->spans) add_always(m);
    if (m->free_order && calls_pick(state, 2)) m->bound = 1 + calls_pick(state, 3);
    if (calls_pick(state, 4) == 0) m->held = (int32_t)calls_pick(state, m->units);
    m->vertical &= !m->free_order && m->held < 0;
    bool sums =
        m->spans && m->held == 0; /* of spans the engine adds at the end of the use: other roundings */
    if (!m->vertical && calls_pick(state, 3) == 0 && m->held != (int32_t)u && !sums) {
        struct calls_param *p = &m->param[u][m->params[u] - 1];
        *p = m->param[0][0];
        p->tied = true;
    }
    if (calls_pick(state, 2)) {
        m->first = (int32_t)calls_pick(state, m->units - 1);
        m->last = m->first + 1 + (int32_t)calls_pick(state, m->units - 1 - (uint32_t)m->first);
    }
}

/* The first way that can train the model, and half of the others. */
static void draw_ways(struct calls_model *m, uint64_t *state) {
    for (uint32_t w = 0; w < CALLS_WAYS; w++) {
        bool same = w > 0 && !ways[w].stage && !m->spans; /* as the first */
        bool can = !same && (!m->shadow || ways[w].drive) && (!ways[w].ranks || ways[w].ranks == m->ranks);
        if (can && (!m->ways || calls_pick(state, 2))) m->ways |= 1u << w;
    }
}

void calls_model_draw(uint64_t seed, struct calls_model *out) {
    static const char *const optimizers[] = {"AdamW", "AdamW", "Lamb", "Adagrad"};
    static const double clips[] = {0, 1, 0.05};
    static const zero_dtype types[] = {ZERO_F32, ZERO_F32, ZERO_F32, ZERO_BF16, ZERO_BF16, ZERO_F16};
    static const uint32_t ranks[] = {1, 1, 1, 2, 2, 4};
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    struct calls_model *m = out;
    *m = (struct calls_model){.seed = seed,
                              .ranks = ranks[calls_pick(&state, 6)],
                              .micro_steps = 1 + calls_pick(&state, 3),
                              .threshold = calls_pick(&state, 2) ? 0 : 200,
                              .every = calls_pick(&state, 2),
                              .vertical = calls_pick(&state, 4) == 0,
                              .updates = calls_pick(&state, 3) == 0,
                              .type = types[calls_pick(&state, 6)],
                              .averages = calls_pick(&state, 2),
                              .spans = calls_pick(&state, 3) == 0,
                              .nans = calls_pick(&state, 4) == 0,
                              .clip = clips[calls_pick(&state, 3)],
                              .optimizer = optimizers[calls_pick(&state, 4)]};
    m->shadow = calls_pick(&state, m->updates ? 2 : 8) == 0;
    m->background = !m->shadow && calls_pick(&state, 6) == 0;
    m->spans &= !m->updates;
    if (m->updates && !m->shadow) {
        m->clip = 0, m->nans = false;
        if (m->type == ZERO_F16) m->type = ZERO_BF16;
    }
    draw_params(m, &state);
    draw_units(m, &state);
    draw_ways(m, &state);
}

void calls_way_config(const struct calls_model *m, uint32_t way, char *out, size_t capacity) {
    char optimizer[128], extra[128];
    snprintf(optimizer, sizeof optimizer,
             "{\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}", m->optimizer);
    snprintf(extra, sizeof extra, "%s%s", m->averages ? ", \"ema\": {\"decay\": 0.9}" : "",
             m->background ? ", \"checkpoint\": {\"async\": true}" : "");
    struct toy_setup setup = toy_setup_default();
    setup.stage = ways[way].stage, setup.depth = ways[way].depth;
    setup.tiers = ways[way].tiers ? ways[way].tiers : "\"sub_group_size\": 1024";
    setup.comm = ways[way].comm;
    setup.micro_steps = m->micro_steps, setup.mode = m->every ? "every" : "last";
    setup.vertical = m->vertical, setup.updates = m->updates, setup.shadow = m->shadow;
    setup.threshold = m->threshold, setup.clip = m->clip;
    setup.compute = m->type, setup.scale_power = 8;
    setup.optimizer = optimizer, setup.extra = extra;
    setup.timeout_s = 60;
    toy_config(&setup, out, capacity);
}

const char *calls_way_name(uint32_t way) { return ways[way].name; }

static const struct calls_param *root(const struct calls_model *m, uint32_t unit, uint32_t param) {
    const struct calls_param *p = &m->param[unit][param];
    return p->tied ? &m->param[0][0] : p;
}

/* In pieces: only every other unit, the others have slots. */
static bool has_spans(const struct calls_host *h, uint32_t unit) {
    return h->spans && (int32_t)unit != h->model->held && (h->spans == CALLS_WHOLE || unit % 2);
}

zero_dtype calls_type(const struct calls_host *h, uint32_t unit, uint32_t param) {
    return root(h->model, unit, param)->flags & ZERO_KEEP_FP32 ? ZERO_F32 : h->model->type;
}

zero_slot calls_slot(const struct calls_host *h, uint32_t unit, uint32_t param) {
    if (!has_spans(h, unit)) return h->slot[unit][param];
    uint32_t flags = root(h->model, unit, param)->flags;
    return (zero_slot){.param = (void *)h->own[unit][param],
                       .grad = flags & ZERO_FROZEN ? NULL : (void *)h->own_grad[unit][param],
                       .add = (flags & ZERO_ADDS_GRAD) != 0};
}

static zero_status add_param(struct calls_host *h, uint32_t unit, uint32_t param) {
    const struct calls_param *p = &h->model->param[unit][param];
    char name[16];
    snprintf(name, sizeof name, "p%u.%u", unit, param);
    zero_param given = {.struct_size = sizeof given,
                        .name = name,
                        .dims = 1,
                        .shape = {p->count},
                        .slot = &h->slot[unit][param],
                        .flags = p->tied ? 0 : p->flags,
                        .tied_to = p->tied ? "p0.0" : NULL};
    char *weights = (char *)h->own[unit][param], *grads = (char *)h->own_grad[unit][param];
    uint64_t cut = h->spans == CALLS_PIECES ? p->count / 3 : 0,
             bytes = cut * (calls_type(h, unit, param) == ZERO_F32 ? 4 : 2);
    zero_span spans[2] = {{weights, grads, cut}, {weights + bytes, grads + bytes, p->count - cut}};
    if (has_spans(h, unit)) given.spans = &spans[!cut], given.span_count = 1 + (cut > 0), given.slot = NULL;
    return zero_unit_add_param(h->unit[unit], &given);
}

zero_status calls_open(struct calls_host *h, uint32_t way) {
    const struct calls_model *m = h->model;
    h->spans = m->spans ? ways[way].spans : CALLS_SLOTS;
    zero_status status = ZERO_OK;
    if (m->free_order)
        status =
            m->bound ? zero_engine_free_order_within(h->engine, m->bound) : zero_engine_free_order(h->engine);
    for (uint32_t u = 0; u < m->units && !status; u++) {
        char name[16];
        snprintf(name, sizeof name, "u%u", u);
        status = zero_engine_add_unit(h->engine, name, &h->unit[u]);
        if (!status && (int32_t)u == m->held) status = zero_unit_hold(h->unit[u]);
        for (uint32_t k = 0; k < m->params[u] && !status; k++) status = add_param(h, u, k);
    }
    if (!status && m->first >= 0) status = zero_engine_add_segment(h->unit[m->first], h->unit[m->last]);
    return status ? status : zero_engine_commit(h->engine, NULL);
}

void calls_model_print(const struct calls_model *m, FILE *file) {
    fprintf(file,
            "  ranks %u, free order %s within %u, held %" PRId32 ", segment %" PRId32 " to %" PRId32 "%s%s\n",
            m->ranks, m->free_order ? "yes" : "no", m->bound, m->held, m->first, m->last,
            m->spans ? ", spans" : "", m->nans ? ", NaNs" : "");
    for (uint32_t u = 0; u < m->units; u++) {
        fprintf(file, "  unit %u:", u);
        for (uint32_t k = 0; k < m->params[u]; k++) {
            const struct calls_param *p = &m->param[u][k];
            fprintf(file, " p%u.%u [%u]%s%s%s%s%s", u, k, p->count, p->flags & ZERO_FROZEN ? " frozen" : "",
                    p->flags & ZERO_ADDS_GRAD ? " adds" : "", p->flags & ZERO_NO_DECAY ? " no decay" : "",
                    p->flags & ZERO_KEEP_FP32 ? " fp32" : "", p->tied ? " tied to p0.0" : "");
        }
        fputc('\n', file);
    }
}
