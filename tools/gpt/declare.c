/* The units and parameters, from the architecture's declarations. */
#include <stdio.h>

#include "engine/zero.h"
#include "tools/gpt/model.h"

static zero_status declare_param(struct gpt *gpt, struct unit *unit, uint32_t index, const char *prefix,
                                 const struct declaration *d, const char *tied_to) {
    struct view *view = &unit->view[index];
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, d->name);
    *view = (struct view){.rows = (uint32_t)extent_of(&gpt->config, d->rows),
                          .columns = (uint32_t)extent_of(&gpt->config, d->columns),
                          .matrix = d->columns != NONE};
    view->count = (uint64_t)view->rows * view->columns;
    if (!view->matrix) {
        view->sums_at = unit->sums;
        unit->sums += (uint32_t)view->count;
    }
    zero_param param = {
        .struct_size = sizeof param,
        .name = name,
        .dims = view->matrix ? 2 : 1,
        .shape = {view->rows, view->columns},
        .tied_to = tied_to,
        .slot = &unit->slot[index],
    };
    return zero_unit_add_param(unit->handle, &param);
}

/* tied_to: what the unit's last parameter is the same as, or NULL. */
static zero_status declare_unit(struct gpt *gpt, struct unit *unit, const char *name, const char *prefix,
                                const struct declaration *params, uint32_t count, const char *tied_to) {
    zero_status status = zero_engine_add_unit(gpt->engine, name, &unit->handle);
    for (uint32_t i = 0; i < count && !status; i++)
        if (params[i].name)
            status = declare_param(gpt, unit, i, prefix, &params[i], i + 1 == count ? tied_to : NULL);
    return status;
}

/* Of what is computed again together: all but the last blocks, whose activations are still there. */
static zero_status declare_segments(struct gpt *gpt) {
    uint32_t segment = gpt->config.recompute;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; segment > 1 && i + segment < gpt->config.layers && !status; i += segment)
        status = zero_engine_add_segment(gpt->blocks[i].handle, gpt->blocks[i + segment - 1].handle);
    return status;
}

zero_status declare_units(struct gpt *gpt) {
    const struct architecture *a = gpt->architecture;
    zero_status status =
        declare_unit(gpt, &gpt->embedding, "embedding", "", a->embedding, EMBEDDING_PARAMS, NULL);
    for (uint32_t i = 0; i < gpt->config.layers && !status; i++) {
        char name[32], prefix[32];
        snprintf(name, sizeof name, "h.%u", i);
        snprintf(prefix, sizeof prefix, a->block_prefix, i);
        status = declare_unit(gpt, &gpt->blocks[i], name, prefix, a->block, BLOCK_PARAMS, NULL);
    }
    if (!status) status = declare_segments(gpt);
    return status ? status
                  : declare_unit(gpt, &gpt->head, "head", "", a->head, HEAD_PARAMS,
                                 gpt->config.tied ? a->embedding[TOKEN_WEIGHT].name : NULL);
}

/* ---- without an engine ---- */

struct list { /* the parameters of one unit */
    const struct declaration *item;
    uint32_t count;
};

static struct list list_of(const struct gpt_config *c, uint32_t unit) {
    const struct architecture *a = architecture_of(c);
    if (unit == 0) return (struct list){a->embedding, EMBEDDING_PARAMS};
    if (unit <= c->layers) return (struct list){a->block, BLOCK_PARAMS};
    return (struct list){a->head, c->tied ? HEAD_WEIGHT : HEAD_PARAMS};
}

static uint64_t elements_of(const struct gpt_config *c, const struct declaration *d) {
    return d->name ? extent_of(c, d->rows) * extent_of(c, d->columns) : 0;
}

uint64_t declared_elements(const struct gpt_config *c, uint32_t unit, bool vectors_alone) {
    struct list list = list_of(c, unit);
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

/* Which unit has parameter `index`; that becomes its index there. */
static uint32_t unit_at(const struct gpt_config *c, uint32_t *index) {
    uint32_t before = params_of(list_of(c, 0)), in_block = params_of(list_of(c, 1));
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
    struct list list = list_of(&c, unit);
    for (; i < list.count; i++)
        if (list.item[i].name && index-- == 0) break;
    if (i == list.count) return false;
    const struct declaration *d = &list.item[i];
    char prefix[32] = "";
    if (unit > 0 && unit <= c.layers)
        snprintf(prefix, sizeof prefix, architecture_of(&c)->block_prefix, unit - 1);
    *out = (struct gpt_param){.dims = d->columns == NONE ? 1 : 2,
                              .shape = {extent_of(&c, d->rows), extent_of(&c, d->columns)},
                              .count = elements_of(&c, d)};
    snprintf(out->name, sizeof out->name, "%s%s", prefix, d->name);
    return true;
}
