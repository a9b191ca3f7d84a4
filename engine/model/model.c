#include "engine/model/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/integer.h"
#include "engine/base/utf8.h"
#include "engine/model/lent.h"
#include "engine/model/tensor.h"

/* Flags of a host. Those of passes say nothing of what is stored. */
enum {
    PASS_FLAGS = ZERO_ADDS_GRAD | ZERO_GIVES_GRAD,
    PARAM_FLAGS = ZERO_FROZEN | ZERO_NO_DECAY | ZERO_KEEP_FP32 | ZERO_MODEL_REPLICATED | PASS_FLAGS
};

/* The identity of a parameter in the weights' hash; the finalizer is that of MurmurHash3 (Appleby). */
static uint64_t hash_name(const char *name) {
    uint64_t h = hash_string(HASH_START, name);
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    return h ^ h >> 33;
}

uint64_t model_layout_hash(const struct model *m) {
    uint64_t h = HASH_START;
    for (uint32_t i = 0; i < m->params; i++) {
        const struct model_param *p = &m->param[i];
        h = hash_string(hash_string(h, m->unit[p->unit]->name), p->name);
        if (p->tensor != p->name) h = hash_string(h, p->tensor);
        if (p->tensor_rows) h = hash_bytes(h, &p->tensor_first, sizeof p->tensor_first);
        uint32_t flags = p->flags & ~(uint32_t)PASS_FLAGS;
        h = hash_bytes(hash_bytes(h, p->shape, p->dims * sizeof *p->shape), &flags, sizeof flags);
        h = hash_bytes(hash_bytes(h, &p->dims, sizeof p->dims), &p->owner, sizeof p->owner);
    }
    return h;
}

uint64_t model_hash(const struct model *m) {
    uint64_t h = model_layout_hash(m);
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].flags & PASS_FLAGS) {
            uint32_t words[2] = {i, m->param[i].flags & PASS_FLAGS};
            h = hash_bytes(h, words, sizeof words);
        }
    for (uint32_t i = 0; i < m->units; i++)
        if (m->unit[i]->segment_first != i)
            h = hash_bytes(h, &m->unit[i]->segment_first, sizeof m->unit[i]->segment_first);
    for (uint32_t i = 0; i < m->units; i++)
        if (m->unit[i]->held) h = hash_bytes(h, &i, sizeof i);
    if (m->bound) h = hash_bytes(h, &m->bound, sizeof m->bound);
    return m->free_order ? hash_string(h, "free order") : h;
}

static zero_status check_name(const char *what, const char *name, struct zero_error *error) {
    if (!name || !*name) return error_set(error, ZERO_E_ARGUMENT, "%s needs a name", what);
    if (utf8_is(name)) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT, "%s's name must be UTF-8, and \"%s\" is not", what, name);
}

static const char *unit_name(const void *model, uint32_t i) {
    return ((const struct model *)model)->unit[i]->name;
}

zero_status model_add_unit(struct model *model, zero_engine *engine, const char *name, struct zero_unit **out,
                           struct zero_error *error) {
    TRY(check_name("a unit", name, error));
    if (name_index_find(&model->unit_index, name, unit_name, model) != UINT32_MAX)
        return error_set(error, ZERO_E_ARGUMENT, "unit \"%s\" was added before; give each unit its own name",
                         name);
    struct zero_unit **list = realloc(model->unit, (model->units + 1) * sizeof *list);
    struct zero_unit *unit = calloc(1, sizeof *unit + strlen(name) + 1);
    if (list) model->unit = list;
    if (list && unit) {
        list[model->units] = unit;
        strcpy(unit->name, name);
    }
    if (!list || !unit || !name_index_add(&model->unit_index, model->units, unit_name, model)) {
        free(unit);
        return error_set(error, ZERO_E_MEMORY, "unit \"%s\": no memory for its record", name);
    }
    unit->engine = engine;
    unit->index = unit->segment_first = unit->segment_last = model->units;
    unit->first_param = model->params;
    model->units++;
    *out = unit;
    return ZERO_OK;
}

