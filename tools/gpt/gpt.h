/* A GPT that is trained only through engine/zero.h, in one of these architectures, with a tied or an own head:
 *   GPT-2 (Radford et al. 2019; Hugging Face's "gpt2"): learned positions, LayerNorm, tanh GELU, biases;
 *   Llama (Touvron et al. 2023; Hugging Face's "llama"): rotary positions (Su et al. 2021), RMSNorm, SwiGLU,
 *   grouped queries, no biases;
 *   Mistral (Jiang et al. 2023): a Llama whose tokens may see only the last `window` tokens;
 *   Qwen2 and 2.5 (Yang et al. 2024): a Llama with biases of queries, keys and values;
 *   Qwen3, dense (Yang et al. 2025): a Llama with an RMSNorm of each head's queries and keys.
 * Units: "embedding", "h.0" ... "h.N-1" (one per block), "head" (the last norm, and the head or the tied embedding). With
 * vocab_block, "embedding.0" ... and "head.0" ...: the first has all that is not a row of the vocabulary.
 * Owns activations (one allocation per tier, declared with zero_engine_reserve); borrows the engine. Threads: the
 * rank's own thread; OpenMP inside, with zero_engine_threads() threads. If the engine is on a GPU (zero_engine_cuda),
 * the GPU does all compute, enqueued on the engine's stream, in fp32, bf16 or fp16.
 * The bits of losses and gradients depend on the model, the batch, the machine and the library versions, not on the
 * schedule. They do not depend on the number of threads either, up to 8 threads with at least 128 rows (batch *
 * context) each. */
#pragma once

#include <stdbool.h>

#include "engine/zero.h"

enum gpt_architecture { GPT_GPT2, GPT_LLAMA, GPT_MISTRAL, GPT_QWEN2, GPT_QWEN3, GPT_ARCHITECTURES };

/* By Hugging Face's name, as a configuration gives it (config_architecture); GPT_ARCHITECTURES: there is none. */
enum gpt_architecture gpt_architecture_of(const char *model_type);

/* Rotary positions: position * theta^(-2 i / head_width) is the angle of pair i of a head's columns. They can be stretched
 * to longer texts, with Hugging Face's names of the ways:
 *   linear: all pairs turn slower, by `factor`;
 *   llama3, yarn: the pairs that turn less than `low` times in `original_context` turn slower by `factor`, those that turn
 *   more than `high` times are as they were, and those in between are blends: by their turns (llama3), or by their index
 *   (yarn; Peng et al. 2023, section 3.2), from whole indices on unless `exact_range`;
 *   yarn also multiplies rotated queries and keys by `attention` each (section 3.3). */
enum gpt_rope_kind { GPT_ROPE_PLAIN, GPT_ROPE_LLAMA3, GPT_ROPE_LINEAR, GPT_ROPE_YARN, GPT_ROPE_KINDS };
struct gpt_rope {
    double theta, factor, low, high;
    uint32_t original_context;
    enum gpt_rope_kind kind;
    double attention;
    bool exact_range;
};

/* On a GPU: what norms and the MLP's activation give is needed by a backward, too. It computes these outputs again from their inputs, or the
 * forward keeps them: that takes more memory, and moves fewer bytes. Of blocks that are computed again, GPT_OUTPUTS_FITTING also keeps
 * what the two parts of a block leave for its backward (Korthikanti et al. 2022). The bits are the same. */
enum gpt_outputs {
    GPT_OUTPUTS_AGAIN,
    GPT_OUTPUTS_KEPT,
    GPT_OUTPUTS_FITTING /* kept as far as the plan leaves room: gpt_keep_outputs */
};
enum gpt_output {
    GPT_NORMS,
    GPT_ACTIVATIONS,
    GPT_ATTENTION, /* the part of a block up to attention's projection */
    GPT_MLP,       /* and the part from there to the input of the MLP's activation */
    GPT_OUTPUT_KINDS
};

/* On a GPU attention multiplies by mma.sync, or by warpgroups (wgmma): on sm_90, in bf16, for heads up to 64 and of 97 to 128. The two
 * have other bits. Before a rank uses warpgroups, both compute a small problem; where they differ by more than their roundings, gpt_create
 * fails. */
