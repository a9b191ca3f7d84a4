#include "tools/plan/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GPT2 "Radford et al. 2019, table 2"
#define MEGATRON "Narayanan et al. 2021, Efficient large-scale language model training, table 1"

/* kv_heads, inner: 0 stands for heads, and for 4 * width. */
static const struct shapes table[] = {
    {"gpt2", GPT2, FAMILY_GPT2, 12, 768, 12, 0, 1024, 50257, 0, true, 0},
    {"gpt2-medium", GPT2, FAMILY_GPT2, 24, 1024, 16, 0, 1024, 50257, 0, true, 0},
    {"gpt2-large", GPT2, FAMILY_GPT2, 36, 1280, 20, 0, 1024, 50257, 0, true, 0},
    {"gpt2-xl", GPT2, FAMILY_GPT2, 48, 1600, 25, 0, 1024, 50257, 0, true, 0},
    {"llama-3-8b", "Dubey et al. 2024, The Llama 3 herd of models, table 3", FAMILY_LLAMA, 32, 4096, 32, 8,
     8192, 128256, 14336, false, 0},
    {"llama-3-70b", "Dubey et al. 2024, The Llama 3 herd of models, table 3", FAMILY_LLAMA, 80, 8192, 64, 8,
     8192, 128256, 28672, false, 0},
    {"7.5B", MEGATRON, FAMILY_GPT2, 36, 4096, 32, 0, 2048, 51200, 0, true, 0},
    {"70B", "Touvron et al. 2023, Llama 2, table 1, and its config.json", FAMILY_LLAMA, 80, 8192, 64, 8, 4096,
     32000, 28672, false, 0},
    {"175B", "Brown et al. 2020, table 2.1, GPT-3", FAMILY_GPT2, 96, 12288, 96, 0, 2048, 51200, 0, true, 0},
    {"1T", MEGATRON, FAMILY_GPT2, 128, 25600, 160, 0, 2048, 51200, 0, true, 0},
};

static struct shapes complete(struct shapes s) {
    if (!s.kv_heads) s.kv_heads = s.heads;
    if (!s.inner) s.inner = 4 * s.width;
    if (!s.head_width) s.head_width = s.width / s.heads;
    return s;
}

const struct shapes *shapes_at(uint32_t index) {
    return index < sizeof table / sizeof *table ? &table[index] : NULL;
}

const struct shapes *shapes_find(const char *name) {
    for (uint32_t i = 0; shapes_at(i); i++)
        if (strcasecmp(shapes_at(i)->name, name) == 0) return shapes_at(i);
    return NULL;
}

struct shapes shapes_of(const struct config_model *m) {
    return (struct shapes){.name = "the model block",
                           .source = "the configuration",
                           .family = (enum family)m->type, /* numbered alike */
                           .layers = m->layers,
                           .width = m->width,
                           .heads = m->heads,
                           .kv_heads = m->kv_heads,
                           .head_width = m->head_width,
                           .context = m->context,
                           .vocab = m->vocab,
                           .inner = m->inner,
                           .tied = m->tied};
}

/* ---- parameters ---- */

enum extent { NONE, WIDTH, QUERY, QKV, KV, INNER, VOCAB, CONTEXT };

static uint64_t extent_of(const struct shapes *s, enum extent extent) {
    switch (extent) {
    case WIDTH:
        return s->width;
    case QUERY:
        return s->heads * s->head_width;
    case QKV:
        return (s->heads + 2 * s->kv_heads) * s->head_width;
    case KV:
        return s->kv_heads * s->head_width;
    case INNER:
        return s->inner;
    case VOCAB:
        return s->vocab;
    case CONTEXT:
        return s->context;
    case NONE:
        break;
    }
    return 1;
}

struct declaration {
    const char *name;
    enum extent rows, columns; /* columns NONE: a vector */
};

enum { UNIT_EMBEDDING, UNIT_BLOCK, UNIT_HEAD, UNIT_KINDS, PARAMS_MAX = 13 };

