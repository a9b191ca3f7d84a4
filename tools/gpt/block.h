/* What the block's forward and backward share: the arrays of one tile. */
#ifndef ZERO_TOOLS_GPT_BLOCK_H
#define ZERO_TOOLS_GPT_BLOCK_H

#include "tools/gpt/model.h"

/* The context of a block's tasks. */
struct block {
    struct gpt *gpt;
    struct unit *unit;
    const struct saved *saved;
    const float *input; /* residual[index] */
    float *output;      /* forward: residual[index + 1] */
    float *gradient;    /* backward: of the output; then of the input */
    float *middle_gradient;
};

static inline struct block block_at(struct gpt *gpt, uint32_t index) {
    return (struct block){.gpt = gpt,
                          .unit = &gpt->blocks[index],
                          .saved = &gpt->activations.saved[index],
                          .input = gpt->activations.residual[index],
                          .output = gpt->activations.residual[index + 1]};
}

/* A vector. */
static inline const float *param(const struct block *b, enum block_param index) {
    return b->unit->view[index].param;
}

static inline struct matrix weight(const struct block *b, enum block_param index, uint64_t ld) {
    return weight_of(b->gpt, &b->unit->view[index], ld, PLAIN);
}

#endif
