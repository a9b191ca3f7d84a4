#include "tools/plan/shapes.h"

#include <strings.h>

#define GPT2 "Radford et al. 2019, table 2"
#define MEGATRON "Narayanan et al. 2021, Efficient large-scale language model training, table 1"

#define LLAMA2 "Touvron et al. 2023, Llama 2, table 1, and its config.json"
#define LLAMA3                                                                                               \
    "Dubey et al. 2024, The Llama 3 herd of models, table 3, and config.json; samples of its pretraining"
#define SMOLLM2 "Ben Allal et al. 2025, SmolLM2, and its config.json; samples of its pretraining"
#define MISTRAL "Jiang et al. 2023, Mistral 7B, table 1; without the window, as from v0.2 on"
#define MPT                                                                                                  \
    "MosaicML, llm-foundry's table of throughputs; with positions and biases, as it counts the parameters"
#define QWEN2 "Yang et al. 2024, Qwen2.5, table 1, and its config.json; samples of its pretraining"
#define QWEN3 "Yang et al. 2025, Qwen3, table 1, and its config.json; samples of its pretraining"

/* kv_heads 0: heads; inner 0: 4 * width; head_width 0: width / heads. No window, and a vocabulary in one piece. */
#define ROW(...)                                                                                             \
    { __VA_ARGS__, 0, 0, 0 }
