/* Causal self-attention of all heads: softmax(Q K^T / sqrt(head width)) V. It computes strips of QUERY_ROWS queries
 * with the keys that these queries see. It therefore skips most of the work above the diagonal and stores no T x T
 * matrix: the backward recomputes the probabilities from the logarithm of their sum (Dao et al. 2022,
 * FlashAttention). */
#pragma once

#include "tools/gpt/model.h"

/* Task index = sequence * heads + head, for parallel_run. Reads saved->qkv, bias included; writes saved->mixed and lse.
 * A row of qkv holds the queries of all heads, then the keys, then the values. With fewer heads of keys and values than
 * of queries, each of them serves a group of consecutive query heads (Ainslie et al. 2023, grouped-query attention). A
 * token sees `window` tokens at most, itself included; UINT32_MAX: all before it. */
void attention_forward(struct gpt *gpt, const struct saved *saved, uint32_t window, uint32_t index,
                       uint32_t thread);

/* Task index = sequence * kv_heads + head of keys. Reads `gradient`, the gradient of saved->mixed, and overwrites
 * saved->qkv with the gradient of saved->qkv. */
void attention_backward(struct gpt *gpt, const struct saved *saved, const float *gradient, uint32_t window,
                        uint32_t index, uint32_t thread);