static zero_status count_elements(const zero_param *param, uint64_t *out_count, struct zero_error *error) {
    if (param->dims < 1 || param->dims > ZERO_DIMS_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" has %" PRIu32 " dimensions; 1 to %d are possible", param->name,
                         param->dims, ZERO_DIMS_MAX);
    uint64_t count = 1;
    for (uint32_t d = 0; d < param->dims; d++)
        if (param->shape[d] == 0 || __builtin_mul_overflow(count, param->shape[d], &count) || count >> 56)
            return error_set(error, ZERO_E_ARGUMENT,
                             "parameter \"%s\": dimension %" PRIu32 " is %" PRIu64
                             ", which makes the parameter empty or too large",
                             param->name, d, param->shape[d]);
    *out_count = count;
    return ZERO_OK;
}

static zero_status find_owner(const struct model *model, const struct zero_unit *unit,
                              const zero_param *param, uint64_t count, uint32_t *out_owner,
                              struct zero_error *error) {
    *out_owner = model->params;
    if (!param->tied_to) return ZERO_OK;
    const struct model_param *owner = model_find(model, param->tied_to);
    if (strcmp(param->tied_to, param->name) == 0)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\" is tied to itself: name one of an earlier unit, or leave tied_to NULL",
            param->name);
    if (!owner || owner->unit == unit->index)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" is tied to \"%s\", which no earlier unit has", param->name,
                         param->tied_to);
    if (owner->count != count)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" of %" PRIu64 " elements is tied to \"%s\" of %" PRIu64
                         "; tied shapes have equal counts",
                         param->name, count, param->tied_to, owner->count);
    if (param->flags && param->flags != owner->flags)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" is tied to \"%s\" and has other flags; leave its flags at 0: the "
                         "owner's flags apply",
                         param->name, param->tied_to);
    uint32_t last = model->param[owner->owner].last_tied;
    if (last && model->param[last].unit == unit->index)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameters \"%s\" and \"%s\" of unit \"%s\" are tied to the same one; use one of them",
            model->param[last].name, param->name, unit->name);
    *out_owner = owner->owner;
    return ZERO_OK;
}

static zero_status grow_params(struct model *model, struct zero_error *error) {
    if (model->params < model->param_capacity) return ZERO_OK;
    uint32_t capacity = model->param_capacity ? 2 * model->param_capacity : 64;
    struct model_param *list = realloc(model->param, capacity * sizeof *list);
    if (!list)
        return error_set(error, ZERO_E_MEMORY, "no memory for the records of %" PRIu32 " parameters",
                         capacity);
    model->param = list;
    model->param_capacity = capacity;
    return ZERO_OK;
}

/* The host must find the parameter, and know whether to add to its gradient. */
static zero_status take_addresses(const zero_param *param, struct model_param *p, struct zero_error *error) {
    if (!param->slot && !param->param_pointer && !param->spans)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" needs a slot or a param_pointer to leave its address in, or spans",
                         param->name);
    if (param->grad_pointer && !param->slot && !(p->flags & (ZERO_ADDS_GRAD | ZERO_FROZEN)))
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" has a grad_pointer and no slot that says whether to overwrite its "
                         "gradient or to add: always add, and set ZERO_ADDS_GRAD, or give it a slot",
                         param->name);
    p->slot = param->slot;
    p->param_pointer = param->param_pointer;
    p->grad_pointer = param->grad_pointer;
    p->pointer_offset = param->pointer_offset;
    return ZERO_OK;
}

