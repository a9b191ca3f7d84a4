/* Declares the units and parameters of an architecture. */
#include <stdio.h>

#include "engine/zero.h"
#include "tools/gpt/model.h"

/* ---- the parameters of a unit ---- */

/* A unit of the engine: a unit of the model (0: the embedding, 1 ... layers, layers + 1: the head), and its block of the
 * vocabulary. */
struct place {
    uint32_t unit, block;
};

static struct place place_of(const struct gpt_config *c, uint32_t unit) {
    uint32_t blocks = gpt_vocab_blocks(c), head = blocks + c->layers;
    if (unit < blocks) return (struct place){0, unit};
    return unit < head ? (struct place){unit - blocks + 1, 0} : (struct place){c->layers + 1, unit - head};
}

struct list { /* of one unit of the model */
    const struct declaration *item;
    uint32_t count;
};

static struct list list_of(const struct gpt_config *c, uint32_t unit) {
    const struct architecture *a = architecture_of(c);
    if (unit == 0) return (struct list){a->embedding, EMBEDDING_PARAMS};
    if (unit <= c->layers) return (struct list){a->block, BLOCK_PARAMS};
    return (struct list){a->head, HEAD_PARAMS};
}

struct name {
    char chars[32];
};

static struct name unit_name(const struct gpt_config *c, struct place at) {
    struct name name;
    const char *end = at.unit == 0 ? "embedding" : "head";
    bool cut = gpt_vocab_blocks(c) > 1;
    if (at.unit > 0 && at.unit <= c->layers)
        snprintf(name.chars, sizeof name.chars, "h.%u", at.unit - 1);
    else
        snprintf(name.chars, sizeof name.chars, cut ? "%s.%u" : "%s", end, at.block);
    return name;
}

static struct name prefix_of(const struct gpt_config *c, uint32_t unit) {
    struct name prefix = {""};
    if (unit > 0 && unit <= c->layers)
        snprintf(prefix.chars, sizeof prefix.chars, architecture_of(c)->block_prefix, unit - 1);
    return prefix;
}

/* ---- declaring them to an engine ---- */

/* The first block has all that is not a row of the vocabulary. */
static bool declared_at(const struct declaration *d, struct place at) {
    return d->name && (at.block == 0 || d->rows == VOCAB);
}

static uint64_t rows_at(const struct gpt_config *c, const struct declaration *d, struct place at) {
    uint32_t rows = vocab_block_rows(c), left = c->vocab - at.block * rows;
    if (d->rows != VOCAB) return extent_of(c, d->rows);
    return left < rows ? left : rows;
}

static zero_status declare_param(const struct gpt_config *c, zero_unit *handle, struct place at,
                                 const struct declaration *d, zero_slot *slot) {
    bool tied = c->tied && d == &architecture_of(c)->head[HEAD_WEIGHT];
    bool cut = d->rows == VOCAB && gpt_vocab_blocks(c) > 1;
    char tensor[128], part[160], owner[160];
    const char *end = cut ? "%s.%u" : "%s";
    snprintf(tensor, sizeof tensor, "%s%s", prefix_of(c, at.unit).chars, d->name);
    snprintf(part, sizeof part, end, tensor, at.block);
    snprintf(owner, sizeof owner, end, architecture_of(c)->embedding[TOKEN_WEIGHT].name, at.block);
    zero_param param = {
        .struct_size = sizeof param,
        .name = part,
        .dims = d->columns == NONE ? 1 : 2,
        .shape = {rows_at(c, d, at), extent_of(c, d->columns)},
        .tied_to = tied ? owner : NULL,
        .tensor = cut && !tied ? tensor : NULL,
        .slot = slot,
    };
    return zero_unit_add_param(handle, &param);
}

/* `stride`: slots from one parameter to the next; 0: all parameters share one slot. */
static zero_status declare_unit(const struct gpt_config *c, zero_engine *engine, struct place at,
                                zero_slot *slots, uint32_t stride, zero_unit **out) {
    struct list list = list_of(c, at.unit);
    zero_status status = zero_engine_add_unit(engine, unit_name(c, at).chars, out);
    for (uint32_t i = 0; i < list.count && !status; i++)
        if (declared_at(&list.item[i], at))
            status = declare_param(c, *out, at, &list.item[i], slots + i * stride);
    return status;
}

static void lay_out_views(const struct gpt_config *c, struct place at, struct unit *unit) {
    struct list list = list_of(c, at.unit);
    for (uint32_t i = 0; i < list.count; i++) {
        const struct declaration *d = &list.item[i];
        if (!declared_at(d, at)) continue;
        struct view *view = &unit->view[i];
        *view = (struct view){.rows = (uint32_t)rows_at(c, d, at),
                              .columns = (uint32_t)extent_of(c, d->columns),
                              .matrix = d->columns != NONE};
        view->count = (uint64_t)view->rows * view->columns;
        if (view->matrix) continue;
        view->sums_at = unit->sums;
        unit->sums += (uint32_t)view->count;
    }
}

/* By param_groups. Matrices are multiplied in the compute type. */
static zero_status note_kept(struct gpt *gpt, struct unit *unit, struct zero_error *error) {
    uint32_t index = 0;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++) {
        struct view *view = &unit->view[i];
        if (!view->count) continue;
        const zero_handle *param = zero_unit_param(unit->handle, index++);
        view->kept = zero_param_dtype(param) != zero_engine_dtype(gpt->engine);
        if (!view->kept || (!view->matrix && gpt->backend->keeps_vectors)) continue;
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "parameter \"%s\": param_groups keep it in fp32, and this model computes with %s in one type: %s",
            zero_param_name(param), gpt->backend->keeps_vectors ? "its matrices" : "all parameters",
            gpt->backend->keeps_vectors ? "keep only norms and biases" : "remove dtype from the group");
    }
    return ZERO_OK;
}

