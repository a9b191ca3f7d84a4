/* The parts of each architecture: its parameters by role, and the kinds of its norm, MLP and positions. The passes read
 * these tables and never test for an architecture by name; a new architecture is a new row here. A part that an
 * architecture lacks (a bias, a table of positions) has a declaration without a name. */
#pragma once

#include "tools/gpt/gpt.h"
#include "tools/gpt/math/kernels.h"

enum embedding_param { TOKEN_WEIGHT, POSITION_WEIGHT, EMBEDDING_PARAMS };
enum block_param {
    NORM1_WEIGHT,
    NORM1_BIAS,
    QUERY_WEIGHT, /* or query, key and value side by side */
    KEY_WEIGHT,
    VALUE_WEIGHT,
    QUERY_BIAS, /* or query, key and value side by side */
    KEY_BIAS,
    VALUE_BIAS,
    QUERY_NORM_WEIGHT, /* of each head */
    KEY_NORM_WEIGHT,
    PROJECT_WEIGHT,
    PROJECT_BIAS,
    NORM2_WEIGHT,
    NORM2_BIAS,
    GATE_WEIGHT,
    WIDEN_WEIGHT,
    WIDEN_BIAS,
    NARROW_WEIGHT,
    NARROW_BIAS,
    BLOCK_PARAMS
};
enum head_param { FINAL_WEIGHT, FINAL_BIAS, HEAD_WEIGHT, HEAD_PARAMS };
enum { UNIT_PARAMS_MAX = BLOCK_PARAMS, LAYERS_MAX = 3 };

/* Widths, which follow from the configuration. */
enum extent { NONE, WIDTH, HEAD_WIDTH, QUERY, KEY, QKV, INNER, VOCAB, CONTEXT, EXTENTS };

struct declaration {
    const char *name;          /* after the block's prefix; NULL: no such parameter */
    enum extent rows, columns; /* columns NONE: a vector */
};

/* Linear layers with the same input, whose outputs stand side by side in one array. */
enum projection_index { PROJECT_QKV, PROJECT_MIXED, PROJECT_WIDEN, PROJECT_NARROW, PROJECTIONS };
struct projection {
    uint8_t layers, weight[LAYERS_MAX]; /* enum block_param */
    enum extent inputs;
};

struct architecture {
    const char *model_type, *title; /* Hugging Face's model_type */
    struct gpt_family family;
    const char *block_prefix; /* prefix of names, with the block's number */
    struct declaration embedding[EMBEDDING_PARAMS], block[BLOCK_PARAMS], head[HEAD_PARAMS];
    struct projection projection[PROJECTIONS];
    bool outputs_first; /* a block's weights are [outputs][inputs] */
    enum norm_kind norm;
    enum mlp_kind mlp;
    bool rotary; /* positions rotate queries and keys */
};

extern const struct architecture *const architectures[GPT_ARCHITECTURES]; /* index: enum gpt_architecture */

static inline const struct architecture *architecture_of(const struct gpt_config *config) {
    return architectures[config->architecture];
}

/* Queries and keys pass through a norm of their own. */
static inline bool norms_heads(const struct gpt_config *config) {
    return architecture_of(config)->block[QUERY_NORM_WEIGHT].name != NULL;
}

/* How many tokens up to itself a token of block `index` sees, at most. */
static inline uint32_t window_of(const struct gpt_config *config, uint32_t index) {
    return config->window && index >= config->window_from ? config->window : UINT32_MAX;
}

/* The width for a complete configuration. NONE is 1. */
uint64_t extent_of(const struct gpt_config *config, enum extent extent);

/* The columns of the array that a projection writes. */
uint64_t projection_outputs(const struct gpt_config *config, enum projection_index index);

/* The columns of a projection's stored weights, which are the columns of the right factor of their gradients. */
uint64_t projection_right(const struct gpt_config *config, enum projection_index index);

/* The elements of unit 0 (the embedding), 1 ... layers (the blocks, all alike) or layers + 1 (the head, without tied
 * parameters). */
uint64_t declared_elements(const struct gpt_config *config, uint32_t unit, bool vectors_alone);

struct gpt_config gpt_complete(const struct gpt_config *config); /* fills in the defaults */

/* The rows of the largest block of the vocabulary: the first. */
static inline uint32_t vocab_block_rows(const struct gpt_config *c) {
    return c->vocab_block && c->vocab_block < c->vocab ? c->vocab_block : c->vocab;
}