static const struct shapes table[] = {
    ROW("gpt2", GPT2, GPT_GPT2, 12, 768, 12, 0, 1024, 50257, 0, true, 0),
    ROW("gpt2-medium", GPT2, GPT_GPT2, 24, 1024, 16, 0, 1024, 50257, 0, true, 0),
    ROW("gpt2-large", GPT2, GPT_GPT2, 36, 1280, 20, 0, 1024, 50257, 0, true, 0),
    ROW("gpt2-xl", GPT2, GPT_GPT2, 48, 1600, 25, 0, 1024, 50257, 0, true, 0),
    ROW("llama-2-7b", LLAMA2, GPT_LLAMA, 32, 4096, 32, 0, 4096, 32000, 11008, false, 0),
    ROW("llama-2-13b", LLAMA2, GPT_LLAMA, 40, 5120, 40, 0, 4096, 32000, 13824, false, 0),
    ROW("llama-2-70b", LLAMA2, GPT_LLAMA, 80, 8192, 64, 8, 4096, 32000, 28672, false, 0),
    ROW("llama-3-8b", LLAMA3, GPT_LLAMA, 32, 4096, 32, 8, 8192, 128256, 14336, false, 0),
    ROW("llama-3-70b", LLAMA3, GPT_LLAMA, 80, 8192, 64, 8, 8192, 128256, 28672, false, 0),
    ROW("llama-3.1-8b", LLAMA3, GPT_LLAMA, 32, 4096, 32, 8, 8192, 128256, 14336, false, 0),
    ROW("llama-3.1-70b", LLAMA3, GPT_LLAMA, 80, 8192, 64, 8, 8192, 128256, 28672, false, 0),
    ROW("llama-3.1-405b", LLAMA3, GPT_LLAMA, 126, 16384, 128, 8, 8192, 128256, 53248, false, 0),
    ROW("llama-3.2-1b", LLAMA3, GPT_LLAMA, 16, 2048, 32, 8, 8192, 128256, 8192, true, 0),
    ROW("llama-3.2-3b", LLAMA3, GPT_LLAMA, 28, 3072, 24, 8, 8192, 128256, 8192, true, 0),
    ROW("smollm2-135m", SMOLLM2, GPT_LLAMA, 30, 576, 9, 3, 2048, 49152, 1536, true, 0),
    ROW("smollm2-360m", SMOLLM2, GPT_LLAMA, 32, 960, 15, 5, 2048, 49152, 2560, true, 0),
    ROW("smollm2-1.7b", SMOLLM2, GPT_LLAMA, 24, 2048, 32, 0, 2048, 49152, 8192, true, 0),
    ROW("mpt-7b", MPT, GPT_GPT2, 32, 4096, 32, 0, 2048, 50368, 0, true, 0),
    ROW("mpt-70b", MPT, GPT_GPT2, 80, 8192, 64, 0, 2048, 50368, 0, true, 0),
    ROW("mistral-7b", MISTRAL, GPT_MISTRAL, 32, 4096, 32, 8, 8192, 32000, 14336, false, 0),
    ROW("qwen2.5-0.5b", QWEN2, GPT_QWEN2, 24, 896, 14, 2, 4096, 151936, 4864, true, 0),
    ROW("qwen2.5-1.5b", QWEN2, GPT_QWEN2, 28, 1536, 12, 2, 4096, 151936, 8960, true, 0),
    ROW("qwen2.5-3b", QWEN2, GPT_QWEN2, 36, 2048, 16, 2, 4096, 151936, 11008, true, 0),
    ROW("qwen2.5-7b", QWEN2, GPT_QWEN2, 28, 3584, 28, 4, 4096, 152064, 18944, false, 0),
    ROW("qwen2.5-14b", QWEN2, GPT_QWEN2, 48, 5120, 40, 8, 4096, 152064, 13824, false, 0),
    ROW("qwen2.5-32b", QWEN2, GPT_QWEN2, 64, 5120, 40, 8, 4096, 152064, 27648, false, 0),
    ROW("qwen2.5-72b", QWEN2, GPT_QWEN2, 80, 8192, 64, 8, 4096, 152064, 29568, false, 0),
    ROW("qwen3-0.6b", QWEN3, GPT_QWEN3, 28, 1024, 16, 8, 4096, 151936, 3072, true, 128),
    ROW("qwen3-1.7b", QWEN3, GPT_QWEN3, 28, 2048, 16, 8, 4096, 151936, 6144, true, 128),
    ROW("qwen3-4b", QWEN3, GPT_QWEN3, 36, 2560, 32, 8, 4096, 151936, 9728, true, 128),
    ROW("qwen3-8b", QWEN3, GPT_QWEN3, 36, 4096, 32, 8, 4096, 151936, 12288, false, 128),
    ROW("qwen3-14b", QWEN3, GPT_QWEN3, 40, 5120, 40, 8, 4096, 151936, 17408, false, 128),
    ROW("qwen3-32b", QWEN3, GPT_QWEN3, 64, 5120, 64, 8, 4096, 151936, 25600, false, 128),
    ROW("7.5B", MEGATRON, GPT_GPT2, 36, 4096, 32, 0, 2048, 51200, 0, true, 0),
    ROW("70B", LLAMA2, GPT_LLAMA, 80, 8192, 64, 8, 4096, 32000, 28672, false, 0),
    ROW("175B", "Brown et al. 2020, table 2.1, GPT-3", GPT_GPT2, 96, 12288, 96, 0, 2048, 51200, 0, true, 0),
    ROW("1T", MEGATRON, GPT_GPT2, 128, 25600, 160, 0, 2048, 51200, 0, true, 0),
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
                           .vocab_block = (uint32_t)m->vocab_block,
                           .window = (uint32_t)m->window,
                           .window_from = (uint32_t)m->window_from};
}

/* The plan uses the configuration of tools/gpt on every device, because tools/gpt trains the model. */
static struct gpt_config gpt_of(const struct shapes *s, struct shapes_recompute recompute) {
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
                               .window = s->window,
                               .window_from = s->window_from,
                               .recompute = recompute.blocks,
                               .checkpoints = recompute.tier,
                               .micros = recompute.micros,
                               .gpu = recompute.gpu,
                               .outputs = recompute.outputs};
}

static const struct shapes_recompute whole; /* no recomputation */

/* The units of the embedding, and those of the head. */
static uint32_t ends_of(const struct shapes *s) {
    struct gpt_config config = gpt_of(s, whole);
    return gpt_vocab_blocks(&config);
}

const char *shapes_problem(const struct shapes *shapes, bool host, struct shapes_recompute recompute) {
    struct gpt_config config = gpt_of(shapes, recompute);
    if (host) return NULL;
    return gpt_cuda_problem(&config);
}

/* ---- parameters ---- */

