#include "tools/data/order.h"

#include <string.h>

#include "engine/base/hash.h"

enum {
    FEISTEL_ROUNDS = 6
}; /* four rounds make a pseudo-random permutation (Luby and Rackoff 1988); two more for small halves */

static uint64_t mix(uint64_t x) { return hash_mix(x + HASH_STEP); }

static uint32_t half_bits(uint64_t samples) {
    uint32_t bits = 1;
    while (bits < 32 && (UINT64_C(1) << (2 * bits)) < samples) bits++;
    return bits;
}

static uint64_t feistel(uint64_t x, uint32_t bits, uint64_t key) {
    uint64_t mask = (UINT64_C(1) << bits) - 1, left = x >> bits, right = x & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint64_t next = left ^ (mix(key ^ mix(right ^ round << 56)) & mask);
        left = right;
        right = next;
    }
    return left << bits | right;
}

/* The network permutes a power of four that is less than four times the number of samples. A value outside the samples
 * is permuted again until it is inside, which gives a permutation of the samples. */
static uint64_t permute(uint64_t x, uint64_t samples, uint64_t key) {
    uint32_t bits = half_bits(samples);
    do x = feistel(x, bits, key);
    while (x >= samples);
    return x;
}

uint64_t order_sample(const struct order *order, uint64_t position) {
    uint64_t epoch = position / order->samples, index = position % order->samples;
    return order->shuffled ? permute(index, order->samples, mix(order->seed) ^ mix(~epoch)) : index;
}

/* The target after the end of a document is the begin of another one. A loss mask may say that a token of that number ends none. */
static zero_status part_documents(const struct order *order, struct reader *reader, uint64_t first,
                                  const int32_t *tokens, int32_t *targets, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < order->context && !status; i++) {
        bool inside = false;
        if (tokens[i] != order->document_end) continue;
        status = reader_inside(reader, first + i, &inside, error);
        if (!inside) targets[i] = READER_NEXT_DOCUMENT;
    }
    return status;
}

static zero_status read_sample(const struct order *order, struct reader *reader, uint64_t sample,
                               int32_t *tokens, int32_t *targets, struct zero_error *error) {
    uint32_t context = order->context;
    uint64_t first = order->first + sample * context;
    TRY(reader_read(reader, first, context, tokens, error));
    memcpy(targets, tokens + 1, (context - 1) * sizeof *targets);
    zero_status status = reader_read(reader, first + context, 1, targets + context - 1, error);
    if (!status) status = reader_mask(reader, first + 1, context, targets, error);
    return status || !order->documents ? status
                                       : part_documents(order, reader, first, tokens, targets, error);
}

zero_status order_read(const struct order *order, struct reader *reader, uint64_t position, uint32_t batch,
                       int32_t *tokens, int32_t *targets, struct zero_error *error) {
    for (uint32_t i = 0; i < batch; i++) {
        uint64_t to = (uint64_t)i * order->context;
        TRY(read_sample(order, reader, order_sample(order, position + i), tokens + to, targets + to, error));
    }
    return ZERO_OK;
}
