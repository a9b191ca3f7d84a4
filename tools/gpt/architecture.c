#include "tools/gpt/architecture.h"

#include <string.h>

#include "tools/gpt/cuda/kernels/kernels.h"

/* Hugging Face's "gpt2": linear layers are [inputs][outputs] (Conv1D). Only the head is [outputs][inputs], because it
 * may be the token embedding. */
static const struct architecture gpt2 = {
    .model_type = "gpt2",
    .title = "GPT-2",
    .family = {"GPT2LMHeadModel", "transformer.", "50257",
               ",\n  \"resid_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0"},
    .block_prefix = "h.%u.",
    .embedding =
        {[TOKEN_WEIGHT] = {"wte.weight", VOCAB, WIDTH}, [POSITION_WEIGHT] = {"wpe.weight", CONTEXT, WIDTH}},
    .block = {[NORM1_WEIGHT] = {"ln_1.weight", WIDTH, NONE},
              [NORM1_BIAS] = {"ln_1.bias", WIDTH, NONE},
              [QUERY_WEIGHT] = {"attn.c_attn.weight", WIDTH, QKV},
              [QUERY_BIAS] = {"attn.c_attn.bias", QKV, NONE},
              [PROJECT_WEIGHT] = {"attn.c_proj.weight", QUERY, WIDTH},
              [PROJECT_BIAS] = {"attn.c_proj.bias", WIDTH, NONE},
              [NORM2_WEIGHT] = {"ln_2.weight", WIDTH, NONE},
              [NORM2_BIAS] = {"ln_2.bias", WIDTH, NONE},
              [WIDEN_WEIGHT] = {"mlp.c_fc.weight", WIDTH, INNER},
              [WIDEN_BIAS] = {"mlp.c_fc.bias", INNER, NONE},
              [NARROW_WEIGHT] = {"mlp.c_proj.weight", INNER, WIDTH},
              [NARROW_BIAS] = {"mlp.c_proj.bias", WIDTH, NONE}},
    .head = {[FINAL_WEIGHT] = {"ln_f.weight", WIDTH, NONE},
             [FINAL_BIAS] = {"ln_f.bias", WIDTH, NONE},
             [HEAD_WEIGHT] = {"lm_head.weight", VOCAB, WIDTH}},
    .projection = {[PROJECT_QKV] = {1, {QUERY_WEIGHT}, WIDTH},
                   [PROJECT_MIXED] = {1, {PROJECT_WEIGHT}, QUERY},
                   [PROJECT_WIDEN] = {1, {WIDEN_WEIGHT}, WIDTH},
                   [PROJECT_NARROW] = {1, {NARROW_WEIGHT}, INNER}},
    .norm = LAYER_NORM,
    .mlp = GELU,
};

/* Llama's parts, which its relatives share: torch.nn.Linear's layout, [outputs][inputs]. */
#define LLAMA_BLOCK                                                                                          \
    [NORM1_WEIGHT] = {"input_layernorm.weight", WIDTH, NONE},                                                \
    [QUERY_WEIGHT] = {"self_attn.q_proj.weight", QUERY, WIDTH},                                              \
    [KEY_WEIGHT] = {"self_attn.k_proj.weight", KEY, WIDTH},                                                  \
    [VALUE_WEIGHT] = {"self_attn.v_proj.weight", KEY, WIDTH},                                                \
    [PROJECT_WEIGHT] = {"self_attn.o_proj.weight", WIDTH, QUERY},                                            \
    [NORM2_WEIGHT] = {"post_attention_layernorm.weight", WIDTH, NONE},                                       \
    [GATE_WEIGHT] = {"mlp.gate_proj.weight", INNER, WIDTH},                                                  \
    [WIDEN_WEIGHT] = {"mlp.up_proj.weight", INNER, WIDTH},                                                   \
    [NARROW_WEIGHT] = {"mlp.down_proj.weight", WIDTH, INNER}