/* The order is that of tools/gpt, so that the layout is, too. A tied head's matrix is last. */
static const struct declaration declarations[FAMILIES][UNIT_KINDS][PARAMS_MAX] = {
    [FAMILY_GPT2] = {[UNIT_EMBEDDING] = {{"wte.weight", VOCAB, WIDTH}, {"wpe.weight", CONTEXT, WIDTH}},
                     [UNIT_BLOCK] = {{"ln_1.weight", WIDTH, NONE},
                                     {"ln_1.bias", WIDTH, NONE},
                                     {"attn.c_attn.weight", WIDTH, QKV},
                                     {"attn.c_attn.bias", QKV, NONE},
                                     {"attn.c_proj.weight", WIDTH, WIDTH},
                                     {"attn.c_proj.bias", WIDTH, NONE},
                                     {"ln_2.weight", WIDTH, NONE},
                                     {"ln_2.bias", WIDTH, NONE},
                                     {"mlp.c_fc.weight", WIDTH, INNER},
                                     {"mlp.c_fc.bias", INNER, NONE},
                                     {"mlp.c_proj.weight", INNER, WIDTH},
                                     {"mlp.c_proj.bias", WIDTH, NONE}},
                     [UNIT_HEAD] = {{"ln_f.weight", WIDTH, NONE},
                                    {"ln_f.bias", WIDTH, NONE},
                                    {"lm_head.weight", VOCAB, WIDTH}}},
    [FAMILY_LLAMA] = {[UNIT_EMBEDDING] = {{"model.embed_tokens.weight", VOCAB, WIDTH}},
                      [UNIT_BLOCK] = {{"input_layernorm.weight", WIDTH, NONE},
                                      {"self_attn.q_proj.weight", QUERY, WIDTH},
                                      {"self_attn.k_proj.weight", KV, WIDTH},
                                      {"self_attn.v_proj.weight", KV, WIDTH},
                                      {"self_attn.o_proj.weight", WIDTH, QUERY},
                                      {"post_attention_layernorm.weight", WIDTH, NONE},
                                      {"mlp.gate_proj.weight", INNER, WIDTH},
                                      {"mlp.up_proj.weight", INNER, WIDTH},
                                      {"mlp.down_proj.weight", WIDTH, INNER}},
                      [UNIT_HEAD] = {{"model.norm.weight", WIDTH, NONE}, {"lm_head.weight", VOCAB, WIDTH}}},
};

static uint64_t count_of(const struct shapes *s, const struct declaration *d) {
    return extent_of(s, d->rows) * extent_of(s, d->columns);
}

static bool is_head_matrix(const struct declaration *d) {
    return d->rows == VOCAB && strncmp(d->name, "lm_", 3) == 0;
}

static zero_status declare_unit(const struct shapes *s, zero_engine *engine, int kind, const char *name,
                                const char *prefix) {
    static zero_slot unused; /* nothing is ever gathered */
    zero_unit *unit;
    zero_status status = zero_engine_add_unit(engine, name, &unit);
    for (const struct declaration *d = declarations[s->family][kind]; !status && d->name; d++) {
        char full[96];
        snprintf(full, sizeof full, "%s%s", prefix, d->name);
        zero_param param = {.struct_size = sizeof param,
                            .name = full,
                            .dims = d->columns == NONE ? 1 : 2,
                            .shape = {extent_of(s, d->rows), extent_of(s, d->columns)},
                            .slot = &unused};
        if (s->tied && is_head_matrix(d)) param.tied_to = declarations[s->family][UNIT_EMBEDDING][0].name;
        status = zero_unit_add_param(unit, &param);
    }
    return status;
}

zero_status shapes_declare(const struct shapes *shapes, zero_engine *engine) {
    struct shapes s = complete(*shapes);
    zero_status status = declare_unit(&s, engine, UNIT_EMBEDDING, "embedding", "");
    for (uint64_t i = 0; i < s.layers && !status; i++) {
        char name[32], prefix[32];
        snprintf(name, sizeof name, "h.%u", (unsigned)i);
        snprintf(prefix, sizeof prefix, s.family == FAMILY_LLAMA ? "model.layers.%u." : "h.%u.", (unsigned)i);
        status = declare_unit(&s, engine, UNIT_BLOCK, name, prefix);
    }
    return status ? status : declare_unit(&s, engine, UNIT_HEAD, "head", "");
}

