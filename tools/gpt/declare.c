/* The units and parameters, with the names and layouts of Hugging Face's GPT-2, whose linear layers are
 * [inputs][outputs] (Conv1D); the head alone is [outputs][inputs], as it may be the token embedding. */
#include <stdio.h>

#include "engine/zero.h"
#include "tools/gpt/model.h"

enum extent { NONE, WIDTH, WIDTH3, INNER, VOCAB, CONTEXT };

struct declaration {
    const char *name;
    enum extent rows, columns; /* columns NONE: a vector */
};

static const struct declaration embedding_params[EMBEDDING_PARAMS] = {
    [TOKEN_WEIGHT] = {"wte.weight", VOCAB, WIDTH},
    [POSITION_WEIGHT] = {"wpe.weight", CONTEXT, WIDTH},
};

static const struct declaration block_params[BLOCK_PARAMS] = {
    [NORM1_WEIGHT] = {"ln_1.weight", WIDTH, NONE},
    [NORM1_BIAS] = {"ln_1.bias", WIDTH, NONE},
    [QKV_WEIGHT] = {"attn.c_attn.weight", WIDTH, WIDTH3},
    [QKV_BIAS] = {"attn.c_attn.bias", WIDTH3, NONE},
    [PROJECT_WEIGHT] = {"attn.c_proj.weight", WIDTH, WIDTH},
    [PROJECT_BIAS] = {"attn.c_proj.bias", WIDTH, NONE},
    [NORM2_WEIGHT] = {"ln_2.weight", WIDTH, NONE},
    [NORM2_BIAS] = {"ln_2.bias", WIDTH, NONE},
    [WIDEN_WEIGHT] = {"mlp.c_fc.weight", WIDTH, INNER},
    [WIDEN_BIAS] = {"mlp.c_fc.bias", INNER, NONE},
    [NARROW_WEIGHT] = {"mlp.c_proj.weight", INNER, WIDTH},
    [NARROW_BIAS] = {"mlp.c_proj.bias", WIDTH, NONE},
};

static const struct declaration head_params[HEAD_PARAMS] = {
    [FINAL_WEIGHT] = {"ln_f.weight", WIDTH, NONE},
    [FINAL_BIAS] = {"ln_f.bias", WIDTH, NONE},
    [HEAD_WEIGHT] = {"lm_head.weight", VOCAB, WIDTH},
};

static uint64_t extent_of(const struct gpt_config *c, enum extent extent) {
    switch (extent) {
    case WIDTH:
        return c->width;
    case WIDTH3:
        return 3ull * c->width;
    case INNER:
        return c->inner;
    case VOCAB:
        return c->vocab;
    case CONTEXT:
        return c->context;
    case NONE:
        break;
    }
    return 1;
}

static zero_status declare_param(struct gpt *gpt, struct unit *unit, uint32_t index, const char *prefix,
                                 const struct declaration *d, const char *tied_to) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, d->name);
    zero_param param = {
        .struct_size = sizeof param,
        .name = name,
        .dims = d->columns == NONE ? 1 : 2,
        .shape = {extent_of(&gpt->config, d->rows), extent_of(&gpt->config, d->columns)},
        .tied_to = tied_to,
        .slot = &unit->slot[index],
    };
    unit->matrix[index] = d->columns != NONE;
    unit->count[index] = extent_of(&gpt->config, d->rows) * extent_of(&gpt->config, d->columns);
    return zero_unit_add_param(unit->handle, &param);
}

static zero_status declare_unit(struct gpt *gpt, struct unit *unit, const char *name, const char *prefix,
                                const struct declaration *params, uint32_t count) {
    zero_status status = zero_engine_add_unit(gpt->engine, name, &unit->handle);
    unit->params = count;
    for (uint32_t i = 0; i < count && !status; i++) {
        bool tied = params == head_params && i == HEAD_WEIGHT && gpt->config.tied;
        status = declare_param(gpt, unit, i, prefix, &params[i], tied ? "wte.weight" : NULL);
    }
    return status;
}

zero_status declare_units(struct gpt *gpt) {
    zero_status status =
        declare_unit(gpt, &gpt->embedding, "embedding", "", embedding_params, EMBEDDING_PARAMS);
    for (uint32_t i = 0; i < gpt->config.layers && !status; i++) {
        char name[32], prefix[32];
        snprintf(name, sizeof name, "h.%u", i);
        snprintf(prefix, sizeof prefix, "h.%u.", i);
        status = declare_unit(gpt, &gpt->blocks[i], name, prefix, block_params, BLOCK_PARAMS);
    }
    return status ? status : declare_unit(gpt, &gpt->head, "head", "", head_params, HEAD_PARAMS);
}

static uint64_t count_params(const struct gpt_config *c, const struct declaration *params, uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += extent_of(c, params[i].rows) * extent_of(c, params[i].columns);
    return total;
}

uint64_t gpt_parameters(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    return count_params(&c, embedding_params, EMBEDDING_PARAMS) +
           c.layers * count_params(&c, block_params, BLOCK_PARAMS) +
           count_params(&c, head_params, c.tied ? HEAD_WEIGHT : HEAD_PARAMS);
}

bool gpt_param_at(const struct gpt_config *config, uint32_t index, struct gpt_param *out) {
    struct gpt_config c = gpt_complete(config);
    uint32_t in_blocks = c.layers * BLOCK_PARAMS, at = index - EMBEDDING_PARAMS;
    const struct declaration *d = index < EMBEDDING_PARAMS ? &embedding_params[index] : NULL;
    char prefix[32] = "";
    if (index >= EMBEDDING_PARAMS && at < in_blocks) {
        d = &block_params[at % BLOCK_PARAMS];
        snprintf(prefix, sizeof prefix, "h.%u.", at / BLOCK_PARAMS);
    } else if (index >= EMBEDDING_PARAMS) {
        if (at - in_blocks >= (c.tied ? HEAD_WEIGHT : HEAD_PARAMS)) return false;
        d = &head_params[at - in_blocks];
    }
    *out = (struct gpt_param){.dims = d->columns == NONE ? 1 : 2,
                              .shape = {extent_of(&c, d->rows), extent_of(&c, d->columns)}};
    out->count = out->shape[0] * out->shape[1];
    snprintf(out->name, sizeof out->name, "%s%s", prefix, d->name);
    return true;
}