/* The spans must cover the parameter exactly. */
static zero_status copy_spans(const zero_param *param, struct model_param *p, struct zero_error *error) {
    uint64_t covered = 0;
    if (!param->spans && param->span_count)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\": span_count is %" PRIu32 " and spans is NULL", p->name,
                         param->span_count);
    if (!param->spans) return ZERO_OK;
    for (uint32_t i = 0; i < param->span_count && covered <= p->count; i++) {
        covered += param->spans[i].count;
        if (!param->spans[i].param || (!param->spans[i].grad && !(p->flags & ZERO_FROZEN)))
            return error_set(error, ZERO_E_ARGUMENT, "parameter \"%s\": span %" PRIu32 " has no address",
                             p->name, i);
    }
    if (covered != p->count)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\" of %" PRIu64 " elements has spans of %" PRIu64
                         "; they must cover it exactly",
                         p->name, p->count, covered);
    p->spans = malloc(param->span_count * sizeof *p->spans);
    p->span_first = malloc(param->span_count * sizeof *p->span_first);
    if (!p->spans || !p->span_first)
        return error_set(error, ZERO_E_MEMORY, "parameter \"%s\": no memory for its spans", p->name);
    uint64_t first = 0;
    for (uint32_t i = 0; i < param->span_count; first += param->spans[i].count, i++) {
        p->spans[i] = param->spans[i];
        p->span_first[i] = first;
    }
    p->span_count = param->span_count;
    return ZERO_OK;
}

static zero_status make_handle(const struct model *model, const struct zero_unit *unit,
                               const zero_param *param, struct model_param *p, struct zero_error *error) {
    size_t bytes = strlen(param->name) + 1;
    p->handle = malloc(sizeof *p->handle + bytes + (param->tensor ? strlen(param->tensor) + 1 : 0));
    if (!p->handle)
        return error_set(error, ZERO_E_MEMORY, "parameter \"%s\": no memory for its name", param->name);
    *p->handle = (struct zero_handle){unit->engine, model->params, param->user};
    p->tensor = p->name = strcpy(p->handle->name, param->name);
    if (param->tensor) p->tensor = strcpy(p->handle->name + bytes, param->tensor);
    return ZERO_OK;
}

static void free_param(struct model_param *p) {
    free(p->spans);
    free(p->span_first);
    free(p->handle);
}

zero_status model_add_param(struct model *model, struct zero_unit *unit, const zero_param *param,
                            struct zero_error *error) {
    uint64_t count = 0;
    uint32_t owner = 0;
    TRY(check_name("a parameter", param->name, error));
    if (param->tensor) TRY(check_name("a tensor", param->tensor, error));
    TRY(count_elements(param, &count, error));
    TRY(find_owner(model, unit, param, count, &owner, error));
    TRY(grow_params(model, error));
    if (unit->index + 1 != model->units)
        return error_set(error, ZERO_E_ORDER,
                         "parameter \"%s\": unit \"%s\" is complete, because unit \"%s\" was added after it; "
                         "add a unit's parameters before the next unit",
                         param->name, unit->name, model->unit[model->units - 1]->name);
    if (model_find(model, param->name))
        return error_set(error, ZERO_E_ARGUMENT, "parameter \"%s\" was added before; give each its own name",
                         param->name);
    if (param->flags & ~(uint32_t)PARAM_FLAGS)
        return error_set(error, ZERO_E_ARGUMENT, "parameter \"%s\" has unknown flags in %" PRIu32,
                         param->name, param->flags);
    if (unit->held && param->spans)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "parameter \"%s\": unit \"%s\" is held, and spans are copied in each use: give it a slot",
            param->name, unit->name);
    struct model_param *p = &model->param[model->params];
    *p = (struct model_param){
        .unit = unit->index, .owner = owner, .flags = param->flags, .dims = param->dims, .count = count};
    memcpy(p->shape, param->shape, sizeof p->shape);
    if (owner != model->params) p->flags = model->param[owner].flags; /* the owner decides */
    p->scalars = model_scalars(param->group, p->flags & ZERO_NO_DECAY);
    p->values = param->values;
    p->name_hash = hash_name(param->tensor ? param->tensor : param->name);
    zero_status status = take_addresses(param, p, error);
    if (!status) status = make_handle(model, unit, param, p, error);
    if (!status) status = copy_spans(param, p, error);
    if (!status) status = tensor_join(model, p, param->tensor_row, param->tensor_rows, error);
    if (!status && !name_index_add(&model->param_index, model->params, model_param_name, model))
        status = error_set(error, ZERO_E_MEMORY, "parameter \"%s\": no memory for its record", p->name);
    if (status) return free_param(p), status;
    if (p->slot) *p->slot = (zero_slot){0};
    if (owner != model->params) model->param[owner].last_tied = model->params;
    model->params++;
    unit->params++;
    return ZERO_OK;
}

