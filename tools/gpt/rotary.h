/* Rotary positions (Su et al. 2021, RoFormer, section 3.4), with Hugging Face's pairs: column i of a head with column i
 * + half. */
#pragma once

#include "tools/gpt/model.h"

/* Computes the angles of every position and every pair, [context][head_width / 2]. Does nothing if the arrays are
 * NULL. */
void rotary_fill(float *cosine, float *sine, const struct gpt_config *config);

/* Rotates `heads` heads that stand side by side, in `rows` rows from row `first` of the pass on, `ld` apart; `back`: by
 * the negative angle. Does nothing if there are no angles. */
void rotary_turn(const struct gpt *gpt, float *x, uint64_t ld, uint32_t heads, uint32_t first, uint32_t rows,
                 bool back);
