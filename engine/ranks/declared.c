#include "engine/ranks/declared.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model/tensor.h"

static char *text_of(const struct declared *d) { return (char *)(uintptr_t)(d->param + d->params); }

static uint64_t bytes_of(uint32_t params, uint64_t text_bytes) {
    return sizeof(struct declared) + params * sizeof(struct declared_param) + text_bytes;
}

static uint64_t count_text(const struct model *model, uint32_t *out_params) {
    uint64_t bytes = 0;
    *out_params = 0;
    for (uint32_t i = 0; i < model->params; i++)
        if (model->param[i].owner == i) ++*out_params, bytes += strlen(model->param[i].tensor) + 1;
    for (uint32_t u = 0; u < model->units; u++) bytes += strlen(model->unit[u]->name) + 1;
    return bytes;
}

static void add_text(struct declared *d, const char *text) {
    strcpy(text_of(d) + d->text_bytes, text);
    d->text_bytes += strlen(text) + 1;
}

static struct declared_param describe(const struct model *model, uint32_t index) {
    const struct model_param *p = &model->param[index];
    struct declared_param out;
    memset(&out, 0, sizeof out);
    out.first = p->tensor_first, out.count = p->count;
    out.tensor_count = tensor_extent(model, &model->param[p->tensor_head], out.shape);
    out.dims = p->dims, out.flags = p->flags, out.group = p->scalars / 2, out.index = index;
    return out;
}

struct declared *declared_make(const struct model *model, const struct param_groups *groups, uint64_t alike) {
    uint32_t params, at = 0;
    uint64_t text_bytes = count_text(model, &params), bytes = bytes_of(params, text_bytes);
    struct declared *d = calloc(1, bytes);
    if (!d) return NULL;
    d->bytes = bytes, d->alike = alike, d->params = params, d->units = model->units;
    memcpy(d->matched, groups->matched, sizeof d->matched);
    for (uint32_t i = 0; i < model->params; i++) {
        if (model->param[i].owner != i) continue;
        d->param[at] = describe(model, i);
        d->param[at].name = d->text_bytes;
        d->grouped |= (uint64_t)1 << d->param[at++].group;
        add_text(d, model->param[i].tensor);
    }
    d->units_text = d->text_bytes;
    for (uint32_t u = 0; u < model->units; u++) add_text(d, model->unit[u]->name);
    return d;
}

bool declared_whole(const struct declared *d, uint64_t bytes) {
    if (bytes < sizeof *d || d->bytes != bytes || d->text_bytes > bytes ||
        bytes_of(d->params, d->text_bytes) != bytes || d->units_text > d->text_bytes)
        return false;
    const char *text = text_of(d);
    uint64_t ends = 0;
    for (uint32_t i = 0; i < d->params; i++)
        if (d->param[i].name >= d->units_text || !d->param[i].count || d->param[i].dims > ZERO_DIMS_MAX)
            return false;
    for (uint64_t c = d->units_text; c < d->text_bytes; c++) ends += !text[c];
    return ends == d->units && (!d->text_bytes || !text[d->text_bytes - 1]);
}

const char *declared_name(const struct declared *d, const struct declared_param *param) {
    return text_of(d) + param->name;
}

const char *declared_unit(const struct declared *d, uint32_t unit) {
    const char *name = text_of(d) + d->units_text;
    while (unit--) name += strlen(name) + 1;
    return name;
}
