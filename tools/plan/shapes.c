#include "tools/plan/shapes.h"

#include <strings.h>

#define GPT2 "Radford et al. 2019, table 2"
#define MEGATRON "Narayanan et al. 2021, Efficient large-scale language model training, table 1"

/* kv_heads 0: heads; inner 0: 4 * width. */
static const struct shapes table[] = {
    {"gpt2", GPT2, GPT_GPT2, 12, 768, 12, 0, 1024, 50257, 0, true, 0, 0},
    {"gpt2-medium", GPT2, GPT_GPT2, 24, 1024, 16, 0, 1024, 50257, 0, true, 0, 0},
    {"gpt2-large", GPT2, GPT_GPT2, 36, 1280, 20, 0, 1024, 50257, 0, true, 0, 0},
    {"gpt2-xl", GPT2, GPT_GPT2, 48, 1600, 25, 0, 1024, 50257, 0, true, 0, 0},
    {"llama-3-8b", "Dubey et al. 2024, The Llama 3 herd of models, table 3", GPT_LLAMA, 32, 4096, 32, 8, 8192,
     128256, 14336, false, 0, 0},
    {"llama-3-70b", "Dubey et al. 2024, The Llama 3 herd of models, table 3", GPT_LLAMA, 80, 8192, 64, 8,
     8192, 128256, 28672, false, 0, 0},
    {"7.5B", MEGATRON, GPT_GPT2, 36, 4096, 32, 0, 2048, 51200, 0, true, 0, 0},
    {"70B", "Touvron et al. 2023, Llama 2, table 1, and its config.json", GPT_LLAMA, 80, 8192, 64, 8, 4096,
     32000, 28672, false, 0, 0},
    {"175B", "Brown et al. 2020, table 2.1, GPT-3", GPT_GPT2, 96, 12288, 96, 0, 2048, 51200, 0, true, 0, 0},
    {"1T", MEGATRON, GPT_GPT2, 128, 25600, 160, 0, 2048, 51200, 0, true, 0, 0},
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
                           .architecture = gpt_architecture_of(config_architecture((uint32_t)m->type)),
                           .layers = m->layers,
                           .width = m->width,
                           .heads = m->heads,
                           .kv_heads = m->kv_heads,
                           .head_width = m->head_width,
                           .context = m->context,
                           .vocab = m->vocab,
                           .inner = m->inner,
                           .tied = m->tied,
                           .vocab_block = (uint32_t)m->vocab_block};
}

/* The plan uses the configuration of tools/gpt on every device, because tools/gpt trains the model. */
static struct gpt_config gpt_of(const struct shapes *s, uint32_t blocks, bool on_cpu) {
    return (struct gpt_config){.architecture = s->architecture,
                               .layers = (uint32_t)s->layers,
                               .width = (uint32_t)s->width,
                               .heads = (uint32_t)s->heads,
                               .kv_heads = (uint32_t)s->kv_heads,
                               .head_width = (uint32_t)s->head_width,
                               .context = (uint32_t)s->context,
                               .vocab = (uint32_t)s->vocab,
                               .inner = (uint32_t)s->inner,
                               .tied = s->tied,
                               .vocab_block = s->vocab_block,
                               .recompute = blocks,
                               .recompute_on_cpu = on_cpu};
}

/* The units of the embedding, and those of the head. */
static uint32_t ends_of(const struct shapes *s) {
    struct gpt_config config = gpt_of(s, 0, false);
    return gpt_vocab_blocks(&config);
}

const char *shapes_problem(const struct shapes *shapes, bool host, uint64_t micros) {
    if (host) return NULL;
    return ends_of(shapes) > 1 ? GPT_NO_BLOCKS : micros > 1 ? GPT_NO_MICROS : NULL;
}

/* ---- parameters ---- */

struct pass_segments shapes_segments(const struct shapes *shapes, uint32_t blocks) {
    uint32_t first = ends_of(shapes);
    return (struct pass_segments){.first = first, .end = first + (uint32_t)shapes->layers, .blocks = blocks};
}

zero_status shapes_declare(const struct shapes *shapes, uint32_t blocks, zero_engine *engine,
                           zero_slot *slot) {
    struct gpt_config config = gpt_of(shapes, blocks, false);
    return gpt_declare(engine, &config, slot);
}

uint32_t shapes_units(const struct shapes *shapes) { return (uint32_t)shapes->layers + 2 * ends_of(shapes); }

uint64_t shapes_parameters(const struct shapes *shapes) {
    struct gpt_config config = gpt_of(shapes, 0, false);
    return gpt_parameters(&config);
}

/* ---- arithmetic ---- */

double shapes_weight_flops(const struct shapes *shapes, uint32_t unit) {
    struct gpt_config config = gpt_of(shapes, 0, false);
    return gpt_unit_flops(&config, unit);
}

double shapes_forward_flops(const struct shapes *shapes, uint32_t unit) {
    struct shapes s = complete(*shapes);
    double seen = ((double)s.context + 1) / 2;
    bool attends = unit >= ends_of(shapes) && unit - ends_of(shapes) < s.layers;
    return shapes_weight_flops(shapes, unit) + (attends ? 4 * (double)(s.heads * s.head_width) * seen : 0);
}

double shapes_again_flops(const struct shapes *shapes, uint32_t unit) {
    uint32_t ends = ends_of(shapes);
    return ends > 1 && unit >= ends + shapes->layers ? shapes_weight_flops(shapes, unit) : 0;
}

bool shapes_embeds(const struct shapes *shapes, uint32_t unit) { return unit < ends_of(shapes); }

double shapes_output_flops(const struct shapes *shapes) {
    struct shapes s = complete(*shapes);
    return 2 * (double)s.inner * (double)s.width;
}

/* ---- activations ---- */

uint64_t shapes_activation_bytes(const struct shapes *shapes, bool host, enum dtype dtype, uint64_t batch,
                                 uint32_t threads, struct shapes_recompute recompute, uint64_t *out_host) {
    struct gpt_config config = gpt_of(shapes, recompute.blocks, recompute.on_cpu);
    config.micros = recompute.micros;
    static const zero_dtype types[DTYPES] = {
        [DTYPE_F32] = ZERO_F32, [DTYPE_BF16] = ZERO_BF16, [DTYPE_F16] = ZERO_F16};
    return host ? gpt_activation_bytes(&config, (uint32_t)batch, threads, types[dtype], out_host)
                : gpt_cuda_activation_bytes(&config, (uint32_t)batch, types[dtype], out_host);
}