enum gpt_attention {
    GPT_ATTENTION_AUTO, /* warpgroups where they can be used */
    GPT_ATTENTION_MMA
};

struct gpt_config {
    enum gpt_architecture architecture;
    uint32_t layers, width, heads, context, vocab, inner; /* inner: of the MLP; 0: 4 * width */
    uint32_t kv_heads, head_width;                        /* 0: heads, width / heads */
    struct gpt_rope rope;                                 /* all but GPT-2 */
    /* In blocks window_from and above, a token sees `window` tokens at most, itself included; 0: all before it. */
    uint32_t window, window_from;
    bool tied;                                    /* the head is the token embedding */
    double layer_norm_epsilon, initializer_range; /* epsilon: of either kind of norm */

    /* If `documents`: in training and evaluation, another document begins after each target GPT_NEXT_DOCUMENT. Its attention
     * sees none of the earlier ones, and its positions begin at 0, as if it were a sequence of its own. */
    bool documents;

    /* Recomputation (Chen et al. 2016): every `recompute` blocks form a segment. From forward to backward only the
     * input of the segment's first block is kept; the backward computes the segment again. 0: all activations are kept.
     * The bits are the same in every case. The last segment is not computed again, because its activations are still in
     * memory. checkpoints: the tier of the kept inputs. ZERO_NVME: they go to a scratch on the drive, and memory has a few slots for
     * them, whatever the number of layers (checkpoints.h; on a GPU cuda/checkpoints.c). */
    uint32_t recompute;
    zero_tier checkpoints;

    bool gpu; /* it computes on a GPU; gpt_create asks the engine, so this is for programs that only plan */

    /* Rows of the vocabulary per unit: the embedding and the head are cut into units of so many rows, the last one of fewer, so
     * that one of them is gathered at a time. 0, or the vocabulary: one unit each. The loss is then computed by blocks with a
     * running maximum (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), and the head's forward and
     * backward each use every block once. Its sums have another order, so losses and gradients round differently than without
     * blocks. Checkpoints, the weights' hash and fills are those of whole tensors. On a GPU not with several micros. */
    uint32_t vocab_block;

    /* Micro-batches that each use of a unit computes, one after another (zero_engine_use_micros, which gpt_create asks): what a
     * forward keeps exists for each of them. With recompute 1 the backward of a block computes its forward again right before each
     * micro-batch, so that what a block's forward leaves exists once; the last block's, too. On a GPU their inputs and gradients then wait in memory of
     * `checkpoints`, of the device or the host (cuda/waiting.c). 0: one. */
    uint32_t micros;

    /* on a GPU: enqueue all work again each time instead of replaying CUDA graphs; the same bits */
    bool no_graphs;

    enum gpt_outputs outputs; /* on a GPU */

    enum gpt_attention attention;

    /* on a GPU: the bytes of logits that exist at a time; 0: 1 GiB */
    uint64_t logits_bytes;
};

struct gpt;

/* NULL, or a sentence that says what is wrong with the configuration. */
const char *gpt_config_problem(const struct gpt_config *config);

/* NULL, or a sentence that says why the GPT cannot compute in the engine's type on this machine. */
const char *gpt_engine_problem(const zero_engine *engine);

/* The same of a model where the engine is on a GPU. */
const char *gpt_cuda_problem(const struct gpt_config *config);

/* The width to which attention on a GPU fills heads up, to multiply them on the tensor cores; 0: it does not use them. */
uint32_t gpt_cuda_head(const struct gpt_config *config, zero_dtype dtype);
/* NULL, or a sentence that says what is slow on a GPU, and what would be faster. */
const char *gpt_cuda_slow(const struct gpt_config *config, zero_dtype dtype);

/* The same of vocab_block in vertical order, where the engine is on a GPU. */
#define GPT_NO_BLOCKS                                                                                        \
    "zero_optimization.vocabulary_block_rows with micro_order \"vertical\" is computed on the CPU alone in " \
    "this version: remove one of the keys, or set device.type to \"cpu\""

