/* The logits of a checkpoint's model after a row of tokens, by the engine and the GPT that the command trains. */
#ifndef ZERO_TESTS_TOOLS_WEIGHTS_LOGITS_H
#define ZERO_TESTS_TOOLS_WEIGHTS_LOGITS_H

#include <stdint.h>

#include "tools/gpt/gpt.h"

enum { LOGITS_TOKENS_MAX = 64, LOGITS_VOCAB_MAX = 512 };

/* The content of logits.txt: the tokens, then a row of `vocab` logits per token. */
struct logits {
    uint32_t tokens, vocab;
    int32_t token[LOGITS_TOKENS_MAX];
    float value[LOGITS_TOKENS_MAX][LOGITS_VOCAB_MAX];
};

int logits_read(const char *path, uint32_t vocab, struct logits *out); /* 0: no such file, or damaged */

/* The largest difference between `expected` and the logits of `checkpoint`, on `ranks` ranks at stage 3; negative: the
 * checkpoint cannot be loaded. */
double logits_compare(const char *checkpoint, const struct gpt_config *model, uint32_t ranks,
                      const struct logits *expected);

#endif
