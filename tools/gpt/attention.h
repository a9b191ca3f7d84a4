/* Causal self-attention of all heads: softmax(Q K^T / sqrt(head width)) V, as strips of QUERY_ROWS queries against
 * the keys that they see, so that most of the work above the diagonal is skipped and no T x T matrix is stored: the
 * backward recomputes the probabilities from the logarithm of their sum (Dao et al. 2022, FlashAttention). */
#ifndef ZERO_TOOLS_GPT_ATTENTION_H
#define ZERO_TOOLS_GPT_ATTENTION_H

#include "tools/gpt/model.h"

/* Task index = sequence * heads + head, for parallel_run's scheduling. saved->qkv, with bias -> saved->mixed,
 * lse. A row of qkv is all heads' queries, then the keys, then the values. Where there are fewer of those, each serves
 * as many queries' heads in turn (Ainslie et al. 2023, grouped-query attention). */
void attention_forward(struct gpt *gpt, const struct saved *saved, uint32_t index, uint32_t thread);

/* Task index = sequence * kv_heads + head of keys. `gradient` of saved->mixed -> saved->qkv becomes its own gradient. */
void attention_backward(struct gpt *gpt, const struct saved *saved, const float *gradient, uint32_t index,
                        uint32_t thread);

#endif
