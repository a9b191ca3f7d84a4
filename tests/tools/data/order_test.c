/* The data order is what is written down: ranks take disjoint samples in the stated order, the end wraps, a
 * shuffle is a permutation that the seed and the epoch choose. */
#include "tools/data/order.h"

#include <stdlib.h>

#include "tests/check.h"
#include "tests/tools/data/files.h"

/* A text of 26 tokens with T = 4 has floor(25 / 4) = 6 samples; "yz" is left over. */
static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz";

static void sequential_order_is_as_written(void) {
    files_text("alphabet", alphabet);
    struct zero_error error;
    error_clear(&error);
    struct corpus *corpus = NULL;
    struct reader *reader = NULL;
    CHECK_INT(corpus_open((const char *[]){"alphabet"}, 1, &error, &corpus), ZERO_OK);
    CHECK_INT(reader_open(corpus, 256, &error, &reader), ZERO_OK);
    struct order order = {.samples = order_samples(corpus->tokens, 4), .context = 4};
    CHECK_INT(order.samples, 6);
    /* 2 ranks, micro-batches of 1, 2 micro-steps, by hand; the second step wraps after two of its four
     * samples. */
    static const struct {
        struct sample_place at;
        const char *tokens, *targets;
    } expected[] = {
        {{.step = 0, .micro = 0, .rank = 0}, "abcd", "bcde"},
        {{.step = 0, .micro = 0, .rank = 1}, "efgh", "fghi"},
        {{.step = 0, .micro = 1, .rank = 0}, "ijkl", "jklm"},
        {{.step = 0, .micro = 1, .rank = 1}, "mnop", "nopq"},
        {{.step = 1, .micro = 0, .rank = 0}, "qrst", "rstu"},
        {{.step = 1, .micro = 0, .rank = 1}, "uvwx", "vwxy"},
        {{.step = 1, .micro = 1, .rank = 0}, "abcd", "bcde"},
        {{.step = 1, .micro = 1, .rank = 1}, "efgh", "fghi"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct sample_place at = expected[i].at;
        at.micro_count = 2, at.ranks = 2, at.batch = 1;
        int32_t tokens[4], targets[4];
        CHECK_INT(order_read(&order, reader, order_position(at), 1, tokens, targets, &error), ZERO_OK);
        for (int t = 0; t < 4; t++) {
            CHECK_INT(tokens[t], expected[i].tokens[t]);
            CHECK_INT(targets[t], expected[i].targets[t]);
        }
    }
    int32_t tokens[12], targets[12]; /* a micro-batch of 3 that wraps inside */
    CHECK_INT(order_read(&order, reader, 5, 3, tokens, targets, &error), ZERO_OK);
    for (int t = 0; t < 12; t++) CHECK_INT(tokens[t], "uvwxabcdefgh"[t]);
    reader_close(reader);
    corpus_close(corpus);
}

/* In one step, and over an epoch that it divides, every sample is taken exactly once over all ranks. */
static void ranks_share_without_overlap(void) {
    enum { RANKS = 3, BATCH = 5, MICROS = 2, STEPS = 4, SAMPLES = RANKS * BATCH * MICROS * STEPS };
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        struct order order = {.samples = SAMPLES, .context = 8, .shuffled = shuffled, .seed = 7};
        int taken[SAMPLES] = {0};
        for (uint64_t step = 0; step < STEPS; step++)
            for (uint32_t micro = 0; micro < MICROS; micro++)
                for (uint32_t rank = 0; rank < RANKS; rank++)
                    for (uint64_t i = 0; i < BATCH; i++) {
                        struct sample_place at = {step, micro, MICROS, rank, RANKS, BATCH};
                        taken[order_sample(&order, order_position(at) + i)]++;
                    }
        for (int i = 0; i < SAMPLES; i++) CHECK_INT(taken[i], 1);
    }
}

static void shuffled_is_a_permutation(void) {
    for (uint64_t samples = 1; samples < 300; samples += samples < 20 ? 1 : 23) {
        check_seed(samples);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            struct order order = {.samples = samples, .context = 8, .shuffled = true, .seed = samples};
            char seen[300] = {0};
            for (uint64_t i = 0; i < samples; i++) {
                uint64_t sample = order_sample(&order, epoch * samples + i);
                if (CHECK(sample < samples)) CHECK_INT(seen[sample]++, 0);
            }
        }
    }
}

/* How many of 1,000 positions name the same sample; of independent permutations, about one does. */
static int agreements(struct order a, uint64_t from_a, struct order b, uint64_t from_b) {
    int equal = 0;
    for (uint64_t i = 0; i < 1000; i++) equal += order_sample(&a, from_a + i) == order_sample(&b, from_b + i);
    return equal;
}

static void seeds_and_epochs_differ(void) {
    struct order one = {.samples = 1000, .context = 8, .shuffled = true, .seed = 1}, two = one, plain = one;
    two.seed = 2, plain.shuffled = false;
    CHECK_INT(agreements(one, 0, one, 0), 1000);
    CHECK(agreements(one, 0, two, 0) < 10);
    CHECK(agreements(one, 0, one, 1000) < 10);
    CHECK(agreements(one, 0, plain, 0) < 10);
}

static void short_streams_have_no_samples(void) {
    CHECK_INT(order_samples(0, 4), 0);
    CHECK_INT(order_samples(4, 4), 0); /* the last target is missing */
    CHECK_INT(order_samples(5, 4), 1);
    CHECK_INT(order_samples(9, 4), 2);
}

int main(void) {
    files_enter();
    sequential_order_is_as_written();
    ranks_share_without_overlap();
    shuffled_is_a_permutation();
    seeds_and_epochs_differ();
    short_streams_have_no_samples();
    return check_end();
}
