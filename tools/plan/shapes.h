/* What a model is to the planner: its units with their true shapes, the products of each, and what its forward leaves
 * for its backward. Two families: GPT-2's blocks (Radford et al. 2019) as tools/gpt has them, and Llama's (Touvron et
 * al. 2023). One row of a table per model. Pure. */
#ifndef ZERO_TOOLS_PLAN_SHAPES_H
#define ZERO_TOOLS_PLAN_SHAPES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/dtype.h"
#include "engine/config/config.h"
#include "engine/zero.h"

enum family { FAMILY_GPT2, FAMILY_LLAMA, FAMILIES };

struct shapes {
    const char *name, *source;
    enum family family;
    uint64_t layers, width, heads, kv_heads, context, vocab, inner;
    bool tied; /* the head is the token embedding */
};

/* By name, upper or lower case: "gpt2-xl", "llama-3-8b", "175B". NULL: there is none. */
const struct shapes *shapes_find(const char *name);
const struct shapes *shapes_at(uint32_t index); /* NULL past the last */
struct shapes shapes_of(const struct config_model *model);

/* Adds units and parameters to an engine: "embedding", "h.0" ..., "head". */
zero_status shapes_declare(const struct shapes *shapes, zero_engine *engine);

uint64_t shapes_parameters(const struct shapes *shapes); /* tied ones once */

/* Of one token in a unit's forward: 2 per weight that it is multiplied with, and of attention 4 * width per key that
 * the token sees, (context + 1) / 2 on average. A backward has twice as many. */
double shapes_forward_flops(const struct shapes *shapes, uint32_t unit);
uint32_t shapes_units(const struct shapes *shapes);

/* Bytes of activations and scratch on a rank, for batches of `batch` sequences.
 *
 * A host trains with tools/gpt: fp32 between products, scores by strips, in bf16 copies besides. Another device is
 * assumed to train in `dtype` with fused attention and without dropout: Korthikanti et al. 2022, "Reducing activation
 * recomputation", table 2, less the masks; logits in fp32, with their gradient. With `recompute` a block keeps its input
 * alone, and one block at a time has the rest (Chen et al. 2016, "Training deep nets with sublinear memory cost"). */
uint64_t shapes_activation_bytes(const struct shapes *shapes, bool host, enum dtype dtype, uint64_t batch,
                                 uint32_t threads, bool recompute);

#endif
