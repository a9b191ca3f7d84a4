#include "tools/train/job.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/hash.h"

/* splitmix64; in [0, 1). */
static double draw(uint64_t *state) { return (double)(hash_mix(*state += HASH_STEP) >> 11) * 0x1p-53; }

static uint32_t largest(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Heavy ones first; of equal ones, the first token. */
static int by_weight(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static double sum_of(const struct candidate *list, uint32_t count) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += list[i].weight;
    return sum;
}

/* Returns the number of candidates that stay. Sorts `list` if some are dropped. */
static uint32_t keep(const struct choosing *c, struct candidate *list, uint32_t count) {
    if ((!c->top_k || c->top_k >= count) && c->top_p >= 1) return count;
    qsort(list, count, sizeof *list, by_weight);
    if (c->top_k && c->top_k < count) count = (uint32_t)c->top_k;
    double wanted = c->top_p * sum_of(list, count);
    uint32_t kept = 0;
    for (double sum = 0; kept < count && (kept == 0 || sum < wanted || c->top_p >= 1); kept++)
        sum += list[kept].weight;
    return kept;
}

int32_t choose_token(const struct choosing *c, const float *logits, uint32_t vocab, uint64_t *state,
                     struct candidate *list) {
    uint32_t best = largest(logits, vocab);
    if (!(c->temperature > 0)) return (int32_t)best;
    for (uint32_t i = 0; i < vocab; i++)
        list[i] = (struct candidate){exp(((double)logits[i] - logits[best]) / c->temperature), (int32_t)i};
    uint32_t count = keep(c, list, vocab);
    double left = draw(state) * sum_of(list, count);
    for (uint32_t i = 0; i < count; i++) {
        left -= list[i].weight;
        if (left < 0) return list[i].token;
    }
    return list[count - 1].token;
}