#define LLAMA_REST                                                                                           \
    .block_prefix = "model.layers.%u.",                                                                      \
    .embedding = {[TOKEN_WEIGHT] = {"model.embed_tokens.weight", VOCAB, WIDTH}},                             \
    .head = {[FINAL_WEIGHT] = {"model.norm.weight", WIDTH, NONE},                                            \
             [HEAD_WEIGHT] = {"lm_head.weight", VOCAB, WIDTH}},                                              \
    .projection = {[PROJECT_QKV] = {3, {QUERY_WEIGHT, KEY_WEIGHT, VALUE_WEIGHT}, WIDTH},                     \
                   [PROJECT_MIXED] = {1, {PROJECT_WEIGHT}, QUERY},                                           \
                   [PROJECT_WIDEN] = {2, {GATE_WEIGHT, WIDEN_WEIGHT}, WIDTH},                                \
                   [PROJECT_NARROW] = {1, {NARROW_WEIGHT}, INNER}},                                          \
    .outputs_first = true, .norm = RMS_NORM, .mlp = SWIGLU, .rotary = true

static const struct architecture llama = {.model_type = "llama",
                                          .title = "Llama",
                                          .family = {"LlamaForCausalLM", "", "32000", ""},
                                          .block = {LLAMA_BLOCK},
                                          LLAMA_REST};

static const struct architecture mistral = {.model_type = "mistral",
                                            .title = "Mistral",
                                            .family = {"MistralForCausalLM", "", "32000", ""},
                                            .block = {LLAMA_BLOCK},
                                            LLAMA_REST};

static const struct architecture qwen2 = {
    .model_type = "qwen2",
    .title = "Qwen2",
    .family = {"Qwen2ForCausalLM", "", "", ""},
    .block = {LLAMA_BLOCK, [QUERY_BIAS] = {"self_attn.q_proj.bias", QUERY, NONE},
              [KEY_BIAS] = {"self_attn.k_proj.bias", KEY, NONE},
              [VALUE_BIAS] = {"self_attn.v_proj.bias", KEY, NONE}},
    LLAMA_REST};

static const struct architecture qwen3 = {
    .model_type = "qwen3",
    .title = "Qwen3",
    .family = {"Qwen3ForCausalLM", "", "", ""},
    .block = {LLAMA_BLOCK, [QUERY_NORM_WEIGHT] = {"self_attn.q_norm.weight", HEAD_WIDTH, NONE},
              [KEY_NORM_WEIGHT] = {"self_attn.k_norm.weight", HEAD_WIDTH, NONE}},
    LLAMA_REST};

const struct architecture *const architectures[GPT_ARCHITECTURES] = {[GPT_GPT2] = &gpt2,
                                                                     [GPT_LLAMA] = &llama,
                                                                     [GPT_MISTRAL] = &mistral,
                                                                     [GPT_QWEN2] = &qwen2,
                                                                     [GPT_QWEN3] = &qwen3};

enum gpt_architecture gpt_architecture_of(const char *model_type) {
    uint32_t i = 0;
    while (i < GPT_ARCHITECTURES && strcmp(architectures[i]->model_type, model_type) != 0) i++;
    return (enum gpt_architecture)i;
}

const char *gpt_title(const struct gpt_config *config) { return architecture_of(config)->title; }
const char *gpt_model_type(const struct gpt_config *config) { return architecture_of(config)->model_type; }

const struct gpt_family *gpt_family(const struct gpt_config *config) {
    return &architecture_of(config)->family;
}

const struct gpt_family *gpt_family_with(const char *first_param) {
    for (uint32_t i = 0; i < GPT_ARCHITECTURES; i++)
        if (strcmp(architectures[i]->embedding[TOKEN_WEIGHT].name, first_param) == 0)
            return &architectures[i]->family;
    return NULL;
}

bool gpt_any_context(const struct gpt_config *config) { return architecture_of(config)->rotary; }