static void note_adjoining_of(struct unit *unit) {
    const zero_handle *before = NULL;
    uint32_t index = 0;
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++) {
        if (!unit->view[i].count) continue;
        const zero_handle *param = zero_unit_param(unit->handle, index++);
        unit->view[i].adjoins = before && zero_param_adjoins(param, before);
        before = param;
    }
}

void note_adjoining(struct gpt *gpt) {
    for (uint32_t u = 0; u < gpt_units(&gpt->config); u++) note_adjoining_of(&gpt->units[u]);
}

/* True if block `last` ends a segment. The last segment is not recomputed, because its activations are still in
 * memory. */
static bool ends_segment(const struct gpt_config *c, uint32_t last) {
    return c->recompute > 1 && (last + 1) % c->recompute == 0 && last + 1 < c->layers;
}

zero_status declare_units(struct gpt *gpt, struct zero_error *error) {
    const struct gpt_config *c = &gpt->config;
    for (uint32_t u = 0; u < gpt_units(c); u++) {
        struct unit *unit = &gpt->units[u];
        lay_out_views(c, place_of(c, u), unit);
        TRY(declare_unit(c, gpt->engine, place_of(c, u), unit->slot, 1, &unit->handle));
        TRY(note_kept(gpt, unit, error));
    }
    for (uint32_t i = 0; i < c->layers; i++)
        if (ends_segment(c, i))
            TRY(zero_engine_add_segment(gpt->blocks[i + 1 - c->recompute].handle, gpt->blocks[i].handle));
    return ZERO_OK;
}

uint32_t trained_blocks(const struct gpt_config *c, const struct unit *units) {
    uint32_t ends = gpt_vocab_blocks(c), lowest = 0;
    while (lowest < ends + c->layers && !zero_unit_trains(units[lowest].handle)) lowest++;
    return lowest < ends ? c->layers : c->layers + ends - lowest;
}

zero_status declare_plan(zero_engine *engine, const struct gpt_config *c, zero_slot *slot,
                         struct unit *units) {
    struct unit *block = units + gpt_vocab_blocks(c);
    for (uint32_t u = 0; u < gpt_units(c); u++)
        TRY(declare_unit(c, engine, place_of(c, u), slot, 0, &units[u].handle));
    for (uint32_t i = 0; i < c->layers; i++)
        if (ends_segment(c, i))
            TRY(zero_engine_add_segment(block[i + 1 - c->recompute].handle, block[i].handle));
    return ZERO_OK;
}

/* ---- without an engine ---- */

static uint64_t elements_of(const struct gpt_config *c, const struct declaration *d) {
    return d->name ? extent_of(c, d->rows) * extent_of(c, d->columns) : 0;
}

/* The unit's parameters without tied ones. */
static struct list distinct(const struct gpt_config *c, uint32_t unit) {
    struct list list = list_of(c, unit);
    if (unit > c->layers && c->tied) list.count = HEAD_WEIGHT;
    return list;
}

uint64_t declared_elements(const struct gpt_config *c, uint32_t unit, bool vectors_alone) {
    struct list list = distinct(c, unit);
    uint64_t total = 0;
    for (uint32_t i = 0; i < list.count; i++)
        if (!vectors_alone || list.item[i].columns == NONE) total += elements_of(c, &list.item[i]);
    return total;
}

uint64_t gpt_parameters(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    return declared_elements(&c, 0, false) + c.layers * declared_elements(&c, 1, false) +
           declared_elements(&c, c.layers + 1, false);
}

static uint32_t params_of(struct list list) {
    uint32_t params = 0;
    for (uint32_t i = 0; i < list.count; i++) params += list.item[i].name != NULL;
    return params;
}

/* The unit that has parameter `index`. *index becomes the parameter's index in that unit. */
static uint32_t unit_at(const struct gpt_config *c, uint32_t *index) {
    uint32_t before = params_of(distinct(c, 0)), in_block = params_of(distinct(c, 1));
    if (*index < before) return 0;
    *index -= before;
    uint32_t block = *index / in_block;
    if (block > c->layers) block = c->layers;
    *index -= block * in_block;
    return block + 1;
}

bool gpt_param_at(const struct gpt_config *config, uint32_t index, struct gpt_param *out) {
    struct gpt_config c = gpt_complete(config);
    uint32_t unit = unit_at(&c, &index), i = 0;
    struct list list = distinct(&c, unit);
    for (; i < list.count; i++)
        if (list.item[i].name && index-- == 0) break;
    if (i == list.count) return false;
    const struct declaration *d = &list.item[i];
    *out = (struct gpt_param){.dims = d->columns == NONE ? 1 : 2,
                              .shape = {extent_of(&c, d->rows), extent_of(&c, d->columns)},
                              .count = elements_of(&c, d)};
    snprintf(out->name, sizeof out->name, "%s%s", prefix_of(&c, unit).chars, d->name);
    return true;
}

double gpt_unit_flops(const struct gpt_config *config, uint32_t unit) {
    struct gpt_config c = gpt_complete(config);
    struct place at = place_of(&c, unit);
    if (at.unit == 0) return 0; /* the embedding is read, not multiplied */
    if (at.unit > c.layers)     /* a tied head multiplies, too */
        return 2 * (double)rows_at(&c, &architecture_of(&c)->head[HEAD_WEIGHT], at) * c.width;
    return 2 * (double)(declared_elements(&c, at.unit, false) - declared_elements(&c, at.unit, true));
}