/* Blocks of the vocabulary, at least 1; units of the engine: layers, and twice as many as there are such blocks. */
uint32_t gpt_vocab_blocks(const struct gpt_config *config);
uint32_t gpt_units(const struct gpt_config *config);

/* Declares the units and parameters (before commit) and reserves activations for batches of `batch` sequences
 * of config->context tokens. Tensor names and layouts are Hugging Face's: "wte.weight", "h.0.attn.c_attn.weight"
 * ..., or "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight" ... The tied head is "lm_head.weight",
 * tied to the token embedding. ZERO_E_ARGUMENT: see gpt_config_problem; batch *
 * context is below 2^31. ZERO_E_UNSUPPORTED: see gpt_engine_problem, gpt_cuda_problem. ZERO_E_CONFIG: no directory for checkpoints
 * on the drive. */
zero_status gpt_create(zero_engine *engine, const struct gpt_config *config, uint32_t batch,
                       struct gpt **out);
void gpt_destroy(struct gpt *gpt);

/* GPT_OUTPUTS_FITTING: gpt_create declares spare memory (zero_engine_reserve_spare) for outputs. After commit gpt_keep_outputs takes what was
 * granted; without the call nothing is kept. A failure leaves everything to be computed again, with the same bits: the GPT goes on, and
 * gpt_last_error has a sentence. gpt_kept: the blocks whose outputs of a kind are kept; 0 on the host. */
zero_status gpt_keep_outputs(struct gpt *gpt);
uint32_t gpt_kept(const struct gpt *gpt, enum gpt_output kind);

/* The spare memory: parts of outputs of a kind, in the order in which memory for them saves most time. Blocks share places of the outputs
 * of norms and activations: block b uses place b % places, where places are the layers, or the blocks of a recomputed segment. Of the
 * blocks that are computed again, the last ones keep their attention or their MLP, in places of their own. `trained`: the blocks that the
 * backward runs. Returns how many there are. */
struct gpt_spare {
    enum gpt_output kind;
    uint64_t part_bytes; /* of a place */
    uint32_t parts;      /* places */
};
uint32_t gpt_cuda_spares(const struct gpt_config *config, uint32_t batch, zero_dtype dtype, uint32_t trained,
                         struct gpt_spare out[GPT_OUTPUT_KINDS]);
/* True if block `block` keeps outputs of this kind, where `kept` are the places of each kind. A block that keeps its attention or its MLP
 * does without kept outputs of norms and activations. */
bool gpt_cuda_keeps(const struct gpt_config *config, const uint32_t kept[GPT_OUTPUT_KINDS], uint32_t block,
                    enum gpt_output kind);

/* The name of the GPU; "": the host computes. */
enum { GPT_DEVICE_NAME_BYTES = 100 };
void gpt_device_name(const struct gpt *gpt, char out[GPT_DEVICE_NAME_BYTES]);

/* For programs that only plan: gpt_declare declares the same units and parameters, which share a slot, and the same scratch.
 * *out_trained, unless NULL: the blocks that the backward runs.
 * gpt_activation_bytes returns the bytes that gpt_create would reserve, *out_cpu of them on the cpu tier. The
 * configuration must have no problem. */
zero_status gpt_declare(zero_engine *engine, const struct gpt_config *config, zero_slot *slot,
                        uint32_t *out_trained);
uint64_t gpt_activation_bytes(const struct gpt_config *config, uint32_t batch, uint32_t threads,
                              zero_dtype dtype, uint64_t *out_cpu);
/* On the drive, of the input of one segment of a micro-batch; 0: none goes there. */
uint64_t gpt_checkpoint_bytes(const struct gpt_config *config, uint32_t batch, zero_dtype dtype);
/* The inputs of so many segments, the last ones, never go to the drive. */
uint32_t gpt_checkpoints_kept(const struct gpt_config *config);
/* The same as gpt_activation_bytes for an engine on a GPU. */
uint64_t gpt_cuda_activation_bytes(const struct gpt_config *config, uint32_t batch, zero_dtype dtype,
                                   uint64_t *out_cpu);

/* The reason why the last call in this thread failed, in a sentence, if the engine (zero_last_error) does not know it:
 * a missing library, or an error of the GPU. Else "". */
