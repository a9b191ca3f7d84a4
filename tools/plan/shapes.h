/* The planner's view of a model: its units with their true shapes, the products of each unit, and the activations that
 * a forward keeps for its backward, for the architectures of tools/gpt. One row of a table per model. Pure. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "engine/config/config.h"
#include "engine/zero.h"
#include "tools/gpt/gpt.h"
#include "tools/plan/pass.h"

struct shapes {
    const char *name, *source;
    enum gpt_architecture architecture;
    uint64_t layers, width, heads, kv_heads, context, vocab, inner;
    bool tied;            /* the head is the token embedding */
    uint64_t head_width;  /* 0: width / heads */
    uint32_t vocab_block; /* rows of the vocabulary per unit; 0: embedding and head are one unit each */
    uint32_t window, window_from; /* as in struct gpt_config */
};

/* Finds a model by name, upper or lower case: "gpt2-xl", "llama-3-8b", "175B". NULL: none. */
const struct shapes *shapes_find(const char *name);
const struct shapes *shapes_at(uint32_t index); /* NULL past the last */
struct shapes shapes_of(const struct config_model *model);

/* Recomputation in segments of `blocks` blocks, from the input of a segment's first block; the same as in tools/gpt's
 * struct gpt_config. */
struct shapes_recompute {
    uint32_t blocks; /* 0: no recomputation */
    zero_tier tier;  /* of the inputs of segments */
    uint32_t micros; /* of a use, whose activations exist for each; 0: one */
    bool gpu;
    enum gpt_outputs outputs;
    /* GPT_OUTPUTS_FITTING: places for which there is room (struct gpt_spare). */
    uint32_t kept[GPT_OUTPUT_KINDS];
};
struct pass_segments shapes_segments(const struct shapes *shapes, uint32_t blocks);

/* NULL, or a sentence that says why the model cannot be computed on this kind of device. */
const char *shapes_problem(const struct shapes *shapes, bool host, struct shapes_recompute recompute);

/* Adds units and parameters to an engine, as tools/gpt does; and the recomputed segments with the scratch of
 * their inputs. The parameters share `slot`: for engines that only plan, or that are not used. *out_trained, unless NULL: the blocks
 * that the backward runs. */
zero_status shapes_declare(const struct shapes *shapes, struct shapes_recompute recompute,
                           zero_engine *engine, zero_slot *slot, uint32_t *out_trained);

uint64_t shapes_parameters(const struct shapes *shapes); /* counts a tied parameter once */

/* FLOP of one token in a unit's forward: 2 per weight, and for attention 4 * width per key that the token sees,
 * (context + 1) / 2 on average. A backward has twice as many. */
double shapes_forward_flops(const struct shapes *shapes, uint32_t unit);
/* Of all units' forward and backward, for so many tokens. */
double shapes_step_flops(const struct shapes *shapes, double tokens);
/* On a GPU: how many times the FLOP of attention the tensor cores multiply, because heads are filled up with zeros. 0: attention does
 * not use them. */
double shapes_attention_fill(const struct shapes *shapes, enum dtype dtype);
/* FLOP of one token that a unit's backward computes again of its forward: logits, if the vocabulary is cut. */
double shapes_again_flops(const struct shapes *shapes, uint32_t unit);
bool shapes_embeds(const struct shapes *shapes,
                   uint32_t unit); /* a unit of the embedding, of which only rows are read */
double shapes_weight_flops(const struct shapes *shapes, uint32_t unit); /* only the products with weights */
double shapes_output_flops(const struct shapes *shapes);                /* of a block's last product */
uint32_t shapes_units(const struct shapes *shapes);

/* Bytes of the drive that the input of a segment of a micro-batch takes; 0: it stays in memory. */
uint64_t shapes_checkpoint_bytes(const struct shapes *shapes, enum dtype dtype, uint64_t batch,
                                 struct shapes_recompute recompute);
/* The number of last segments whose inputs stay in memory; 0: all inputs stay. */
uint32_t shapes_checkpoints_kept(const struct shapes *shapes, struct shapes_recompute recompute);

/* On a GPU: the spare memory of outputs that are kept (gpt_cuda_spares). */
uint32_t shapes_spares(const struct shapes *shapes, enum dtype dtype, uint64_t batch,
                       struct shapes_recompute recompute, uint32_t trained,
                       struct gpt_spare out[GPT_OUTPUT_KINDS]);
/* True if a unit, which is a block, keeps its outputs of this kind. */
bool shapes_keeps(const struct shapes *shapes, struct shapes_recompute recompute, uint32_t unit,
                  enum gpt_output kind);

/* Bytes of activations and scratch on a rank for batches of `batch` sequences: the bytes that tools/gpt reserves on a
 * host with `threads` threads, or on a GPU. *out_host: the part in host memory; for a GPU it is pinned. */
uint64_t shapes_activation_bytes(const struct shapes *shapes, bool host, enum dtype dtype, uint64_t batch,
                                 uint32_t threads, struct shapes_recompute recompute, uint64_t *out_host);
