/* Rotary positions (Su et al. 2021, RoFormer, section 3.4), with Hugging Face's pairs: column i of a head and column i +
 * half. */
#ifndef ZERO_TOOLS_GPT_ROTARY_H
#define ZERO_TOOLS_GPT_ROTARY_H

#include "tools/gpt/model.h"

/* Of every position of the context and every pair, [context][head_width / 2]; without arrays, nothing. */
void rotary_fill(float *cosine, float *sine, const struct gpt_config *config);

/* Turns `heads` heads that stand side by side, of `rows` rows from row `first` of the pass on, `ld` apart: on, or back.
 * Without angles, nothing. */
void rotary_turn(const struct gpt *gpt, float *x, uint64_t ld, uint32_t heads, uint32_t first, uint32_t rows,
                 bool back);

#endif
