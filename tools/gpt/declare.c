/* Declares the units and parameters of an architecture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/zero.h"
#include "tools/gpt/model.h"

/* ---- the parameters of a unit ---- */

struct list { /* of one unit */
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

static struct name unit_name(const struct gpt_config *c, uint32_t unit) {
    struct name name = {"head"};
    if (unit <= c->layers) snprintf(name.chars, sizeof name.chars, "h.%u", unit - 1);
    if (unit == 0) strcpy(name.chars, "embedding");
    return name;
}

static struct name prefix_of(const struct gpt_config *c, uint32_t unit) {
    struct name prefix = {""};
    if (unit > 0 && unit <= c->layers)
        snprintf(prefix.chars, sizeof prefix.chars, architecture_of(c)->block_prefix, unit - 1);
    return prefix;
}

/* ---- declaring them to an engine ---- */

static zero_status declare_param(const struct gpt_config *c, zero_unit *handle, uint32_t unit,
                                 const struct declaration *d, zero_slot *slot) {
    bool tied = c->tied && d == &architecture_of(c)->head[HEAD_WEIGHT];
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix_of(c, unit).chars, d->name);
    zero_param param = {
        .struct_size = sizeof param,
        .name = name,
        .dims = d->columns == NONE ? 1 : 2,
        .shape = {extent_of(c, d->rows), extent_of(c, d->columns)},
        .tied_to = tied ? architecture_of(c)->embedding[TOKEN_WEIGHT].name : NULL,
        .slot = slot,
    };
    return zero_unit_add_param(handle, &param);
}

/* `stride`: slots from one parameter to the next; 0: all parameters share one slot. */
static zero_status declare_unit(const struct gpt_config *c, zero_engine *engine, uint32_t unit,
                                zero_slot *slots, uint32_t stride, zero_unit **out) {
    struct list list = list_of(c, unit);
    zero_status status = zero_engine_add_unit(engine, unit_name(c, unit).chars, out);
    for (uint32_t i = 0; i < list.count && !status; i++)
        if (list.item[i].name) status = declare_param(c, *out, unit, &list.item[i], slots + i * stride);
    return status;
}

static void lay_out_views(const struct gpt_config *c, uint32_t index, struct unit *unit) {
    struct list list = list_of(c, index);
    for (uint32_t i = 0; i < list.count; i++) {
        const struct declaration *d = &list.item[i];
        if (!d->name) continue;
        struct view *view = &unit->view[i];
        *view = (struct view){.rows = (uint32_t)extent_of(c, d->rows),
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

/* True if block `last` ends a segment. The last segment is not recomputed, because its activations are still in
 * memory. */
static bool ends_segment(const struct gpt_config *c, uint32_t last) {
    return c->recompute > 1 && (last + 1) % c->recompute == 0 && last + 1 < c->layers;
}

static struct unit *unit_of(struct gpt *gpt, uint32_t unit) {
    return unit == 0 ? &gpt->embedding : unit <= gpt->config.layers ? &gpt->blocks[unit - 1] : &gpt->head;
}

zero_status declare_units(struct gpt *gpt, struct zero_error *error) {
    const struct gpt_config *c = &gpt->config;
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u <= c->layers + 1 && !status; u++) {
        struct unit *unit = unit_of(gpt, u);
        lay_out_views(c, u, unit);
        status = declare_unit(c, gpt->engine, u, unit->slot, 1, &unit->handle);
        if (!status) status = note_kept(gpt, unit, error);
    }
    for (uint32_t i = 0; i < c->layers && !status; i++)
        if (ends_segment(c, i))
            status = zero_engine_add_segment(gpt->blocks[i + 1 - c->recompute].handle, gpt->blocks[i].handle);
    return status;
}

zero_status gpt_declare(zero_engine *engine, const struct gpt_config *config, zero_slot *slot) {
    struct gpt_config c = gpt_complete(config);
    zero_unit **units = calloc(c.layers + 2, sizeof *units);
    zero_status status = units ? ZERO_OK : ZERO_E_MEMORY;
    for (uint32_t u = 0; u <= c.layers + 1 && !status; u++)
        status = declare_unit(&c, engine, u, slot, 0, &units[u]);
    for (uint32_t i = 0; i < c.layers && !status; i++)
        if (ends_segment(&c, i)) status = zero_engine_add_segment(units[i + 2 - c.recompute], units[i + 1]);
    free(units);
    return status;
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
    if (unit == 0) return 0; /* the embedding is read, not multiplied */
    c.tied = false;          /* a tied head multiplies, too */
    return 2 * (double)(declared_elements(&c, unit, false) - declared_elements(&c, unit, true));
}