uint32_t shapes_units(const struct shapes *shapes) { return (uint32_t)shapes->layers + 2; }

static uint64_t unit_parameters(const struct shapes *s, int kind) {
    uint64_t count = 0;
    for (const struct declaration *d = declarations[s->family][kind]; d->name; d++)
        if (!s->tied || !is_head_matrix(d)) count += count_of(s, d);
    return count;
}

uint64_t shapes_parameters(const struct shapes *shapes) {
    struct shapes s = complete(*shapes);
    return unit_parameters(&s, UNIT_EMBEDDING) + s.layers * unit_parameters(&s, UNIT_BLOCK) +
           unit_parameters(&s, UNIT_HEAD);
}

/* ---- arithmetic ---- */

static int kind_of(const struct shapes *s, uint32_t unit) {
    return unit == 0 ? UNIT_EMBEDDING : unit <= s->layers ? UNIT_BLOCK : UNIT_HEAD;
}

double shapes_forward_flops(const struct shapes *shapes, uint32_t unit) {
    struct shapes s = complete(*shapes);
    int kind = kind_of(&s, unit);
    double weights = 0, seen = ((double)s.context + 1) / 2;
    if (kind == UNIT_EMBEDDING) return 0; /* it is read */
    for (const struct declaration *d = declarations[s.family][kind]; d->name; d++)
        if (d->columns != NONE) weights += (double)count_of(&s, d);
    return 2 * weights + (kind == UNIT_BLOCK ? 4 * (double)(s.heads * s.head_width) * seen : 0);
}

/* ---- activations ---- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Floats of a token, as tools/gpt/activations.c has them; what is small beside these is left out. */
static uint64_t host_bytes(const struct shapes *s, enum dtype dtype, uint64_t batch, uint32_t threads,
                           bool recompute) {
    uint64_t rows = batch * s->context, w = s->width, kv = extent_of(s, KV);
    uint64_t saved = 3 * w + 2 * kv + s->inner * (s->family == FAMILY_LLAMA ? 2 : 1) + s->heads +
                     4; /* middle, q k v, mixed, inner */
    uint64_t scratch = 5 * w + s->inner;
    uint64_t turned = w * (2 * w + 2 * kv) + (s->family == FAMILY_LLAMA ? 3 : 2) * w * s->inner;
    uint64_t head = least(rows, 128 * most(8, threads)) * s->vocab;
    uint64_t floats =
        rows * (w * (s->layers + 1) + saved * (recompute ? 1 : s->layers) + scratch + 4) + turned + head;
    if (dtype == DTYPE_F32) return 4 * floats;
    uint64_t embedding = w * (s->vocab + s->context), widest = most(most(s->inner, 3 * w), s->vocab);
    if (dtype == DTYPE_F16)
        return 4 * (floats + 2 * most(turned, embedding)); /* parameters and gradients, widened */
    uint64_t operands = threads * most(128 * widest, rows * 192);
    return 4 * (floats + most(turned, embedding)) + 2 * (operands + rows * (s->inner + 2 * w));
}

static uint64_t device_bytes(const struct shapes *s, enum dtype dtype, uint64_t batch, bool recompute) {
    uint64_t rows = batch * s->context, w = s->width, kv = extent_of(s, KV), e = dtype_bytes(dtype);
    /* The norms' inputs and outputs, q k v, attention's output; the middle of the MLP, twice or three times. */
    uint64_t block =
        s->family == FAMILY_LLAMA ? 6 * w + 2 * kv + 3 * s->inner : 6 * w + 2 * kv + 2 * s->inner;
    uint64_t blocks = recompute ? s->layers * w + block : s->layers * block;
    return rows * (e * (blocks + 2 * w) + 2 * sizeof(float) * s->vocab);
}

uint64_t shapes_activation_bytes(const struct shapes *shapes, bool host, enum dtype dtype, uint64_t batch,
                                 uint32_t threads, bool recompute) {
    struct shapes s = complete(*shapes);
    return host ? host_bytes(&s, dtype, batch, threads, recompute)
                : device_bytes(&s, dtype, batch, recompute);
}