/* ---- layout ---- */

/* What is not cut, or stays fp32 for its accuracy, is not coded. */
static uint8_t class_of(const struct model *m, const struct model_param *p, uint64_t persistent_elements) {
    bool persistent = p->count <= persistent_elements,
         kept = p->flags & ZERO_KEEP_FP32 && m->dtype != DTYPE_F32;
    return (uint8_t)((p->flags & ZERO_FROZEN ? CLASS_FROZEN : 0) | (persistent ? CLASS_PERSISTENT : 0) |
                     (kept ? CLASS_FP32 : 0) | (p->other && !(p->flags & ZERO_FROZEN) ? CLASS_OTHER : 0) |
                     (p->elsewhere ? CLASS_ELSEWHERE : 0) | (persistent || kept ? CODE_NONE : p->code));
}

static uint64_t line_elements(const struct model *m, uint8_t class_index) {
    return ALIGN_BYTES / dtype_bytes(class_index & CLASS_FP32 ? DTYPE_F32 : m->dtype);
}

static void place_param(struct model_region *r, struct model_param *p, uint32_t index, uint32_t region,
                        uint64_t line) {
    p->region = region;
    p->offset = r->elements;
    r->param[r->params++] = index;
    r->elements = round_up(r->elements + p->count, line);
}

/* Both have 16 bits: a reference to a buffer of region and state, and a position. */
enum { REGIONS_MAX = UINT16_MAX / PRECISION_STATES_MAX, UNITS_MAX = UINT16_MAX / 8 };

/* The regions of one unit, in the order of classes; they are the first of the unit's use. */
static zero_status lay_out_unit(struct model *m, struct zero_unit *unit, uint32_t shards,
                                uint64_t persistent_elements, uint32_t **storage, struct zero_error *error) {
    struct use *use = &m->use[unit->index];
    bool present[REGION_CLASSES] = {false};
    use->segment_offset = (uint16_t)(unit->index - unit->segment_first);
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
        if (m->param[i].owner == i) present[class_of(m, &m->param[i], persistent_elements)] = true;
    for (uint8_t c = 0; c < REGION_CLASSES; c++) {
        if (!present[c]) continue;
        if (use->count == USE_REGIONS_MAX)
            return error_set(error, ZERO_E_UNSUPPORTED,
                             "unit \"%s\" has parameters of more than %d kinds (frozen, small, kept in fp32, "
                             "updated by another optimizer, counted on another model rank, gathered in other "
                             "codes): declare it as two units",
                             unit->name, USE_REGIONS_MAX);
        struct model_region *r = &m->region[m->regions];
        *r = (struct model_region){.unit = unit->index, .class_index = c, .param = *storage};
        for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++)
            if (m->param[i].owner == i && class_of(m, &m->param[i], persistent_elements) == c)
                place_param(r, &m->param[i], i, m->regions, line_elements(m, c));
        r->padded = round_up(r->elements, shards * line_elements(m, c));
        *storage += r->params;
        m->padded_elements += r->padded;
        use->region[use->count++] = (uint16_t)m->regions++;
    }
    return ZERO_OK;
}

static zero_status add_region(struct use *use, uint32_t region, const char *unit, struct zero_error *error) {
    for (uint8_t k = 0; k < use->count; k++)
        if (use->region[k] == region) return ZERO_OK;
    if (use->count == USE_REGIONS_MAX)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "unit \"%s\" is tied to parameters of too many units, or too many units are held; "
                         "%d regions are possible in a use",
                         unit, USE_REGIONS_MAX);
    use->region[use->count++] = (uint16_t)region;
    return ZERO_OK;
}