struct pass_segments shapes_segments(const struct shapes *shapes, uint32_t blocks) {
    uint32_t first = ends_of(shapes);
    return (struct pass_segments){.first = first, .end = first + (uint32_t)shapes->layers, .blocks = blocks};
}

zero_status shapes_declare(const struct shapes *shapes, struct shapes_recompute recompute,
                           zero_engine *engine, zero_slot *slot, uint32_t *out_trained) {
    struct gpt_config config = gpt_of(shapes, recompute);
    return gpt_declare(engine, &config, slot, out_trained);
}

uint32_t shapes_units(const struct shapes *shapes) { return (uint32_t)shapes->layers + 2 * ends_of(shapes); }

uint64_t shapes_parameters(const struct shapes *shapes) {
    struct gpt_config config = gpt_of(shapes, whole);
    return gpt_parameters(&config);
}

/* ---- arithmetic ---- */

double shapes_weight_flops(const struct shapes *shapes, uint32_t unit) {
    struct gpt_config config = gpt_of(shapes, whole);
    return gpt_unit_flops(&config, unit);
}

double shapes_forward_flops(const struct shapes *shapes, uint32_t unit) {
    struct shapes s = complete(*shapes);
    struct gpt_config config = gpt_of(shapes, whole);
    uint32_t ends = ends_of(shapes), block = unit - ends;
    double scores = unit >= ends && block < s.layers ? 4 * (double)(s.heads * s.head_width) : 0;
    return shapes_weight_flops(shapes, unit) + (scores > 0 ? scores * gpt_keys_seen(&config, block) : 0);
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

double shapes_step_flops(const struct shapes *s, double tokens) {
    double forward = 0;
    for (uint32_t u = 0; u < shapes_units(s); u++) forward += shapes_forward_flops(s, u);
    return 3 * forward * tokens;
}

double shapes_attention_fill(const struct shapes *shapes, enum dtype dtype) {
    struct shapes s = complete(*shapes);
    struct gpt_config config = gpt_of(shapes, (struct shapes_recompute){0});
    return (double)gpt_cuda_head(&config, (zero_dtype)dtype) / (double)s.head_width;
}

/* ---- activations ---- */

uint64_t shapes_checkpoint_bytes(const struct shapes *shapes, enum dtype dtype, uint64_t batch,
                                 struct shapes_recompute recompute) {
    struct gpt_config config = gpt_of(shapes, recompute);
    return gpt_checkpoint_bytes(&config, (uint32_t)batch, (zero_dtype)dtype);
}

uint32_t shapes_checkpoints_kept(const struct shapes *shapes, struct shapes_recompute recompute) {
    struct gpt_config config = gpt_of(shapes, recompute);
    return recompute.tier == ZERO_NVME ? gpt_checkpoints_kept(&config) : 0;
}

uint32_t shapes_spares(const struct shapes *shapes, enum dtype dtype, uint64_t batch,
                       struct shapes_recompute recompute, uint32_t trained,
                       struct gpt_spare out[GPT_OUTPUT_KINDS]) {
    struct gpt_config config = gpt_of(shapes, recompute);
    return gpt_cuda_spares(&config, (uint32_t)batch, (zero_dtype)dtype, trained, out);
}

bool shapes_keeps(const struct shapes *shapes, struct shapes_recompute recompute, uint32_t unit,
                  enum gpt_output kind) {
    struct gpt_config config = gpt_of(shapes, recompute);
    if (recompute.outputs != GPT_OUTPUTS_FITTING)
        return recompute.outputs == GPT_OUTPUTS_KEPT && kind < GPT_ATTENTION;
    return gpt_cuda_keeps(&config, recompute.kept, unit - ends_of(shapes), kind);
}

uint64_t shapes_activation_bytes(const struct shapes *shapes, bool host, enum dtype dtype, uint64_t batch,
                                 uint32_t threads, struct shapes_recompute recompute, uint64_t *out_host) {
    struct gpt_config config = gpt_of(shapes, recompute);
    return host ? gpt_activation_bytes(&config, (uint32_t)batch, threads, (zero_dtype)dtype, out_host)
                : gpt_cuda_activation_bytes(&config, (uint32_t)batch, (zero_dtype)dtype, out_host);
}
