/* Chooses the next token from logits. */
#ifndef ZERO_TOOLS_COMMAND_CHOOSE_H
#define ZERO_TOOLS_COMMAND_CHOOSE_H

#include <stdint.h>

/* The order is that of transformers: the temperature, then the k largest, then the smallest set of the most probable tokens
 * whose probability is at least top_p. */
struct choosing {
    double temperature; /* 0: the most probable token */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* 1: all */
};

#define CHOOSING_DEFAULT                                                                                     \
    (struct choosing) { .temperature = 0.8, .top_p = 1 }

struct candidate {
    double weight;
    int32_t token;
};

/* *state: of the draws; the same state gives the same token. `scratch`: vocab of them. */
int32_t choose_token(const struct choosing *choosing, const float *logits, uint32_t vocab, uint64_t *state,
                     struct candidate *scratch);

#endif
