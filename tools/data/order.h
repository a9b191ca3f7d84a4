/* The order of samples. It is part of the contract, so that runs can be compared, also with other systems.
 * A stream of n tokens has floor((n - 1) / T) samples; sample i is tokens [i*T, i*T + T]; the last token is only a
 * target. Micro-step k of rank r of N in step s, with micro-batch B and A micro-steps, takes the B positions from ((s*A
 * + k)*N + r)*B. Position p is the sample p mod n_samples ("sequential"), or ("shuffled") its image under a permutation
 * of the samples that the seed and the epoch p / n_samples choose: a Feistel network with cycle walking, so that
 * shuffling needs no memory. Pure functions. */
#pragma once

#include "tools/data/reader.h"

struct order {
    uint64_t first; /* the stream's token with which sample 0 begins */
    uint64_t samples;
    uint32_t context; /* T */
    bool shuffled;
    uint64_t seed;
    bool documents; /* a token `document_end` ends a document, unless it is inside one by the loss mask */
    int32_t document_end;
};

static inline uint64_t order_samples(uint64_t tokens, uint32_t context) {
    return tokens ? (tokens - 1) / context : 0;
}

/* The sample at `position` of the endless sequence. */
uint64_t order_sample(const struct order *order, uint64_t position);

struct sample_place {
    uint64_t step;
    uint32_t micro, micro_count, rank, ranks, batch;
};
static inline uint64_t order_position(struct sample_place at) {
    return ((at.step * at.micro_count + at.micro) * at.ranks + at.rank) * at.batch;
}

/* Reads `batch` samples from `position` on; tokens and targets are batch x context. Targets that a loss mask leaves out are READER_NO_TARGET; those that another document begins with are READER_NEXT_DOCUMENT. */
zero_status order_read(const struct order *order, struct reader *reader, uint64_t position, uint32_t batch,
                       int32_t *tokens, int32_t *targets, struct zero_error *error);

/* The number of targets that count. */
static inline uint64_t order_counted(const int32_t *targets, uint64_t count) {
    uint64_t counted = 0;
    for (uint64_t i = 0; i < count; i++) counted += targets[i] >= 0;
    return counted;
}