const char *gpt_last_error(void);

const char *gpt_title(const struct gpt_config *config);      /* of the architecture */
const char *gpt_model_type(const struct gpt_config *config); /* Hugging Face's name of it */

/* The values that transformers expects in a directory of an architecture. */
struct gpt_family {
    const char *model_class, *prefix; /* prefix: of all parameters except the head */
    const char *vocabulary; /* set only for the architecture's own vocabulary, which has this end of text */
    const char *more;       /* config.json's members beside the model block: the training used no dropout */
};
const struct gpt_family *gpt_family(const struct gpt_config *config);
/* Of the first architecture whose first parameter has this name; NULL: none has. */
const struct gpt_family *gpt_family_with(const char *first_param);

/* True if no parameter depends on config->context, which then only limits the length of a sequence and sizes
 * activations. */
bool gpt_any_context(const struct gpt_config *config);

/* The distinct parameters, in the order in which gpt_create adds them; false past the last. */
struct gpt_param {
    char name[64];
    uint32_t dims;
    uint64_t shape[2], count;
};
bool gpt_param_at(const struct gpt_config *config, uint32_t index, struct gpt_param *out);

uint64_t gpt_parameters(const struct gpt_config *config); /* distinct elements */

/* Flops per token in the products with the weights of the engine's unit `unit`: 0 of a unit of the embedding. */
double gpt_unit_flops(const struct gpt_config *config, uint32_t unit);

/* The keys that a token of a block sees, on average: (context + 1) / 2 without a window. */
double gpt_keys_seen(const struct gpt_config *config, uint32_t block);

/* Flops of the matrix products per token, forward and backward: 6 per weight of the linear layers and the head (tied or
 * not; not the embeddings, which are read, not multiplied), and 12 * width per layer and per key that a token sees
 * (gpt_keys_seen): two products forward and four backward. The scores that the backward computes again do
 * not count. */
double gpt_flops_per_token(const struct gpt_config *config);

/* A zero_fill_fn; `user` points to struct gpt_init. The value of an element depends only on the seed, the parameter's
 * name and the element's index. Values are normal with deviation initializer_range. GPT-2 divides the deviation by
 * sqrt(2 layers) for the projections onto the residual stream (Radford et al. 2019, section 2.3); Hugging Face's Llama
 * does not. The norms' weights are 1, biases are 0. */
struct gpt_init {
    uint64_t seed;
    struct gpt_config config;
    uint32_t threads; /* 0: one; values do not depend on it */
};
void gpt_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out);

/* Targets that do not count: their positions have no loss and no gradient. */
enum { GPT_NO_TARGET = -1, GPT_NEXT_DOCUMENT = -2 };

/* From now on, losses and their gradients are sums over the targets that count, divided by `divisor`. For a mean over all ranks and
 * micro-steps of a step, give all ranks the number of their targets that count, over ranks * micro-steps. 0, as at first: all
 * positions of a micro-step. */
void gpt_set_divisor(struct gpt *gpt, double divisor);

/* Runs one training pass, zero_micro_begin included: zero_engine_use_micros micro-steps. tokens and targets are micro-steps x batch x
 * context; out_loss[micro-step] is their mean cross-entropy in nats; an evaluation has one. Returns any failure of the engine; ZERO_E_ARGUMENT, before any call to the engine: a token
 * outside the vocabulary (a target may be one that does not count); ZERO_E_MEMORY: oneDNN had no memory for its scratch. */
zero_status gpt_train(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, double out_loss[]);

/* Evaluates the first `sequences` of a batch; 0: all. */
zero_status gpt_evaluate(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, uint32_t sequences,
                         double *out_loss);

/* Evaluates one sequence of `length` <= context tokens. out_logits: vocab floats, the logits of the position after the last token. The
 * caller says that the first `known` < length tokens are those of its last call, and that the weights are the same: their keys and
 * values are still in memory, and only the tokens after them are computed; the logits are the same up to rounding. With recomputation,
 * or on a GPU, everything is computed. */
zero_status gpt_next_logits(struct gpt *gpt, const int32_t *tokens, uint32_t length, uint32_t known,
                            float *out_logits);