/* A unit with tied parameters uses their owners' regions too. */
static zero_status add_tied(struct model *m, const struct zero_unit *unit, struct zero_error *error) {
    struct use *use = &m->use[unit->index];
    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        struct model_param *p = &m->param[i];
        p->region = m->param[p->owner].region;
        p->offset = m->param[p->owner].offset;
        TRY(add_region(use, p->region, unit->name, error));
    }
    return ZERO_OK;
}

/* A unit without parameters of its own has those of held units. */
static zero_status check_uses(const struct model *m, struct zero_error *error) {
    for (uint32_t i = 0; i < m->units; i++)
        if (!m->use[i].count)
            return error_set(error, ZERO_E_ARGUMENT,
                             "unit \"%s\" has no parameters; add some or leave the unit out",
                             m->unit[i]->name);
    return ZERO_OK;
}

/* Every use has the held units' regions, so that they stay gathered from one use to the next, and their gradients are reduced after
 * the pass's last backward. */
static zero_status add_held(struct model *m, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < m->units; i++)
        if (m->unit[i]->held) m->held[m->helds++] = i;
    if (m->helds == m->units)
        return error_set(
            error, ZERO_E_ARGUMENT,
            "all units are held, so no unit is left to begin: hold only what the others use too");
    for (uint32_t i = 0; i < m->units; i++)
        for (uint32_t h = 0; h < m->helds; h++) {
            const struct use *held = &m->use[m->held[h]];
            for (uint8_t k = 0; k < held->count && !status && m->held[h] != i; k++)
                status = add_region(&m->use[i], held->region[k], m->unit[i]->name, error);
        }
    return status;
}

zero_status model_lay_out(struct model *m, uint32_t shards, uint64_t persistent_elements,
                          struct zero_error *error) {
    if (!m->units) return error_set(error, ZERO_E_ARGUMENT, "the model has no units: add them before commit");
    if (m->units > UNITS_MAX)
        return error_set(error, ZERO_E_UNSUPPORTED, "%" PRIu32 " units are more than %d", m->units,
                         UNITS_MAX);
    m->region = calloc((size_t)m->units * USE_REGIONS_MAX, sizeof *m->region);
    m->region_params = calloc(m->params + 1, sizeof *m->region_params);
    m->use = calloc(m->units, sizeof *m->use);
    m->held = calloc(m->units, sizeof *m->held);
    if (!m->region || !m->region_params || !m->use || !m->held)
        return error_set(error, ZERO_E_MEMORY, "no memory for the layout of %" PRIu32 " units", m->units);
    uint32_t *storage = m->region_params;
    for (uint32_t i = 0; i < m->units; i++) {
        TRY(lay_out_unit(m, m->unit[i], shards, persistent_elements, &storage, error));
    }
    if (m->regions > REGIONS_MAX)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "%" PRIu32 " units have %" PRIu32
                         " regions, and %d are possible: put more parameters into a unit",
                         m->units, m->regions, REGIONS_MAX);
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].owner == i) m->param_elements += m->param[i].count;
    if (m->padded_elements >> 56)
        return error_set(error, ZERO_E_ARGUMENT, "the model has more than 2^56 elements");
    for (uint32_t i = 0; i < m->units; i++) {
        TRY(add_tied(m, m->unit[i], error));
    }
    zero_status status = add_held(m, error);
    if (!status) status = lent_list(m, error);
    return status ? status : check_uses(m, error);
}

void model_free(struct model *m) {
    for (uint32_t i = 0; i < m->regions; i++) free(m->region[i].piece);
    for (uint32_t i = 0; i < m->units; i++) free(m->unit[i]);
    free(m->unit);
    for (uint32_t i = 0; i < m->params; i++) free_param(&m->param[i]);
    free(m->param);
    name_index_free(&m->cut_index);
    name_index_free(&m->unit_index);
    name_index_free(&m->param_index);
    free(m->region);
    free(m->region_params);
    free(m->use);
    free(m->held);
}