uint64_t extent_of(const struct gpt_config *c, enum extent extent) {
    uint64_t query = (uint64_t)c->heads * c->head_width, key = (uint64_t)c->kv_heads * c->head_width;
    const uint64_t extents[EXTENTS] = {[NONE] = 1,         [WIDTH] = c->width, [HEAD_WIDTH] = c->head_width,
                                       [QUERY] = query,    [KEY] = key,        [QKV] = query + 2 * key,
                                       [INNER] = c->inner, [VOCAB] = c->vocab, [CONTEXT] = c->context};
    return extents[extent];
}

uint64_t projection_outputs(const struct gpt_config *c, enum projection_index index) {
    const struct architecture *a = architecture_of(c);
    const struct projection *p = &a->projection[index];
    uint64_t outputs = 0;
    for (uint8_t i = 0; i < p->layers; i++) {
        const struct declaration *d = &a->block[p->weight[i]];
        outputs += extent_of(c, a->outputs_first ? d->rows : d->columns);
    }
    return outputs;
}

uint64_t projection_right(const struct gpt_config *c, enum projection_index index) {
    const struct architecture *a = architecture_of(c);
    return a->outputs_first ? extent_of(c, a->projection[index].inputs) : projection_outputs(c, index);
}

struct gpt_config gpt_complete(const struct gpt_config *config) {
    struct gpt_config c = *config;
    if (!c.inner) c.inner = 4 * c.width;
    if (!c.kv_heads) c.kv_heads = c.heads;
    if (!c.head_width) c.head_width = c.width / c.heads;
    if (!c.micros) c.micros = 1;
    return c;
}

uint32_t gpt_vocab_blocks(const struct gpt_config *c) {
    uint32_t rows = vocab_block_rows(c);
    return rows ? (uint32_t)(((uint64_t)c->vocab + rows - 1) / rows) : 1;
}

uint32_t gpt_units(const struct gpt_config *c) { return c->layers + 2 * gpt_vocab_blocks(c); }

double gpt_keys_seen(const struct gpt_config *c, uint32_t block) {
    double context = c->context, window = window_of(c, block);
    if (window >= context) return (context + 1) / 2;
    return (window * (window + 1) / 2 + (context - window) * window) / context;
}

uint32_t gpt_cuda_head(const struct gpt_config *config, zero_dtype dtype) {
    static const uint32_t tiles[] = {64, 96, HEAD_WIDTH_MAX};
    struct gpt_config c = gpt_complete(config);
    uint32_t i = 0;
    if (dtype == ZERO_F32 || c.head_width % FLASH_MULTIPLE || c.head_width > HEAD_WIDTH_MAX) return 0;
    while (tiles[i] < c.head_width) i++;
    return tiles[i];
}

const char *gpt_cuda_slow(const struct gpt_config *config, zero_dtype dtype) {
    struct gpt_config c = gpt_complete(config);
    if (dtype == ZERO_F32)
        return "attention in fp32 uses no tensor cores: bf16 or fp16 is several times faster";
    if (!gpt_cuda_head(&c, dtype))
        return "attention uses no tensor cores and is several times slower: the width of a head is no "
               "multiple of 8";
    if (c.width % FLASH_MULTIPLE || c.inner % FLASH_MULTIPLE)
        return "products are slower, because the width of the model or of its MLP is no multiple of 8";
    return NULL;
}

const char *gpt_cuda_problem(const struct gpt_config *config) {
    struct gpt_config complete = gpt_complete(config);
    if (complete.head_width > HEAD_WIDTH_MAX)
        return "heads wider than 128 are computed on the CPU alone in this version: set device.type to "
               "\"cpu\"";
    if (complete.micros > 1 && config->checkpoints == ZERO_NVME && config->recompute != 1)
        return "zero_optimization.micro_order \"vertical\" with nvme_checkpointing needs "
               "activation_checkpointing.interval 1 on a GPU: set it, or use cpu_checkpointing";
    if (complete.micros > 1 && gpt_vocab_blocks(config) > 1) return GPT_NO_BLOCKS;
    return NULL;
}
